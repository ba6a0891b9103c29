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

/* Of the process: nobody frees it. */
static inline struct tsr_blas *test_blas(void)
{
    static struct tsr_blas *blas;
    static const struct tsr_cuda_gpu gpu = {.name = "stand-in", .architecture = 90, .n_sms = 4};
    const struct tsr_blas_config config = {.gpu = &gpu, .deterministic = true};
    if (!blas)
        assert_int_equal(tsr_blas_create(&config, &blas), TSR_OK);
    return blas;
}

static inline tsr_kernel_fn test_kernel(struct test_call *t)
{
    enum { SCRATCH = 8 << 20 };
    static struct tsr_cuda_context context;
    if (!context.scratch) {
        context = (struct tsr_cuda_context){.n_sms = 4,
                                            .architecture = 90,
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
