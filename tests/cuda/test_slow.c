/* test_slow.c: ways that are many times slower than the usual one are counted and told, and refused
 * in 16 bits unless they are allowed by name: a product without an algorithm, an attention without
 * a plan or without memory for its workspace, a copy of memory that is not pinned. (Graphs:
 * test_graphs.c.)
 */
#define TSR_TEST_CUDA 1
#include "exec/cuda/cudnn/cudnn_attention.h"
#include "exec/cuda/gpu/slow.h"
#include "tests/kernels/kernels_testing.h"
#include "tests/standin/standin.h"

#include <cublasLt.h>

enum { SCRATCH = 256, SIDE = 16 };

static const struct tsr_slow none = {.allowed = 0};

/* Runs the call with these slow ways; its status. */
static tsr_status run(struct test_call *t, struct tsr_slow *slow,
                      struct tsr_cuda_attention *attention)
{
    static unsigned char scratch[SCRATCH];
    const struct tsr_cuda_context context = {.n_sms = test_gpu()->n_sms,
                                             .architecture = test_gpu()->architecture,
                                             .blas = test_blas(),
                                             .attention = attention,
                                             .scratch = scratch,
                                             .scratch_bytes = SCRATCH,
                                             .slow = slow};
    test_make_views(t);
    t->call.context = &context;
    t->call.launch = tsr_cuda_launch_code;
    return tsr_cuda_kernel_of(t->work.name)(&t->call);
}

/* Refused, with a line that says what is allowed; nothing was counted. */
static void is_refused(tsr_status status, const struct tsr_slow *slow, const char *name)
{
    char allow[64];
    (void)snprintf(allow, sizeof allow, "allowed: with --allow-slow %s", name);
    assert_int_equal(status, TSR_EUNSUPPORTED);
    assert_non_null(strstr(tsr_error_text(), allow));
    assert_int_equal(tsr_slow_count(slow), 0);
}

static void is_told(tsr_status status, const struct tsr_slow *slow, const char *words)
{
    char note[512];
    assert_int_equal(status, TSR_OK);
    assert_int_equal(tsr_slow_count(slow), 1);
    tsr_slow_note(slow, note, sizeof note);
    if (!strstr(note, words))
        fail_msg("'%s' has no '%s'", note, words);
}

/* ---- products -------------------------------------------------------------------------------- */

/* A product of SIDE + more, for which cuBLASLt has no algorithm if `lacks`. Each number is another
 * problem, of which no plan is kept. */
static tsr_status multiply(uint8_t dtype, uint64_t more, bool lacks, struct tsr_slow *slow)
{
    struct test_call t;
    uint64_t n = SIDE + more;
    test_open(&t, "mm");
    test_dims(&t, n, n, n, 1);
    int a = test_input(&t, 0, dtype, n * n), b = test_input(&t, 1, dtype, n * n);
    int out = test_output(&t, 3, TSR_F32, n * n);
    test_arg(&t, 1); /* as it lies */
    if (lacks)
        tsr_standin_fail("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
    tsr_status status = run(&t, slow, NULL);
    for (uint64_t i = 0; status == TSR_OK && i < n * n; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < n; k++)
            sum += test_get(&t, a, i / n * n + k) * test_get(&t, b, k * n + i % n);
        test_near(&t, out, i, sum, 64);
    }
    test_close(&t);
    return status;
}

static void products(void **state)
{
    (void)state;
    struct tsr_slow slow = none;
    assert_int_equal(multiply(TSR_F32, 0, false, &slow), TSR_OK);
    assert_int_equal(tsr_slow_count(&slow), 0);
    is_told(multiply(TSR_F32, 8, true, &slow), &slow,
            "slow: 1 products in a plain kernel (first: kernel mm: product (24, 24) x (24, 24) in");
    slow = none;
    is_refused(multiply(TSR_BF16, 16, true, &slow), &slow, "product");
    slow = (struct tsr_slow){.allowed = 1 << TSR_SLOW_PRODUCT};
    is_told(multiply(TSR_BF16, 16, false, &slow), &slow, "products in a plain kernel");
    assert_int_equal(multiply(TSR_BF16, 24, true, NULL), TSR_OK); /* nothing is asked */
}

/* ---- attention ------------------------------------------------------------------------------- */

static tsr_status attend(uint8_t dtype, uint64_t dim, uint64_t workspace, struct tsr_slow *slow)
{
    enum { SEQ = 9, HEADS = 2 };
    const uint64_t dims[] = {1, HEADS, HEADS, SEQ, SEQ, dim};
    char why[TSR_ATTENTION_TEXT];
    struct tsr_cuda_attention *attention;
    struct test_call t;
    tsr_standin_attention(true, workspace);
    assert_int_equal(tsr_attention_create(90, &attention, why), 0);
    slow->has_cudnn = true;
    test_open(&t, "flash_attention");
    memcpy(t.work.dims, dims, sizeof dims);
    t.work.causal = true;
    t.work.constants[0] = 0.3;
    for (unsigned slot = 0; slot < 3; slot++)
        test_fill(&t, test_view(&t, slot, TSR_READ, dtype, SEQ, HEADS * dim, 0), -1, 1);
    test_view(&t, 3, TSR_WRITE, dtype, SEQ, HEADS * dim, 0);
    test_output(&t, 4, TSR_F32, HEADS * SEQ);
    tsr_status status = run(&t, slow, attention);
    test_close(&t);
    tsr_attention_destroy(attention);
    return status;
}

