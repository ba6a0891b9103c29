/* comms_testing.h: a random program of collectives (tests/world/collectives_testing.h), enqueued by
 * one host thread of every rank on three streams and compared with a naive reference when all is
 * done. What a call has read is overwritten behind it on its stream: a missing wait shows.
 */
#ifndef COMMS_TESTING_H
#define COMMS_TESTING_H

#include "tests/world/collectives_testing.h"

#include "exec/cuda/comms/comms.h"

struct comms_rank {
    const struct ct_program *program;
    struct tsr_world *world;
    struct tsr_comms *comms;
    cudaStream_t streams[CT_STREAMS];
    char *memory[CT_OPS], *out[CT_OPS]; /* on the device */
    char *host[CT_OPS];                 /* what is copied there, and back */
    char *device, *pinned;              /* owned */
    char error[512];
    tsr_status status;
    uint64_t digest;
};

static inline void comms_fail(struct comms_rank *r, const char *what)
{
    if (!r->error[0])
        snprintf(r->error, sizeof r->error, "%s", what);
}

/* Where a call has its input and its output; the same aliases as ct_call(). */
static inline char *comms_place(struct comms_rank *r, uint32_t i, const struct ct_shape *s)
{
    const struct ct_op *op = &r->program->ops[i];
    uint64_t chunk = (uint64_t)op->n * s->item;
    char *in = r->memory[i];
    r->out[i] = in + s->in * s->item;
    if (op->in_place && op->kind == TSR_ALL_GATHER) {
        r->out[i] = in;
        in += s->me * chunk;
    } else if (op->in_place && op->kind == TSR_REDUCE_SCATTER) {
        r->out[i] = in + s->me * chunk;
    } else if (op->in_place && (op->kind == TSR_ALL_REDUCE || op->kind == TSR_BROADCAST)) {
        r->out[i] = in;
    }
    return in;
}

static inline tsr_status comms_messages(struct comms_rank *r, uint32_t i, const struct ct_shape *s,
                                        char *in, const struct tsr_cuda_context *context)
{
    const struct ct_op *op = &r->program->ops[i];
    uint64_t chunk = (uint64_t)op->n * s->item;
    char *out = r->out[i];
    uint32_t before = (s->me + s->size - 1) % s->size,
             further = (s->me + 2 * s->size - 2) % s->size;
    const struct tsr_message messages[] = {
        {true, (s->me + 1) % s->size, in, chunk},     {false, before, out, chunk},
        {true, (s->me + 1) % s->size, in, chunk / 2}, {false, before, out + chunk, chunk / 2},
        {true, (s->me + 2) % s->size, in, chunk},     {false, further, out + 2 * chunk, chunk},
    };
    return r->comms->ops->messages(r->comms, context, &r->program->comms[op->comm], op->comm,
                                   op->sequence, messages, 6);
}

static inline tsr_status comms_call(struct comms_rank *r, uint32_t i)
{
    const struct ct_op *op = &r->program->ops[i];
    const struct ct_shape s = ct_shape(r->program, op, r->world->rank);
    const struct tsr_cuda_context context = {
        .stream = r->streams[op->stream], .n_sms = 2, .architecture = 90, .deterministic = true};
    uint64_t bytes = (s.in + s.out) * s.item;
    char *in = comms_place(r, i, &s);
    memset(r->host[i], 0, bytes); /* what no message writes */
    ct_fill(i, r->world->rank, op->dtype, r->host[i] + (in - r->memory[i]), s.in);
    if (bytes)
        TSR_CUDA("copy", cudaMemcpyAsync(r->memory[i], r->host[i], bytes, cudaMemcpyHostToDevice,
                                         context.stream));
    if (op->kind == TSR_SEND) {
        TSR_TRY(comms_messages(r, i, &s, in, &context));
    } else {
        const struct tsr_collective call = {.kind = op->kind,
                                            .dtype = op->dtype,
                                            .reduce_op = op->reduce_op,
                                            .factor = op->factor,
                                            .comm = &r->program->comms[op->comm],
                                            .comm_id = op->comm,
                                            .sequence = op->sequence,
                                            .send = in,
                                            .recv = r->out[i],
                                            .bytes = s.bytes};
        TSR_TRY(tsr_comms_run(r->comms, &context, &call, 1));
    }
    bool apart = r->out[i] == r->memory[i] + s.in * s.item;
    if (apart && s.in * s.item > 0)
        TSR_CUDA("memset", cudaMemsetAsync(in, 0xff, s.in * s.item, context.stream));
    if (s.out * s.item > 0)
        TSR_CUDA("copy", cudaMemcpyAsync(r->host[i] + (r->out[i] - r->memory[i]), r->out[i],
                                         s.out * s.item, cudaMemcpyDeviceToHost, context.stream));
    return TSR_OK;
}

