/* comms_nccl.c: collectives and messages by NCCL. A communicator with one member is a copy unless
 * NCCL is forced. Sums are NCCL's: in an order that depends on its algorithm, PREMUL_SUM with the
 * factor rounded to the type of the elements.
 */
#include "exec/cuda/comms/nccl_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exec/base/numeric.h"

static struct tsr_nccl *of(struct tsr_comms *comms)
{
    return (struct tsr_nccl *)comms;
}

/* ---- types and operations -------------------------------------------------------------------- */

static ncclDataType_t type_of(uint8_t dtype)
{
    switch (dtype) {
    case TSR_F32:
        return ncclFloat32;
    case TSR_BF16:
        return ncclBfloat16;
    case TSR_F16:
        return ncclFloat16;
    case TSR_F64:
        return ncclFloat64;
    case TSR_I64:
        return ncclInt64;
    default:
        return ncclUint8;
    }
}

/* A factor as an element of the type. */
union scalar {
    float f32;
    double f64;
    uint16_t half;
    int64_t i64;
    uint8_t u8;
};

static union scalar scalar_of(uint8_t dtype, double factor)
{
    union scalar s = {.i64 = 0};
    if (dtype == TSR_F32)
        s.f32 = (float)factor;
    else if (dtype == TSR_F64)
        s.f64 = factor;
    else if (dtype == TSR_BF16)
        s.half = tsr_to_bf16((float)factor);
    else if (dtype == TSR_F16)
        s.half = tsr_to_f16((float)factor);
    else if (dtype == TSR_I64)
        s.i64 = (int64_t)factor;
    else
        s.u8 = (uint8_t)factor;
    return s;
}

static tsr_status premul(struct tsr_nccl *n, struct tsr_nccl_comm *c,
                         const struct tsr_collective *call, ncclRedOp_t *out)
{
    struct tsr_nccl_op made = {.type = type_of(call->dtype), .factor = call->factor};
    for (size_t i = 0; i < c->n_ops; i++) {
        *out = c->ops[i].op;
        if (c->ops[i].type == made.type && c->ops[i].factor == made.factor)
            return TSR_OK;
    }
    union scalar scalar = scalar_of(call->dtype, call->factor);
    TSR_TRY(tsr__nccl_check(
        n, ncclRedOpCreatePreMulSum(&made.op, &scalar, made.type, ncclScalarHostImmediate, c->comm),
        c->name, "a factor"));
    if (!TSR_PUSH(c->ops, c->n_ops, c->cap_ops, made))
        return tsr__no_memory_on(n->world->rank);
    *out = made.op;
    return TSR_OK;
}

