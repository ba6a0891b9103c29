/* nccl_calls.c: the stand-in of NCCL: collectives, messages and groups become work on streams. */
#include <stdlib.h>
#include <string.h>

#include "exec/base/numeric.h"
#include "tests/standin/nccl_impl.h"

enum { MAX_GROUP = 1024 };

/* A call of a group, which begins at its end. */
struct pending {
    ncclComm_t comm;
    cudaStream_t stream;
    bool is_message;
    struct nccl_post post;
    struct nccl_mail_item item;
};
static _Thread_local int depth;
static _Thread_local size_t n_pending;
static _Thread_local struct pending pending[MAX_GROUP];

/* ---- launches -------------------------------------------------------------------------------- */

static ncclResult_t of_cuda(cudaError_t error)
{
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static void change_graphs(void *comm, int by)
{
    (void)atomic_fetch_add(&((ncclComm_t)comm)->graphs, by);
}

/* A graph's calls come when it runs; it holds the communicator. */
static uint64_t ticket_of(const struct pending *p)
{
    bool captured = tsr_standin_graph_hold(p->stream, change_graphs, p->comm);
    return captured ? NCCL_CAPTURED : p->comm->next++;
}

static ncclResult_t launch_post(const struct pending *p)
{
    const struct nccl_work w = {.comm = p->comm, .ticket = ticket_of(p), .post = p->post};
    return of_cuda(tsr_standin_enqueue_in_order(p->stream, tsr__nccl_run, &w, sizeof w));
}

/* The messages of one communicator and stream go together. */
static ncclResult_t launch_mail(size_t first)
{
    const struct pending *p = &pending[first];
    struct nccl_mail *m = calloc(1, sizeof *m + n_pending * sizeof *m->items);
    if (!m)
        return ncclSystemError;
    m->comm = p->comm;
    m->ticket = ticket_of(p);
    for (size_t i = first; i < n_pending; i++) {
        if (!pending[i].is_message || pending[i].comm != p->comm || pending[i].stream != p->stream)
            continue;
        m->items[m->n++] = pending[i].item;
        if (i != first)
            pending[i].comm = NULL; /* has gone */
    }
    ncclResult_t result = of_cuda(tsr_standin_enqueue_in_order(
        p->stream, tsr__nccl_run_mail, m, sizeof *m + m->n * sizeof *m->items));
    free(m);
    return result;
}

static ncclResult_t launch_all(void)
{
    ncclResult_t result = ncclSuccess;
    for (size_t i = 0; i < n_pending && result == ncclSuccess; i++)
        if (pending[i].comm)
            result = pending[i].is_message ? launch_mail(i) : launch_post(&pending[i]);
    n_pending = 0;
    return result;
}

ncclResult_t ncclGroupStart(void)
{
    TSR_STANDIN(ncclGroupStart, ncclResult_t);
    depth++;
    return ncclSuccess;
}

/* A failure is one after the group has ended: nothing of it is launched. */
ncclResult_t ncclGroupEnd(void)
{
    static struct tsr_standin_entry entry = {.name = "ncclGroupEnd"};
    int error = tsr_standin_enter(&entry);
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0)
        return ncclSuccess;
    if (!error)
        return launch_all();
    n_pending = 0;
    return (ncclResult_t)error;
}

static bool is_usable(ncclComm_t comm)
{
    return comm && !comm->revoked && !atomic_load(&comm->ended) && tsr__nccl_is_ready(comm);
}

static ncclResult_t add(const struct pending *p)
{
    if (!is_usable(p->comm))
        return ncclInvalidUsage;
    if (n_pending == MAX_GROUP)
        abort();
    pending[n_pending++] = *p;
    return depth > 0 ? ncclSuccess : launch_all();
}

/* ---- collectives ----------------------------------------------------------------------------- */

static bool is_device(const void *at, size_t bytes)
{
    return bytes == 0 || tsr_standin_space_of(at, bytes) == TSR_STANDIN_DEVICE;
}

