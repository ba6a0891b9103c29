/* test_blas.c: products by cuBLASLt: what is row-major here is column-major there; which algorithm
 * is taken; what fails. The file of plans: test_blas_plans.c.
 */
#include <cublasLt.h>

#include "tests/cuda/blas_testing.h"

static const uint8_t types[][2] = {
    {TSR_F32, TSR_F32},  {TSR_BF16, TSR_BF16}, {TSR_F16, TSR_F16},
    {TSR_BF16, TSR_F32}, {TSR_F16, TSR_F32},   {TSR_F64, TSR_F64},
};
enum { N_TYPES = sizeof types / sizeof *types };

static void products(void **state)
{
    (void)state;
    struct blas_test t;
    blas_open(&t, NULL, false, false);
    for (int i = 0; i < N_TYPES * 4 * 12; i++) {
        struct blas_case c;
        int way = i / N_TYPES % 4, turn = i / N_TYPES / 4;
        const uint8_t *type = types[i % N_TYPES];
        uint64_t mnk[3] = {1 + test_below(30), 1 + test_below(30), 1 + test_below(30)};
        bool biased = type[0] != TSR_F64 && turn % 3 == 1;
        blas_case(&c, mnk, turn % 4 == 3 ? 3 : 1, way & 1, way & 2, type[0], type[1], biased,
                  turn % 3 == 2 ? 1 : 0, turn % 2 ? 3 : 0);
        assert_int_equal(blas_run(&t, &c), TSR_OK);
        blas_check(&c);
        blas_case_close(&c);
    }
    blas_close(&t);
}

/* One matrix for all of the batch, as of a head that many heads read. */
static void repeated(void **state)
{
    (void)state;
    struct blas_test t;
    struct blas_case c;
    blas_open(&t, NULL, false, false);
    blas_case(&c, (uint64_t[]){7, 9, 5}, 4, false, true, TSR_BF16, TSR_BF16, false, 0, 0);
    c.gemm.step_b = c.b.step = 0;
    assert_int_equal(blas_run(&t, &c), TSR_OK);
    blas_check(&c);
    blas_case_close(&c);
    blas_close(&t);
}

/* Addresses decide, too: a plan for aligned operands is not taken for others. */
static void alignments(void **state)
{
    (void)state;
    struct blas_test t;
    blas_open(&t, NULL, false, true);
    for (int i = 0; i < 32; i++) {
        struct blas_case c;
        blas_case(&c, (uint64_t[]){8, 8, 8}, 1, false, true, TSR_BF16, TSR_BF16, i >= 24, 0, 0);
        uint64_t shift = UINT64_C(2) << i % 8;
        struct blas_matrices *x = i < 8 ? &c.a : i < 16 ? &c.b : i < 24 ? &c.out : &c.bias;
        unsigned char *memory = x->memory;
        memmove(memory + shift, memory, x->step * 2);
        x->memory += shift;
        c.gemm.a = c.a.memory;
        c.gemm.b = c.b.memory;
        c.gemm.out = c.out.memory;
        c.gemm.bias = i < 24 ? NULL : c.bias.memory;
        assert_int_equal(blas_run(&t, &c), TSR_OK);
        blas_check(&c);
        x->memory = memory;
        blas_case_close(&c);
    }
    blas_close(&t);
}

static void refused(void **state)
{
    (void)state;
    static const uint8_t wrong[][2] = {
        {TSR_F32, TSR_BF16}, {TSR_BF16, TSR_F16}, {TSR_F64, TSR_F32}, {TSR_I64, TSR_I64}};
    struct blas_test t;
    blas_open(&t, NULL, false, false);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct blas_case c;
        blas_case(&c, (uint64_t[]){4, 4, 4}, 1, false, false, wrong[i][0], wrong[i][1], false, 0,
                  0);
        assert_int_equal(blas_run(&t, &c), TSR_EUNSUPPORTED);
        blas_case_close(&c);
    }
    blas_close(&t);
}

/* ---- which algorithm ------------------------------------------------------------------------- */

static unsigned algorithm_of(struct blas_test *t, uint8_t dtype, uint8_t out, double beta)
{
    struct blas_case c;
    blas_case(&c, (uint64_t[]){16, 16, 16}, 1, false, true, dtype, out, false, beta, 0);
    assert_int_equal(blas_run(t, &c), TSR_OK);
    blas_check(&c);
    unsigned algorithm = tsr_standin_algorithm();
    blas_case_close(&c);
    return algorithm;
}