static inline void comms_compare(struct comms_rank *r, uint32_t i)
{
    const struct ct_op *op = &r->program->ops[i];
    const struct ct_shape s = ct_shape(r->program, op, r->world->rank);
    uint64_t bytes = s.out * s.item;
    char *want = malloc(bytes + 16), text[256];
    ct_expect(r->program, i, r->world->rank, want);
    snprintf(text, sizeof text, "rank %u, op %u: %s of %s (%s), %u x %u elements, in place %d",
             r->world->rank, i, tsr_instr_kind_name(op->kind), tsr_dtype_name(op->dtype),
             tsr_reduce_op_name(op->reduce_op), s.size, op->n, op->in_place);
    const char *got = r->host[i] + (r->out[i] - r->memory[i]);
    if (memcmp(got, want, bytes) != 0)
        comms_fail(r, text);
    r->digest = tsr_hash_bytes(r->digest, got, bytes);
    free(want);
}

/* Every second operation lies off the boundaries that fast paths ask for. */
static inline tsr_status comms_memory(struct comms_rank *r)
{
    size_t at[CT_OPS], bytes = 0;
    for (uint32_t i = 0; i < CT_OPS; i++) {
        const struct ct_shape s = ct_shape(r->program, &r->program->ops[i], r->world->rank);
        at[i] = tsr_round_up(bytes, 64) + i % 2 * 8;
        bytes = at[i] + (s.in + s.out) * s.item + 16;
    }
    void *device, *host;
    TSR_CUDA("memory", cudaMalloc(&device, bytes));
    r->device = device;
    TSR_CUDA("pinned memory", cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
    r->pinned = host;
    for (uint32_t i = 0; i < CT_OPS; i++) {
        r->memory[i] = r->device + at[i];
        r->host[i] = r->pinned + at[i];
    }
    return TSR_OK;
}

static inline tsr_status comms_enqueue_all(struct comms_rank *r)
{
    for (int i = 0; i < CT_STREAMS; i++)
        TSR_CUDA("stream", cudaStreamCreateWithFlags(&r->streams[i], cudaStreamNonBlocking));
    TSR_TRY(comms_memory(r));
    for (uint32_t i = 0; i < CT_OPS; i++)
        TSR_TRY(comms_call(r, i));
    for (int i = 0; i < CT_STREAMS; i++)
        TSR_CUDA("synchronize", cudaStreamSynchronize(r->streams[i]));
    return TSR_OK;
}

/* r->comms is destroyed, too. */
static inline void comms_run_program(struct comms_rank *r)
{
    r->digest = TSR_HASH_INIT;
    r->status = comms_enqueue_all(r);
    if (r->status != TSR_OK) {
        comms_fail(r, tsr_error_text());
        r->comms->ops->abort(r->comms, r->status, r->error);
        r->world->ops->abort(r->world, r->status, r->error);
    }
    for (uint32_t i = 0; i < CT_OPS && r->status == TSR_OK; i++)
        comms_compare(r, i);
    for (int i = 0; i < CT_STREAMS; i++)
        if (r->streams[i])
            (void)cudaStreamDestroy(r->streams[i]);
    r->comms->ops->destroy(r->comms);
    (void)cudaFree(r->device);
    (void)cudaFreeHost(r->pinned);
}

/* A program as NCCL can run it: it has factors in the type of the elements. */
static inline struct ct_program comms_nccl_program(uint32_t size, uint64_t seed)
{
    struct ct_program p = ct_program(size, seed);
    for (uint32_t i = 0; i < CT_COMMS; i++)
        p.comms[i].separate = true;
    for (uint32_t i = 0; i < CT_OPS; i++)
        if (p.ops[i].dtype == TSR_BF16 || p.ops[i].dtype == TSR_F16)
            p.ops[i].factor = 0.25;
    return p;
}

#endif
