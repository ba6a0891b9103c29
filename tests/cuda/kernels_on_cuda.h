/* kernels_on_cuda.h: the tests of the host's kernels (tests/exec/kernels_testing.h) on the GPU's.
 */
#ifndef TSR_KERNELS_ON_CUDA_H
#define TSR_KERNELS_ON_CUDA_H

#include "exec/cuda/context.h"

static inline tsr_kernel_fn test_kernel(struct test_call *t)
{
    static unsigned char scratch[1 << 20];
    static struct tsr_cuda_context context = {.n_sms = 4,
                                              .architecture = 90,
                                              .deterministic = true,
                                              .scratch = scratch,
                                              .scratch_bytes = sizeof scratch};
    t->call.launch = tsr_cuda_launch_code;
    t->call.context = &context;
    return tsr_cuda_kernel_of(t->work.name);
}

#endif