/* The fastest is taken, once for a problem; adding to a result adds once, whatever is tried. */
static void fastest(void **state)
{
    (void)state;
    struct blas_test t;
    blas_open(&t, NULL, false, true);
    tsr_standin_slow_algorithms(2);
    assert_int_equal(algorithm_of(&t, TSR_F32, TSR_F32, 1), 2);
    tsr_standin_slow_algorithms(0);
    uint64_t asked = blas_calls("cublasLtMatmulAlgoGetHeuristic");
    uint64_t waited = blas_calls("cudaEventSynchronize");
    assert_true(asked > 0 && waited > 0);
    assert_int_equal(algorithm_of(&t, TSR_F32, TSR_F32, 1), 2);
    assert_int_equal(blas_calls("cublasLtMatmulAlgoGetHeuristic"), asked);
    assert_int_equal(blas_calls("cudaEventSynchronize"), waited);
    assert_string_equal(tsr_blas_note(t.blas), "");
    blas_close(&t);
}

/* What adds takes the algorithm of what does not, and no memory for a second result. */
static void adding(void **state)
{
    (void)state;
    struct blas_test t;
    blas_open(&t, NULL, false, true);
    tsr_standin_slow_algorithms(2);
    assert_int_equal(algorithm_of(&t, TSR_F32, TSR_F32, 0), 2);
    tsr_standin_slow_algorithms(1);
    uint64_t waited = blas_calls("cudaEventSynchronize");
    assert_int_equal(algorithm_of(&t, TSR_F32, TSR_F32, 1), 2);
    assert_int_equal(blas_calls("cudaEventSynchronize"), waited);
    algorithm_of(&t, TSR_BF16, TSR_F32, 1); /* nothing that is alike was timed */
    assert_true(blas_calls("cudaEventSynchronize") > waited);
    tsr_standin_slow_algorithms(0);
    blas_close(&t);
}

/* Sums of 16 bits are rounded once: no parts are added in place. Nor with `deterministic`. */
static void reductions(void **state)
{
    (void)state;
    struct blas_test t;
    tsr_standin_slow_algorithms(2);
    blas_open(&t, NULL, false, true);
    assert_true(algorithm_of(&t, TSR_BF16, TSR_BF16, 0) < 2);
    assert_int_equal(algorithm_of(&t, TSR_BF16, TSR_F32, 0), 2);
    blas_close(&t);
    blas_open(&t, NULL, true, true);
    assert_true(algorithm_of(&t, TSR_BF16, TSR_F32, 0) < 2);
    assert_true(algorithm_of(&t, TSR_F32, TSR_F32, 0) < 2);
    blas_close(&t);
    tsr_standin_slow_algorithms(0);
}

/* Without tuning: the library's first, and nobody waits for the stream. */
static void first(void **state)
{
    (void)state;
    struct blas_test t;
    tsr_standin_slow_algorithms(1);
    blas_open(&t, NULL, false, false);
    uint64_t waited = blas_calls("cudaEventSynchronize");
    assert_int_equal(algorithm_of(&t, TSR_F32, TSR_F32, 0), 0);
    assert_int_equal(blas_calls("cudaEventSynchronize"), waited);
    blas_close(&t);
    tsr_standin_slow_algorithms(0);
}

/* A workspace that is too small leaves algorithms out; without any, there is still one. */
static void workspaces(void **state)
{
    (void)state;
    struct blas_test t;
    tsr_standin_slow_algorithms(1);
    blas_open(&t, NULL, false, true);
    t.context.scratch_bytes = 4095;
    assert_int_equal(algorithm_of(&t, TSR_BF16, TSR_BF16, 0), 0);
    t.context.scratch_bytes = BLAS_SCRATCH;
    assert_int_equal(algorithm_of(&t, TSR_BF16, TSR_BF16, 0), 1);
    void *scratch = t.context.scratch;
    t.context.scratch = NULL;
    assert_int_equal(algorithm_of(&t, TSR_F32, TSR_F32, 0), 0);
    t.context.scratch = scratch;
    blas_close(&t);
    tsr_standin_slow_algorithms(0);
}

/* No memory for a second result: not timed, and said so. */
static void no_memory(void **state)
{
    (void)state;
    struct blas_test t;
    struct blas_case c;
    blas_open(&t, NULL, false, true);
    blas_case(&c, (uint64_t[]){16, 16, 16}, 1, false, true, TSR_F32, TSR_F32, false, 1, 0);
    tsr_standin_fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
    assert_int_equal(blas_run(&t, &c), TSR_OK);
    assert_true(tsr_standin_failed());
    blas_check(&c);
    assert_non_null(strstr(tsr_blas_note(t.blas), "1 matrix products run cuBLASLt's first choice"));
    blas_case_close(&c);
    blas_close(&t);
}

