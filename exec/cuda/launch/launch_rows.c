/* launch_rows.c: launches of kernels that work row by row. */
#include "exec/kernels/tensor/rows.h"

#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/team_shape.h"
#include "exec/cuda/launch/cuda_launch.h"
#include "exec/kernels/rows/loss.h"

tsr_status tsr_cuda_scratch(const struct tsr_kernel_call *call, uint64_t bytes, void **out)
{
    const struct tsr_cuda_context *context = tsr_cuda_context(call);
    if (bytes > context->scratch_bytes && context->grow)
        TSR_TRY(context->grow(context->owner, context->index, bytes));
    *out = context->scratch;
    if (bytes <= context->scratch_bytes)
        return TSR_OK;
    return tsr_fail(TSR_EOOM, "kernel %s: needs %llu bytes of scratch, the stream has %llu",
                    call->work->name, (unsigned long long)bytes,
                    (unsigned long long)context->scratch_bytes);
}

static bool is_whole(const struct tsr_view *view)
{
    if (!tsr_dtype_is_float((tsr_dtype)view->dtype))
        return true; /* no packs of it are read */
    return (uintptr_t)view->data % 16 == 0 && view->width == 0 && view->pitch == 0;
}

tsr_cuda_kernel tsr_cuda_form(const struct tsr_kernel_call *call,
                              const struct tsr_cuda_forms *forms, bool wide, uint64_t columns)
{
    bool whole = columns % TSR_CUDA_ITEMS == 0;
    for (uint32_t i = 0; i < call->n_views && whole; i++)
        whole = is_whole(&call->views[i]);
    if (wide)
        return forms->f64;
    return whole ? forms->f32 : forms->torn;
}

/* Every team has a row, but there are no more blocks than fill the GPU a few times. */
tsr_status tsr_cuda_launch_rows(const struct tsr_kernel_call *call,
                                const struct tsr_cuda_forms *forms, bool wide, unsigned kept,
                                bool grows, const void *params)
{
    const struct tsr_rows *shape = params;
    unsigned threads = tsr_team_threads(shape->columns, grows);
    uint64_t teams = threads / tsr_team_size(shape->columns, threads);
    uint64_t most = (uint64_t)tsr_cuda_context(call)->n_sms * 16;
    const struct tsr_cuda_grid grid = {
        .blocks = (unsigned)tsr_min_u64(tsr_ceil_div(shape->rows, teams), most),
        .threads = threads,
        .shared = kept ? tsr_team_keeps(shape->columns, grows, kept, wide ? 8 : 4,
                                        tsr_cuda_most_shared(call))
                       : 0};
    tsr_cuda_kernel kernel = tsr_cuda_form(call, forms, wide, shape->columns);
    return shape->rows ? tsr_cuda_launch(call, kernel, grid, params) : TSR_OK;
}

/* ---- losses, which end in a sum that one block makes ----------------------------------------- */

static const struct tsr_cuda_grid one_block = {.blocks = 1, .threads = TSR_CUDA_LONG};

tsr_status tsr_cuda_nll(const struct tsr_kernel_call *call, bool wide, const void *params,
                        uint64_t n)
{
    (void)n;
    return tsr_cuda_launch(call, wide ? tsr_cuda_nll_f64 : tsr_cuda_nll_f32, one_block, params);
}

tsr_status tsr_cuda_cross_entropy(const struct tsr_kernel_call *call, bool wide, const void *params,
                                  uint64_t n)
{
    static const struct tsr_cuda_forms forms = TSR_FORMS(cross_entropy_rows);
    struct tsr_cross_entropy k;
    memcpy(&k, params, sizeof k);
    if (!k.row_loss)
        TSR_TRY(tsr_cuda_scratch(call, n * (wide ? sizeof(double) : sizeof(float)), &k.row_loss));
    TSR_TRY(tsr_cuda_launch_rows(call, &forms, wide, 1, true, &k));
    return tsr_cuda_launch(call,
                           wide ? tsr_cuda_cross_entropy_loss_f64 : tsr_cuda_cross_entropy_loss_f32,
                           one_block, &k);
}