/* in, out: pieces of `count` elements. */
static ncclResult_t collective(const struct nccl_post *post, size_t in, size_t out, ncclComm_t comm,
                               cudaStream_t stream)
{
    struct pending p = {.comm = comm, .stream = stream, .post = *post};
    size_t bytes = post->count * tsr__nccl_item(post->type);
    if (!comm || (unsigned)post->type >= ncclNumTypes || post->root < 0 || post->root >= comm->n)
        return ncclInvalidArgument;
    bool sends = post->kind != NCCL_BROADCAST || comm->rank == post->root;
    if ((sends && !is_device(post->send, in * bytes)) || !is_device(post->recv, out * bytes))
        return ncclInvalidArgument;
    if (post->op >= ncclNumOps) {
        unsigned i = (unsigned)post->op - ncclNumOps;
        if (i >= NCCL_MAX_OPS || !comm->used_op[i])
            return ncclInvalidArgument;
        p.post.op = (ncclRedOp_t)ncclNumOps;
        p.post.factor = comm->factors[i];
    }
    return add(&p);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    TSR_STANDIN(ncclAllGather, ncclResult_t);
    const struct nccl_post post = {NCCL_GATHER, send, recv, count, type, ncclSum, 0, 0};
    return collective(&post, 1, comm ? (size_t)comm->n : 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    TSR_STANDIN(ncclReduceScatter, ncclResult_t);
    const struct nccl_post post = {NCCL_SCATTER, send, recv, count, type, op, 0, 0};
    return collective(&post, comm ? (size_t)comm->n : 0, 1, comm, stream);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    TSR_STANDIN(ncclAllReduce, ncclResult_t);
    const struct nccl_post post = {NCCL_REDUCE, send, recv, count, type, op, 0, 0};
    return collective(&post, 1, 1, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    TSR_STANDIN(ncclBroadcast, ncclResult_t);
    const struct nccl_post post = {NCCL_BROADCAST, send, recv, count, type, ncclSum, 0, root};
    return collective(&post, 1, 1, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream)
{
    TSR_STANDIN(ncclAlltoAll, ncclResult_t);
    const struct nccl_post post = {NCCL_ALL_TO_ALL, send, recv, count, type, ncclSum, 0, 0};
    return collective(&post, comm ? (size_t)comm->n : 0, comm ? (size_t)comm->n : 0, comm, stream);
}

/* ---- factors --------------------------------------------------------------------------------- */

static double factor_of(const void *scalar, ncclDataType_t type)
{
    float f32 = 0;
    double f64 = 0;
    uint16_t half = 0;
    int64_t i64 = 0;
    memcpy(&half, scalar, tsr__nccl_item(type) == 2 ? 2 : 0);
    memcpy(&f32, scalar, tsr__nccl_item(type) == 4 ? 4 : 0);
    memcpy(&f64, scalar, type == ncclFloat64 ? 8 : 0);
    memcpy(&i64, scalar, type == ncclInt64 ? 8 : 0);
    switch (type) {
    case ncclBfloat16:
        return tsr_from_bf16(half);
    case ncclFloat16:
        return tsr_from_f16(half);
    case ncclFloat32:
        return f32;
    case ncclFloat64:
        return f64;
    case ncclInt64:
        return (double)i64;
    default:
        return *(const unsigned char *)scalar;
    }
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    TSR_STANDIN(ncclRedOpCreatePreMulSum, ncclResult_t);
    if (!comm || residence != ncclScalarHostImmediate)
        return ncclInvalidArgument;
    for (int i = 0; i < NCCL_MAX_OPS; i++) {
        if (comm->used_op[i])
            continue;
        comm->used_op[i] = true;
        comm->factors[i] = factor_of(scalar, type);
        *op = (ncclRedOp_t)((int)ncclNumOps + i);
        return ncclSuccess;
    }
    return ncclInternalError;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    TSR_STANDIN(ncclRedOpDestroy, ncclResult_t);
    unsigned i = (unsigned)op - ncclNumOps;
    if (!comm || i >= NCCL_MAX_OPS || !comm->used_op[i])
        return ncclInvalidArgument;
    comm->used_op[i] = false;
    return ncclSuccess;
}

/* ---- messages -------------------------------------------------------------------------------- */

static ncclResult_t message(bool is_send, void *data, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream)
{
    const struct pending p = {
        .comm = comm,
        .stream = stream,
        .is_message = true,
        .item = {is_send, peer, data, count * tsr__nccl_item(type)},
    };
    if (!comm || peer < 0 || peer >= comm->n || !is_device(data, p.item.bytes))
        return ncclInvalidArgument;
    return add(&p);
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    TSR_STANDIN(ncclSend, ncclResult_t);
    return message(true, (void *)(uintptr_t)data, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    TSR_STANDIN(ncclRecv, ncclResult_t);
    return message(false, data, count, type, peer, comm, stream);
}