/* While a stream is captured nobody can wait for it: the library's first choice, and the graph that
 * comes of it is right. Said once; and it stays that, so that graph and direct launches agree. */
static void captured(void **state)
{
    (void)state;
    struct blas_test t;
    struct blas_case c;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    tsr_standin_slow_algorithms(1);
    blas_open(&t, NULL, false, true);
    blas_case(&c, (uint64_t[]){16, 16, 16}, 1, false, true, TSR_F32, TSR_F32, false, 0, 0);
    uint64_t waited = blas_calls("cudaEventSynchronize");
    assert_int_equal(cudaStreamBeginCapture(t.context.stream, cudaStreamCaptureModeThreadLocal), 0);
    assert_int_equal(tsr_blas_run(t.blas, &t.context, &c.gemm), TSR_OK);
    assert_int_equal(cudaStreamEndCapture(t.context.stream, &graph), 0);
    assert_int_equal(tsr_standin_algorithm(), 0);
    assert_int_equal(blas_calls("cudaEventSynchronize"), waited);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
    assert_int_equal(cudaGraphLaunch(exec, t.context.stream), 0);
    assert_int_equal(cudaStreamSynchronize(t.context.stream), 0);
    blas_check(&c);
    assert_int_equal(blas_run(&t, &c), TSR_OK);
    assert_int_equal(tsr_standin_algorithm(), 0);
    assert_non_null(strstr(tsr_blas_note(t.blas), "1 matrix products run cuBLASLt's first choice"));
    assert_int_equal(cudaGraphExecDestroy(exec), 0);
    assert_int_equal(cudaGraphDestroy(graph), 0);
    blas_case_close(&c);
    blas_close(&t);
    tsr_standin_slow_algorithms(0);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Whatever call fails: an error with a text, or a right result; and the next call is right. */
static void failures(void **state)
{
    (void)state;
    static const char *const entries[] = {"cublasLtMatrixLayoutInit",
                                          "cublasLtMatrixLayoutSetAttribute",
                                          "cublasLtMatmulDescInit",
                                          "cublasLtMatmulDescSetAttribute",
                                          "cublasLtMatmulPreferenceInit",
                                          "cublasLtMatmulPreferenceSetAttribute",
                                          "cublasLtMatmulAlgoGetHeuristic",
                                          "cublasLtMatmul",
                                          "cudaEventCreateWithFlags",
                                          "cudaEventRecord",
                                          "cudaEventSynchronize",
                                          "cudaEventElapsedTime",
                                          "cudaMemsetAsync",
                                          "cudaMalloc",
                                          "cudaStreamIsCapturing"};
    unsigned n_failed = 0;
    for (size_t e = 0; e < sizeof entries / sizeof *entries; e++)
        for (uint64_t n = 1; n <= 8; n++) {
            struct blas_test t;
            struct blas_case c;
            blas_open(&t, NULL, false, true);
            blas_case(&c, (uint64_t[]){5, 6, 7}, 2, false, true, TSR_BF16, TSR_F32, true, 1, 0);
            tsr_standin_fail(entries[e], n, 13);
            tsr_status status = blas_run(&t, &c);
            n_failed += tsr_standin_failed();
            tsr_standin_fail("", 0, 0);
            if (status != TSR_OK)
                assert_non_null(strstr(tsr_error_text(), "cuBLASLt"));
            else
                blas_check(&c);
            assert_int_equal(blas_run(&t, &c), TSR_OK);
            blas_check(&c);
            blas_case_close(&c);
            blas_close(&t);
        }
    assert_true(n_failed > 60);
    struct tsr_blas *blas;
    const struct tsr_cuda_gpu gpu = {.n_sms = 4};
    const struct tsr_blas_config config = {.gpu = &gpu};
    tsr_standin_fail("cublasLtCreate", 1, CUBLAS_STATUS_NOT_INITIALIZED);
    assert_int_equal(tsr_blas_create(&config, &blas), TSR_EBACKEND);
    assert_null(blas);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),   cmocka_unit_test(repeated), cmocka_unit_test(alignments),
        cmocka_unit_test(refused),    cmocka_unit_test(fastest),  cmocka_unit_test(adding),
        cmocka_unit_test(reductions), cmocka_unit_test(first),    cmocka_unit_test(workspaces),
        cmocka_unit_test(no_memory),  cmocka_unit_test(captured), cmocka_unit_test(failures)};
    return cmocka_run_group_tests_name("cuBLASLt: products", tests, NULL, NULL);
}
