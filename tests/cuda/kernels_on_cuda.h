/* kernels_on_cuda.h: the tests of the host's kernels (tests/exec/kernels_testing.h) on the GPU's.
 *
 * Operands lie in managed memory, which host and GPU reach at the same address. The same objects
 * are linked with the stand-ins (cuda_test_kernels_*) and with CUDA (gpu_test_kernels_*).
 */
#ifndef TSR_KERNELS_ON_CUDA_H
#define TSR_KERNELS_ON_CUDA_H

#include "exec/cuda/context.h"

static inline void *test_memory(size_t bytes)
{
    void *memory = NULL;
    return cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal) == cudaSuccess ? memory : NULL;
}

static inline void test_give_back(void *memory)
{
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

/* The GPU is done with what was launched: the host may look at it. */
static inline tsr_status test_finish(tsr_status launched)
{
    TSR_CUDA("the test", cudaDeviceSynchronize());
    return launched;
}

static inline tsr_kernel_fn test_kernel(struct test_call *t)
{
    enum { SCRATCH = 1 << 20 };
    static struct tsr_cuda_context context;
    if (!context.scratch) {
        context = (struct tsr_cuda_context){.n_sms = 4,
                                            .architecture = 90,
                                            .deterministic = true,
                                            .scratch = test_memory(SCRATCH),
                                            .scratch_bytes = SCRATCH};
        assert_non_null(context.scratch);
    }
    t->call.launch = tsr_cuda_launch_code;
    t->call.context = &context;
    return tsr_cuda_kernel_of(t->work.name);
}

#endif
