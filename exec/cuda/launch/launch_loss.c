/* loss.c: launches of the losses, which end in a sum that one block makes. */
#include "exec/kernels/rows/loss.h"

#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/launch/cuda_launch.h"

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
