/* comms.c: what the kinds of communicators share: copies and sums on a stream, calls of one member,
 * messages that are matched.
 */
#include "exec/cuda/comms/comms.h"

#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"

tsr_status tsr_comms_run(struct tsr_comms *comms, const struct tsr_cuda_context *context,
                         const struct tsr_collective *calls, size_t n)
{
    bool grouped = n > 1 && comms->ops->begin;
    if (grouped)
        TSR_TRY(comms->ops->begin(comms, calls, n));
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = comms->ops->collective(comms, context, &calls[i]);
    if (!grouped)
        return status;
    tsr_status ended = comms->ops->end(comms);
    return status != TSR_OK ? status : ended;
}

/* ---- launches -------------------------------------------------------------------------------- */

enum { BLOCKS_PER_SM = 8, BYTES_PER_THREAD = 64 };

/* Enough threads for all, but no more than fill the GPU. */
static unsigned blocks_for(const struct tsr_cuda_context *context, uint64_t threads, uint64_t rows)
{
    uint64_t most = tsr_ceil_div((uint64_t)context->n_sms * BLOCKS_PER_SM, rows);
    uint64_t wanted = tsr_ceil_div(threads, TSR_CUDA_THREADS);
    return (unsigned)tsr_max_u64(tsr_min_u64(wanted, most), 1);
}

static tsr_status launch(const struct tsr_cuda_context *context, uint8_t kind,
                         tsr_cuda_kernel kernel, uint64_t threads, unsigned rows,
                         const void *params)
{
    const struct tsr_work work = {.name = tsr_instr_kind_name(kind)};
    const struct tsr_kernel_call call = {.work = &work, .context = context};
    return tsr_cuda_launch(&call, kernel,
                           (struct tsr_cuda_grid){.blocks = blocks_for(context, threads, rows),
                                                  .threads = TSR_CUDA_THREADS,
                                                  .rows = rows},
                           params);
}

tsr_status tsr__device_copy(const struct tsr_cuda_context *context, uint8_t kind,
                            const struct tsr_segment *segments, size_t n)
{
    struct tsr_loopback_copy copy;
    for (size_t i = 0; i < n;) {
        unsigned rows = 0;
        uint64_t largest = 0;
        for (; i < n && rows < TSR_LOOPBACK_SEGMENTS; i++) {
            if (segments[i].bytes == 0 || segments[i].from == segments[i].to)
                continue;
            copy.segments[rows++] = segments[i];
            largest = tsr_max_u64(largest, segments[i].bytes);
        }
        if (rows > 0)
            TSR_TRY(launch(context, kind, tsr_cuda_loopback_copy,
                           tsr_ceil_div(largest, BYTES_PER_THREAD), rows, &copy));
    }
    return TSR_OK;
}

tsr_status tsr__device_reduce(const struct tsr_cuda_context *context, uint8_t kind,
                              const struct tsr_reduction *how, const void *const *parts,
                              uint32_t n_parts, void *out, uint64_t n)
{
    bool is_integer = how->dtype == TSR_I64 || how->dtype == TSR_U8;
    struct tsr_loopback_sum sum = {.out = out,
                                   .n = n,
                                   .factor = how->factor,
                                   .n_parts = n_parts,
                                   .dtype = how->dtype,
                                   .op = how->op};
    uintptr_t bits = (uintptr_t)out;
    for (uint32_t p = 0; p < n_parts; p++) {
        sum.parts[p] = parts[p];
        bits |= (uintptr_t)parts[p];
    }
    sum.aligned = bits % 16 == 0;
    if (n == 0)
        return TSR_OK;
    if (is_integer || how->dtype == TSR_F64)
        return launch(context, kind,
                      is_integer ? tsr_cuda_loopback_sum_i64 : tsr_cuda_loopback_sum_f64, n, 1,
                      &sum);
    return launch(context, kind, tsr_cuda_loopback_sum_f32, sum.aligned ? tsr_ceil_div(n, 8) : n, 1,
                  &sum);
}

/* ---- one member ------------------------------------------------------------------------------ */

tsr_status tsr__device_alone(const struct tsr_cuda_context *context, const struct tsr_collective *c)
{
    if (c->kind == TSR_ALL_REDUCE || c->kind == TSR_REDUCE_SCATTER) {
        const struct tsr_reduction how = tsr__reduction_of(c);
        bool changes = how.op == TSR_REDUCE_PREMUL_SUM;
        if (c->send == c->recv && !changes)
            return TSR_OK;
        return tsr__device_reduce(context, c->kind, &how, &c->send, 1, c->recv,
                                  c->bytes / tsr_dtype_bytes(c->dtype));
    }
    if (!c->send) /* a broadcast that this rank only receives */
        return TSR_OK;
    const struct tsr_segment whole = {c->send, c->recv, c->bytes};
    return tsr__device_copy(context, c->kind, &whole, 1);
}

/* ---- messages -------------------------------------------------------------------------------- */

tsr_status tsr__match_messages(const struct tsr_call *call, uint32_t from_member,
                               const struct tsr_message *from, size_t n_from, uint32_t to_member,
                               const struct tsr_message *to, size_t n_to,
                               struct tsr_segment *segments, size_t *n)
{
    uint64_t sends = tsr__messages_count(from, n_from, true, to_member);
    uint64_t receives = tsr__messages_count(to, n_to, false, from_member);
    if (sends != receives)
        return tsr__messages_mismatch(call, from_member, to_member, sends, receives);
    for (uint64_t i = 0; i < receives; i++) {
        const struct tsr_message *sent = tsr__message_at(from, n_from, true, to_member, i);
        const struct tsr_message *room = tsr__message_at(to, n_to, false, from_member, i);
        if (sent->bytes != room->bytes)
            return tsr__message_size_mismatch(call, from_member, to_member, sent->bytes,
                                              room->bytes);
        segments[(*n)++] = (struct tsr_segment){sent->data, room->data, sent->bytes};
    }
    return TSR_OK;
}
