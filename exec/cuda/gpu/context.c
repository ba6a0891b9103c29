/* context.c: launches, their shared memory, and CUDA's errors in our words. */
#include "exec/cuda/gpu/context.h"

#include <string.h>

/* CUDA keeps the error for this thread: libraries that look would take it for one of theirs. */
tsr_status tsr_cuda_error(cudaError_t error, const char *tried)
{
    (void)cudaGetLastError();
    return tsr_fail(error == cudaErrorMemoryAllocation ? TSR_EOOM : TSR_EBACKEND,
                    "%s: CUDA says '%s'", tried, cudaGetErrorString(error));
}

uint64_t tsr_cuda_most_shared(const struct tsr_kernel_call *call)
{
    const uint64_t everywhere = 99 << 10; /* of sm_80 and later, sm_86 has the least */
    return tsr_max_u64(tsr_cuda_context(call)->shared, everywhere) - TSR_CUDA_OWN_SHARED;
}

/* More than a kernel has without asking: 48 KiB together with what is its own. It gets all that
 * there is, so that a launch in a graph never finds a smaller limit than at its capture. */
static tsr_status ask_for_shared(const struct tsr_kernel_call *call, const void *symbol,
                                 uint64_t bytes)
{
    uint64_t most = tsr_cuda_most_shared(call);
    if (bytes <= (48 << 10) - TSR_CUDA_OWN_SHARED)
        return TSR_OK;
    if (bytes > most)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "kernel %s: needs %llu bytes of shared memory; the GPU has %llu",
                        call->work->name, (unsigned long long)bytes, (unsigned long long)most);
    TSR_CUDA("shared memory",
             cudaFuncSetAttribute(symbol, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most));
    return TSR_OK;
}

tsr_status tsr_cuda_launch(const struct tsr_kernel_call *call, tsr_cuda_kernel kernel,
                           struct tsr_cuda_grid grid, const void *params)
{
    void *args[] = {(void *)(uintptr_t)params};
    const void *symbol;
    memcpy(&symbol, &kernel, sizeof symbol);
    TSR_TRY(ask_for_shared(call, symbol, grid.shared));
    const struct dim3 blocks = {grid.blocks, grid.rows ? grid.rows : 1, 1},
                      threads = {grid.threads, 1, 1};
    TSR_CUDA(call->work ? call->work->name : "fill",
             cudaLaunchKernel(symbol, blocks, threads, args, grid.shared,
                              tsr_cuda_context(call)->stream));
    return TSR_OK;
}
