/* executor_source.c: the kernels that ask the source of a run: initial values, batches, reports,
 * checkpoints (KERNELS.md, "Sources and sinks").
 */
#include <string.h>

#include "exec/base/numeric.h"
#include "exec/executor/executor_impl.h"
#include "exec/kernels/elements/initial.h"

enum { PIECE_ARGS = 3 + 3 * TSR_PIECE_DIMS };

static tsr_status check(const struct tsr_kernel_call *call, uint32_t n_args, unsigned n_views)
{
    if (call->work->n_args == n_args && call->n_views == n_views)
        return TSR_OK;
    return tsr_fail(TSR_EDEFECT, "kernel '%s' has %u args and %u operands; it takes %u and %u",
                    call->work->name, call->work->n_args, call->n_views, n_args, n_views);
}

static tsr_status lacks(const struct tsr_kernel_call *call)
{
    return tsr_fail(TSR_EUNSUPPORTED, "this run has no source for '%s'", call->work->name);
}

static struct tsr_piece piece_of(const struct tsr_kernel_call *call)
{
    const uint64_t *a = call->work->args;
    struct tsr_piece piece = {.name = a[1],
                              .dtype = call->views[0].dtype,
                              .n_dims = (int)a[2],
                              .constant = call->work->constants[0]};
    for (int i = 0; i < TSR_PIECE_DIMS; i++) {
        piece.shape[i] = a[3 + i];
        piece.start[i] = a[3 + TSR_PIECE_DIMS + i];
        piece.size[i] = a[3 + 2 * TSR_PIECE_DIMS + i];
    }
    return piece;
}

static tsr_status init_param(const struct tsr_source *source, const struct tsr_instr *instr,
                             const struct tsr_kernel_call *call)
{
    (void)instr;
    TSR_TRY(check(call, PIECE_ARGS, 1));
    if (!source->init)
        return lacks(call);
    struct tsr_piece piece = piece_of(call);
    piece.init = (int)call->work->args[0];
    return source->init(source->user, &piece, call->views[0].data);
}

tsr_status tsr_task_initial(const struct tsr_task *task, bool *is_done)
{
    const struct tsr_kernel_call *call = &task->call;
    const uint64_t *seed = task->source->init_seed;
    *is_done = seed && task->source_fn == init_param &&
               tsr_dtype_is_float((tsr_dtype)call->views[0].dtype);
    if (!*is_done)
        return TSR_OK;
    TSR_TRY(check(call, PIECE_ARGS, 1));
    struct tsr_piece piece = piece_of(call);
    piece.init = (int)call->work->args[0];
    return tsr_initial_run(call, *seed, &piece);
}

static tsr_status read_batch(const struct tsr_source *source, const struct tsr_instr *instr,
                             const struct tsr_kernel_call *call)
{
    TSR_TRY(check(call, 3, 1));
    const uint64_t *a = call->work->args;
    if (!source->batch)
        return lacks(call);
    return source->batch(source->user, instr->origin.iteration, (uint32_t)a[0],
                         (enum tsr_batch_part)a[1], a[2] != 0, (tsr_dtype)call->views[0].dtype,
                         call->views[0].data, call->views[0].bytes);
}

static tsr_status report(const struct tsr_source *source, const struct tsr_instr *instr,
                         const struct tsr_kernel_call *call)
{
    const struct tsr_view *view = call->views;
    double value = 0.0;
    float single;
    uint16_t half;
    TSR_TRY(check(call, 2, 1));
    if (view->bytes != tsr_dtype_bytes((tsr_dtype)view->dtype) || view->bytes < sizeof half)
        return tsr_fail(TSR_EDEFECT, "a report of %llu bytes", (unsigned long long)view->bytes);
    if (view->dtype == TSR_F64) {
        memcpy(&value, view->data, sizeof value);
    } else if (view->dtype == TSR_F32) {
        memcpy(&single, view->data, sizeof single);
        value = single;
    } else {
        memcpy(&half, view->data, sizeof half);
        value = view->dtype == TSR_BF16 ? tsr_from_bf16(half) : tsr_from_f16(half);
    }
    if (!source->report)
        return TSR_OK;
    return source->report(source->user, instr->origin.iteration, (uint32_t)call->work->args[1],
                          (enum tsr_report)call->work->args[0],
                          instr->origin.phase == TSR_PHASE_EVAL, value);
}

static tsr_status read_checkpoint(const struct tsr_source *source, const struct tsr_instr *instr,
                                  const struct tsr_kernel_call *call)
{
    (void)instr;
    TSR_TRY(check(call, PIECE_ARGS, 1));
    if (!source->read)
        return lacks(call);
    struct tsr_piece piece = piece_of(call);
    piece.what = (uint8_t)call->work->args[0];
    return source->read(source->user, &piece, call->views[0].data);
}

typedef tsr_status (*write_fn)(void *user, const struct tsr_piece *piece, const void *in);

static tsr_status write_by(write_fn write, const struct tsr_source *source,
                           const struct tsr_kernel_call *call)
{
    TSR_TRY(check(call, PIECE_ARGS, 1));
    if (!write)
        return lacks(call);
    struct tsr_piece piece = piece_of(call);
    piece.what = (uint8_t)call->work->args[0];
    return write(source->user, &piece, call->views[0].data);
}

static tsr_status write_checkpoint(const struct tsr_source *source, const struct tsr_instr *instr,
                                   const struct tsr_kernel_call *call)
{
    (void)instr;
    return write_by(source->write, source, call);
}

static tsr_status lend_checkpoint(const struct tsr_source *source, const struct tsr_instr *instr,
                                  const struct tsr_kernel_call *call)
{
    (void)instr;
    return write_by(source->lend, source, call);
}

static tsr_status join_checkpoint(const struct tsr_source *source, const struct tsr_instr *instr,
                                  const struct tsr_kernel_call *call)
{
    (void)instr;
    if (!source->join)
        return lacks(call);
    return source->join(source->user);
}

tsr_exec_source_fn tsr_exec_source_kernel(const char *name)
{
    static const struct {
        const char *name;
        tsr_exec_source_fn fn;
    } kernels[] = {{"init_param", init_param},
                   {"read_batch", read_batch},
                   {"report", report},
                   {"read_checkpoint", read_checkpoint},
                   {"write_checkpoint", write_checkpoint},
                   {"lend_checkpoint", lend_checkpoint},
                   {"join_checkpoint", join_checkpoint}};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name))
            return kernels[i].fn;
    return NULL;
}
