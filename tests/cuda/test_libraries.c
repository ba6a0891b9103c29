/* test_libraries.c: CUDA's runtime, cuBLASLt, NCCL and cuDNN themselves, on a machine without a
 * driver: they load, have the versions of their headers, describe products, and what needs a GPU
 * fails in one line of ours. With a driver there is nothing to see here: tests/gpu has those tests.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <nccl.h>

#include "exec/cuda/blas/blas_impl.h"
#include "exec/cuda/comms/comms.h"
#include "exec/cuda/cudnn/cudnn_attention.h"

static int has_driver(void **state)
{
    int n = 0;
    (void)state;
    cudaError_t error = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    return error == cudaSuccess ? 1 : 0;
}

static void runtime__no_driver__one_line(void **state)
{
    int n = -1, runtime = 0;
    if (has_driver(state))
        skip();
    assert_int_equal(cudaRuntimeGetVersion(&runtime), cudaSuccess);
    assert_int_equal(runtime / 1000, CUDART_VERSION / 1000);
    assert_int_equal(tsr_gpu_count(&n), TSR_EBACKEND);
    assert_int_equal(n, 0);
    assert_non_null(strstr(tsr_error_text(), "CUDA: found no driver; needed: NVIDIA's for CUDA"));
}

/* Descriptors are the library's own work and need no GPU. */
static void cublaslt__descriptors__are_made(void **state)
{
    const struct tsr_blas blas = {.gpu = {.architecture = 90, .n_sms = 132}};
    const struct tsr_cuda_context context = {.n_sms = 132, .architecture = 90};
    static const struct {
        uint8_t dtype, out;
        bool bias;
    } cases[] = {{TSR_BF16, TSR_BF16, true},
                 {TSR_F16, TSR_F32, true},
                 {TSR_F32, TSR_F32, false},
                 {TSR_F64, TSR_F64, false}};
    (void)state;
    assert_int_equal(cublasLtGetVersion() / 10000, CUBLAS_VERSION / 10000);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        _Alignas(256) static float memory[64 * 64];
        const struct tsr_blas_gemm g = {.m = 16,
                                        .n = 16,
                                        .k = 16,
                                        .batch = 2,
                                        .transpose_b = true,
                                        .dtype = cases[i].dtype,
                                        .dtype_out = cases[i].out,
                                        .a = memory,
                                        .b = memory,
                                        .out = memory,
                                        .bias = cases[i].bias ? memory : NULL,
                                        .row_a = 16,
                                        .row_b = 16,
                                        .row_out = 16,
                                        .step_a = 256,
                                        .step_b = 256,
                                        .step_out = 256,
                                        .alpha = 1};
        struct tsr_blas_problem p;
        if (tsr__blas_describe(&blas, &context, &g, &p) != TSR_OK)
            fail_msg("%s", tsr_error_text());
        uint64_t rows = 0;
        size_t written = 0;
        assert_int_equal(cublasLtMatrixLayoutGetAttribute(&p.out, CUBLASLT_MATRIX_LAYOUT_ROWS,
                                                          &rows, sizeof rows, &written),
                         CUBLAS_STATUS_SUCCESS);
        assert_int_equal(rows, 16);
    }
}

static void cublaslt__no_driver__one_line(void **state)
{
    const struct tsr_cuda_gpu gpu = {.architecture = 90, .n_sms = 132};
    const struct tsr_blas_config config = {.gpu = &gpu};
    struct tsr_blas *blas = NULL;
    if (has_driver(state))
        skip();
    assert_int_equal(tsr_blas_create(&config, &blas), TSR_EBACKEND);
    assert_null(blas);
    assert_non_null(strstr(tsr_error_text(), "cuBLASLt does not start: "));
}

static void cudnn__no_driver__says_why(void **state)
{
    struct tsr_cuda_attention *attention = NULL;
    char why[TSR_ATTENTION_TEXT] = "";
    if (has_driver(state))
        skip();
    assert_int_not_equal(tsr_attention_create(90, &attention, why), 0);
    assert_null(attention);
    assert_true(why[0] != 0);
}

/* The communicator of the world is made at the first collective. */
static void nccl__no_driver__one_line(void **state)
{
    char memory[64] = "";
    const struct tsr_comm comm = {.name = "shard", .size = 1, .stride = 1};
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_U8,
                                        .comm = &comm,
                                        .send = memory,
                                        .recv = memory,
                                        .bytes = sizeof memory};
    const struct tsr_cuda_context context = {.n_sms = 132, .architecture = 90};
    struct tsr_world *world;
    struct tsr_comms *comms = NULL;
    int version = 0;
    if (has_driver(state))
        skip();
    assert_int_equal(ncclGetVersion(&version), ncclSuccess);
    assert_true(version >= NCCL_VERSION_CODE);
    assert_int_equal(tsr_world_threads(1, 20, &world), TSR_OK);
    const struct tsr_comms_config config = {.world = world, .timeout_s = 20, .force = true};
    assert_int_equal(tsr_comms_nccl(&config, &comms), TSR_OK);
    tsr_status status = tsr_comms_run(comms, &context, &call, 1);
    assert_true(status == TSR_EBACKEND || status == TSR_EPEER);
    assert_non_null(strstr(tsr_error_text(), "NCCL"));
    assert_null(strchr(tsr_error_text(), '\n'));
    comms->ops->destroy(comms);
    world->ops->destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(runtime__no_driver__one_line),
                                       cmocka_unit_test(cublaslt__descriptors__are_made),
                                       cmocka_unit_test(cublaslt__no_driver__one_line),
                                       cmocka_unit_test(cudnn__no_driver__says_why),
                                       cmocka_unit_test(nccl__no_driver__one_line)};
    return cmocka_run_group_tests_name("CUDA: libraries without a driver", tests, NULL, NULL);
}