static tsr_status op_of(struct tsr_nccl *n, struct tsr_nccl_comm *c,
                        const struct tsr_collective *call, ncclRedOp_t *out)
{
    *out = ncclSum;
    if (call->kind != TSR_ALL_REDUCE && call->kind != TSR_REDUCE_SCATTER)
        return TSR_OK;
    if (call->reduce_op == TSR_REDUCE_PREMUL_SUM)
        return premul(n, c, call, out);
    if (call->reduce_op == TSR_REDUCE_AVG)
        *out = ncclAvg;
    else if (call->reduce_op == TSR_REDUCE_MAX)
        *out = ncclMax;
    return TSR_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static tsr_status enter(struct tsr_nccl *n)
{
    if (tsr__aborted(&n->abort))
        return tsr__abort_status(&n->abort);
    if (n->in_group)
        return TSR_OK;
    (void)pthread_mutex_lock(&n->calls);
    if (!tsr__aborted(&n->abort))
        return TSR_OK;
    (void)pthread_mutex_unlock(&n->calls);
    return tsr__abort_status(&n->abort);
}

static void leave(struct tsr_nccl *n)
{
    if (!n->in_group)
        (void)pthread_mutex_unlock(&n->calls);
}

static ncclResult_t call_nccl(const struct tsr_nccl_comm *c, const struct tsr_collective *call,
                              ncclRedOp_t op, cudaStream_t stream)
{
    uint64_t part = call->bytes / c->size;
    uint64_t item = tsr_dtype_bytes(call->dtype);
    const void *send = call->send ? call->send : call->recv;
    ncclDataType_t type = type_of(call->dtype);
    switch (call->kind) {
    case TSR_ALL_GATHER:
        return ncclAllGather(send, call->recv, part, ncclUint8, c->comm, stream);
    case TSR_ALL_TO_ALL:
        return ncclAlltoAll(send, call->recv, part, ncclUint8, c->comm, stream);
    case TSR_BROADCAST:
        return ncclBroadcast(send, call->recv, call->bytes, ncclUint8, 0, c->comm, stream);
    case TSR_REDUCE_SCATTER:
        return ncclReduceScatter(send, call->recv, part / item, type, op, c->comm, stream);
    default:
        return ncclAllReduce(send, call->recv, call->bytes / item, type, op, c->comm, stream);
    }
}

static bool is_alone(const struct tsr_nccl *n, const struct tsr_comm *comm)
{
    return comm->size == 1 && !n->config.force;
}

static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

/* Everything that may have to wait for other ranks' hosts: before NCCL's calls. */
static tsr_status prepare(struct tsr_nccl *n, const struct tsr_collective *call,
                          struct tsr_nccl_comm **out)
{
    TSR_TRY(tsr__collective_check(n->world, call));
    if (is_alone(n, call->comm))
        return TSR_OK;
    return tsr__nccl_comm_of(n, call->comm, call->comm_id, call->kind, out);
}

static tsr_status register_at(struct tsr_nccl *n, const struct tsr_collective *call,
                              struct tsr_nccl_comm *c, cudaStream_t stream)
{
    uint64_t nth = call->sequence + 1;
    bool due = n->config.windows && c->gathers && !n->in_group && (nth & (nth - 1)) == 0;
    return due && !is_captured(stream) ? tsr__nccl_register(n, c) : TSR_OK;
}

static tsr_status nccl_collective(struct tsr_comms *comms, const struct tsr_cuda_context *context,
                                  const struct tsr_collective *call)
{
    struct tsr_nccl *n = of(comms);
    struct tsr_nccl_comm *c = NULL;
    if (tsr__aborted(&n->abort))
        return tsr__abort_status(&n->abort);
    TSR_TRY(prepare(n, call, &c));
    if (!c)
        return tsr__device_alone(context, call);
    TSR_TRY(enter(n));
    ncclRedOp_t op;
    tsr_status status;
    TSR_GOTO(end, register_at(n, call, c, context->stream));
    TSR_GOTO(end, op_of(n, c, call, &op));
    status = tsr__nccl_check(n, call_nccl(c, call, op, context->stream), c->name,
                             tsr_instr_kind_name(call->kind));
end:
    leave(n);
    return status;
}

/* Communicators are made before the group: what happens in it happens at its end. */
static tsr_status nccl_begin(struct tsr_comms *comms, const struct tsr_collective *calls,
                             size_t n_calls)
{
    struct tsr_nccl *n = of(comms);
    struct tsr_nccl_comm *c = NULL;
    if (tsr__aborted(&n->abort))
        return tsr__abort_status(&n->abort);
    for (size_t i = 0; i < n_calls; i++)
        TSR_TRY(prepare(n, &calls[i], &c));
    TSR_TRY(enter(n));
    tsr_status status = tsr__nccl_check(n, ncclGroupStart(), calls[0].comm->name, "a group");
    if (status != TSR_OK)
        leave(n);
    else
        n->in_group = true;
    return status;
}

static tsr_status nccl_end(struct tsr_comms *comms)
{
    struct tsr_nccl *n = of(comms);
    ncclResult_t result = ncclGroupEnd();
    n->in_group = false;
    leave(n);
    return tsr__nccl_check(n, result, "the communicators", "the end of a group");
}

/* ---- messages -------------------------------------------------------------------------------- */

static tsr_status alone_messages(struct tsr_nccl *n, const struct tsr_cuda_context *context,
                                 const struct tsr_call *call, const struct tsr_message *messages,
                                 size_t n_messages)
{
    size_t n_segments = 0;
    struct tsr_segment *segments = calloc(n_messages + 1, sizeof *segments);
    if (!segments)
        return tsr__no_memory_on(n->world->rank);
    tsr_status status = tsr__match_messages(call, 0, messages, n_messages, 0, messages, n_messages,
                                            segments, &n_segments);
    if (status == TSR_OK)
        status = tsr__device_copy(context, TSR_RECV, segments, n_segments);
    free(segments);
    return status;
}

static ncclResult_t send_all(const struct tsr_nccl_comm *c, const struct tsr_message *messages,
                             size_t n, cudaStream_t stream)
{
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess)
        return result;
    for (size_t i = 0; i < n && result == ncclSuccess; i++) {
        const struct tsr_message *m = &messages[i];
        result = m->is_send ? ncclSend(m->data, m->bytes, ncclUint8, (int)m->peer, c->comm, stream)
                            : ncclRecv(m->data, m->bytes, ncclUint8, (int)m->peer, c->comm, stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

static tsr_status nccl_messages(struct tsr_comms *comms, const struct tsr_cuda_context *context,
                                const struct tsr_comm *comm, uint16_t comm_id, uint64_t sequence,
                                const struct tsr_message *messages, size_t n_messages)
{
    struct tsr_nccl *n = of(comms);
    struct tsr_nccl_comm *c;
    if (tsr__aborted(&n->abort))
        return tsr__abort_status(&n->abort);
    TSR_TRY(tsr__messages_check(n->world, comm, messages, n_messages));
    if (is_alone(n, comm)) {
        const struct tsr_call call = tsr__call_of_messages(n->world, comm, comm_id, sequence);
        return alone_messages(n, context, &call, messages, n_messages);
    }
    TSR_TRY(tsr__nccl_comm_of(n, comm, comm_id, TSR_SEND, &c));
    TSR_TRY(enter(n));
    tsr_status status =
        tsr__nccl_check(n, send_all(c, messages, n_messages, context->stream), c->name, "messages");
    leave(n);
    return status;
}

/* ---- watching and ending --------------------------------------------------------------------- */

static tsr_status nccl_poll(struct tsr_comms *comms)
{
    struct tsr_nccl *n = of(comms);
    tsr_status status = TSR_OK;
    if (tsr__aborted(&n->abort))
        return tsr__abort_status(&n->abort);
    (void)pthread_mutex_lock(&n->life);
    for (size_t i = 0; i < n->n_comms && status == TSR_OK; i++) {
        ncclResult_t state = ncclSuccess;
        ncclResult_t result = ncclCommGetAsyncError(n->comms[i]->comm, &state);
        status = tsr__nccl_check(n, result != ncclSuccess ? result : state, n->comms[i]->name,
                                 "a collective");
    }
    (void)pthread_mutex_unlock(&n->life);
    return status;
}

/* In a group: kernels of one may wait behind those of another, so all must be told before one is
 * waited for. */
static void revoke_all(struct tsr_nccl *n)
{
    if (n->n_comms == 0 || ncclGroupStart() != ncclSuccess)
        return;
    for (size_t i = 0; i < n->n_comms; i++)
        (void)ncclCommRevoke(n->comms[i]->comm, NCCL_REVOKE_DEFAULT);
    (void)ncclGroupEnd();
}

/* The host thread is given a moment to come out of NCCL; it does not go in again. */
static void nccl_abort(struct tsr_comms *comms, tsr_status status, const char *why)
{
    struct tsr_nccl *n = of(comms);
    struct timespec until;
    (void)tsr__abort_by(&n->abort, n->world->rank, status, why);
    (void)pthread_mutex_lock(&n->life);
    if (!n->revoked) {
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 200000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        bool outside = pthread_mutex_timedlock(&n->calls, &until) == 0;
        revoke_all(n);
        n->revoked = true;
        if (outside)
            (void)pthread_mutex_unlock(&n->calls);
    }
    (void)pthread_mutex_unlock(&n->life);
}

static void nccl_describe(const struct tsr_comms *comms, char *text, size_t bytes)
{
    const struct tsr_nccl *n = (const struct tsr_nccl *)comms;
    size_t windows = 0;
    int version = 0;
    (void)ncclGetVersion(&version);
    for (size_t i = 0; i < n->n_comms; i++)
        for (size_t j = 0; j < n->comms[i]->n_windows; j++)
            windows += n->comms[i]->windows[j].window != NULL;
    (void)snprintf(text, bytes, "NCCL %d.%d.%d: %zu communicators, gathers %s, %zu windows%s",
                   version / 10000, version / 100 % 100, version % 100, n->n_comms,
                   n->config.zero_cta ? "may use copy engines" : "use multiprocessors", windows,
                   n->segments_differ   ? " (memory of the ranks differs)"
                   : n->windows_refused ? " (NCCL refused some)"
                                        : "");
}

static void nccl_destroy(struct tsr_comms *comms)
{
    struct tsr_nccl *n = of(comms);
    tsr__nccl_comms_free(n);
    free(n->segments);
    (void)pthread_mutex_destroy(&n->calls);
    (void)pthread_mutex_destroy(&n->life);
    free(n);
}

static const struct tsr_comms_ops nccl_ops = {
    .name = "nccl",
    .captures = true,
    .begin = nccl_begin,
    .end = nccl_end,
    .collective = nccl_collective,
    .messages = nccl_messages,
    .map = tsr__nccl_map,
    .unmap = tsr__nccl_unmap,
    .poll = nccl_poll,
    .abort = nccl_abort,
    .describe = nccl_describe,
    .destroy = nccl_destroy,
};

/* A newer library keeps what the header promises; an older one lacks calls. */
static tsr_status check_version(void)
{
    int version = 0;
    ncclResult_t result = ncclGetVersion(&version);
    if (result != ncclSuccess)
        return tsr_fail(TSR_EBACKEND, "NCCL does not start: '%s'", ncclGetErrorString(result));
    if (version < NCCL_VERSION_CODE || version / 10000 != NCCL_MAJOR)
        return tsr_fail(TSR_EBACKEND,
                        "NCCL %d.%d.%d is loaded; this program was built for %d.%d.%d and needs "
                        "that or a newer %d",
                        version / 10000, version / 100 % 100, version % 100, NCCL_MAJOR, NCCL_MINOR,
                        NCCL_PATCH, NCCL_MAJOR);
    return TSR_OK;
}

tsr_status tsr_comms_nccl(const struct tsr_comms_config *config, struct tsr_comms **out)
{
    *out = NULL;
    TSR_TRY(check_version());
    struct tsr_nccl *n = calloc(1, sizeof *n);
    if (!n)
        return tsr_no_memory("communicators");
    n->base = (struct tsr_comms){&nccl_ops, config->world, config->timeout_s};
    n->config = *config;
    n->world = config->world;
    (void)pthread_mutex_init(&n->life, NULL);
    (void)pthread_mutex_init(&n->calls, NULL);
    *out = &n->base;
    return TSR_OK;
}
