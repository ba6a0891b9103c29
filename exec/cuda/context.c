/* context.c: see context.h. */
#include "context.h"

#include <string.h>

tsr_status tsr_cuda_error(cudaError_t error, const char *tried)
{
    return tsr_fail(error == cudaErrorMemoryAllocation ? TSR_EOOM : TSR_EBACKEND,
                    "%s: CUDA says '%s'", tried, cudaGetErrorString(error));
}

struct tsr_cuda_scalars tsr_cuda_scalars_of(const struct tsr_kernel_call *call)
{
    struct tsr_cuda_scalars scalars = {.from = tsr_cuda_context(call)->scalars};
    if (call->scalars)
        memcpy(scalars.value, call->scalars, sizeof scalars.value);
    return scalars;
}

tsr_status tsr_cuda_launch(const struct tsr_kernel_call *call, tsr_cuda_kernel kernel,
                           struct tsr_cuda_grid grid, const void *params)
{
    void *args[] = {(void *)(uintptr_t)params};
    const void *symbol;
    memcpy(&symbol, &kernel, sizeof symbol);
    if (grid.shared > 48 << 10) /* more than a kernel has without asking */
        TSR_CUDA("shared memory",
                 cudaFuncSetAttribute(symbol, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)grid.shared));
    const struct dim3 blocks = {grid.blocks, grid.rows ? grid.rows : 1, 1},
                      threads = {grid.threads, 1, 1};
    TSR_CUDA(call->work ? call->work->name : "fill",
             cudaLaunchKernel(symbol, blocks, threads, args, grid.shared,
                              tsr_cuda_context(call)->stream));
    return TSR_OK;
}