static void attentions(void **state)
{
    (void)state;
    struct tsr_slow slow = none;
    assert_int_equal(attend(TSR_BF16, 16, 0, &slow), TSR_OK); /* cuDNN takes it */
    assert_int_equal(attend(TSR_F32, 16, 0, &slow), TSR_OK);  /* the usual way of 32 bits */
    assert_int_equal(tsr_slow_count(&slow), 0);
    is_refused(attend(TSR_BF16, 12, 0, &slow), &slow, "attention");
    slow.allowed = 1 << TSR_SLOW_ATTENTION;
    is_told(attend(TSR_BF16, 12, 0, &slow), &slow,
            "1 attentions in plain kernels (first: kernel flash_attention: 2 heads of 12 in");
}

static void workspaces(void **state)
{
    (void)state;
    struct tsr_slow slow = none;
    is_refused(attend(TSR_F16, 16, 2 * SCRATCH, &slow), &slow, "scratch");
    slow.allowed = 1 << TSR_SLOW_SCRATCH;
    is_told(attend(TSR_F16, 16, 2 * SCRATCH, &slow), &slow, "a workspace of 512 bytes");
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Copies to the GPU from memory of one kind or the other. */
static tsr_status copy(bool pinned, bool is_half, struct tsr_slow *slow)
{
    enum { BYTES = 512 };
    struct test_call t;
    void *host = NULL, *device = NULL;
    slow->is_half = is_half;
    if (pinned)
        assert_int_equal(cudaHostAlloc(&host, BYTES, cudaHostAllocDefault), cudaSuccess);
    else
        assert_non_null(host = malloc(BYTES));
    assert_int_equal(cudaMalloc(&device, BYTES), cudaSuccess);
    memset(host, 7, BYTES);
    test_open(&t, "h2d_param");
    const struct tsr_view views[] = {
        {.data = host, .bytes = BYTES, .access = TSR_READ},
        {.data = device, .bytes = BYTES, .slot = 1, .access = TSR_WRITE}};
    const struct tsr_cuda_context context = {.n_sms = 4, .architecture = 90, .slow = slow};
    t.call = (struct tsr_kernel_call){
        .work = &t.work, .views = (struct tsr_view *)views, .n_views = 2, .context = &context};
    tsr_status status = tsr_cuda_kernel_of("h2d_param")(&t.call);
    if (status == TSR_OK)
        assert_memory_equal(device, host, BYTES);
    assert_int_equal(cudaFree(device), cudaSuccess);
    if (pinned)
        assert_int_equal(cudaFreeHost(host), cudaSuccess);
    else
        free(host);
    return status;
}

static void copies(void **state)
{
    (void)state;
    struct tsr_slow slow = none;
    assert_int_equal(copy(true, true, &slow), TSR_OK);
    assert_int_equal(tsr_slow_count(&slow), 0);
    is_refused(copy(false, true, &slow), &slow, "copy");
    is_told(copy(false, false, &slow), &slow, "512 bytes of host memory that is not pinned");
}

/* ---- what is allowed, and the note ----------------------------------------------------------- */

static void names(void **state)
{
    (void)state;
    unsigned allowed = 0;
    assert_int_equal(tsr_slow_allow("product,attention,graph,copy,scratch", &allowed), TSR_OK);
    assert_int_equal(allowed, TSR_SLOW_ALL);
    assert_int_equal(tsr_slow_allow("graph", &allowed), TSR_OK);
    assert_int_equal(allowed, 1 << TSR_SLOW_GRAPH);
    static const char *const bad[] = {"", "graphs", "graph,", ",graph", "graph,,copy"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tsr_slow_allow(bad[i], &allowed), TSR_ECONFIG);
        assert_non_null(strstr(tsr_error_text(), "product, attention, graph, copy, scratch"));
    }
    struct tsr_slow slow = none;
    char note[64];
    tsr_slow_note(&slow, note, sizeof note);
    assert_string_equal(note, "");
    for (int i = 0; i < 2 * TSR_SLOW_PATHS; i++)
        assert_int_equal(tsr_slow_take(&slow, (enum tsr_slow_path)(i / 2), "many words"), TSR_OK);
    assert_int_equal(tsr_slow_count(&slow), 2 * TSR_SLOW_PATHS);
    tsr_slow_note(&slow, note, sizeof note); /* cut, not written behind its end */
    assert_int_equal(strlen(note), sizeof note - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(attentions),
                                       cmocka_unit_test(workspaces), cmocka_unit_test(copies),
                                       cmocka_unit_test(names)};
    return cmocka_run_group_tests_name("CUDA: slow ways", tests, NULL, NULL);
}
