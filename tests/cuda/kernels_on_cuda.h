/* kernels_on_cuda.h: the tests of the host's kernels (tests/kernels/kernels_testing.h) on the
 * GPU's.
 */
#ifndef TSR_KERNELS_ON_CUDA_H
#define TSR_KERNELS_ON_CUDA_H

#include "exec/cuda/blas/blas.h"
#include "tests/cuda/operands.h"

static inline void *test_memory(size_t bytes)
{
    return tsr_operands_new(bytes);
}

static inline void test_give_back(void *memory)
{
    tsr_operands_free(memory);
}

static inline tsr_status test_finish(tsr_status launched)
{
    TSR_TRY(tsr_operands_finish());
    return launched;
}

/* Returns what the device says of itself, so that a launch has the shape that it has in a run. */
static inline const struct tsr_cuda_gpu *test_gpu(void)
{
    static struct tsr_cuda_gpu gpu;
    if (gpu.n_sms == 0 && tsr_gpu_open(0, &gpu) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return &gpu;
}

/* Returns the process's one handle, which is never destroyed. */
static inline struct tsr_blas *test_blas(void)
{
    static struct tsr_blas *blas;
    const struct tsr_blas_config config = {.gpu = test_gpu(), .deterministic = true};
    if (!blas)
        assert_int_equal(tsr_blas_create(&config, &blas), TSR_OK);
    return blas;
}

static inline tsr_kernel_fn test_kernel(struct test_call *t)
{
    enum { SCRATCH = 8 << 20 };
    static struct tsr_cuda_context context;
    if (!context.scratch) {
        context = (struct tsr_cuda_context){.n_sms = test_gpu()->n_sms,
                                            .architecture = test_gpu()->architecture,
                                            .shared = test_gpu()->shared,
                                            .deterministic = true,
                                            .scratch = test_memory(SCRATCH),
                                            .scratch_bytes = SCRATCH};
        assert_non_null(context.scratch);
    }
    context.blas = test_blas();
    t->call.launch = tsr_cuda_launch_code;
    t->call.context = &context;
    return tsr_cuda_kernel_of(t->work.name);
}

#endif
