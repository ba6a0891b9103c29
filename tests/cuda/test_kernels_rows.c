/* test_kernels_rows.c: kernels of the GPU that work row by row, in every shape of their work: lanes
 * of a warp, a block, more threads for a vocabulary; rows that are kept and rows that are read
 * again; whole words and torn ones; many chunks. The results are the host's, up to the order of
 * sums.
 */
#define TSR_TEST_CUDA 1
#include "tests/kernels/kernels_testing.h"

struct shape {
    uint64_t rows, columns;
};
static const struct shape shapes[] = {
    {300, 64},   /* several rows in a warp */
    {5, 136},    /* half of a warp */
    {3, 1024},   /* a warp */
    {7, 1537},   /* a block, odd rows */
    {3, 4096},   /* a block, kept */
    {2, 6144},   /* 48 KiB of shared memory for a gradient in f32 */
    {2, 12288},  /* the same forward */
    {2, 12344},  /* a part is read again */
    {4, 16411},  /* 1024 threads, odd rows */
    {1, 20480},  /* 1024 threads */
    {900, 1032}, /* gradients: several rows one after the other in a block */
    {0, 520},    /* nothing */
};
/* Vocabularies, where no norm is: GPT-2's, padded; GPT-2's, whose second row lies at an odd
 * address; Llama 3's. */
static const struct shape vocabularies[] = {{1, 50304}, {2, 50257}, {1, 128256}};
enum { SHAPES = sizeof shapes / sizeof *shapes, VOCABULARIES = 3 };

/* Shape number i / each. A vocabulary is large: of those with even rows every second case is left
 * out; odd rows have all of them, in each dtype. */
static bool is_case(int i, int each, struct shape *out)
{
    int n = i / each - SHAPES;
    *out = n < 0 ? shapes[i / each] : vocabularies[n];
    return n < 0 || n == 1 || i % 2 == 0;
}

/* What the host makes of the operands, in all of their memory; then they are as before. */
static void host_results(struct test_call *t, unsigned char **results)
{
    test_make_views(t);
    t->call.launch = NULL;
    assert_int_equal(tsr_host_kernel(t->work.name)(&t->call), TSR_OK);
    for (int i = 0; i < t->n; i++) {
        struct test_operand *o = &t->operands[i];
        size_t bytes = o->bytes + 2 * TEST_GUARD;
        results[i] = malloc(bytes);
        assert_non_null(results[i]);
        memcpy(results[i], o->block, bytes);
    }
    for (int i = 0; i < t->n; i++) {
        struct test_operand *o = &t->operands[i];
        memcpy(o->block, o->before, o->bytes + 2 * TEST_GUARD);
    }
}

/* Runs on both; results differ by rounding and by `scale` of what is added up. */
static void same_as_host(struct test_call *t, double scale)
{
    unsigned char *host[TEST_OPERANDS];
    host_results(t, host);
    assert_non_null(test_kernel(t));
    if (test_try(t) != TSR_OK)
        fail_msg("%s: %s", t->work.name, tsr_error_text());
    for (int i = 0; i < t->n; i++) {
        const struct test_operand *o = &t->operands[i];
        for (uint64_t k = 0; k < o->n && o->access & TSR_WRITE && !o->scratch; k++) {
            double want = test_read(host[i] + (test_place(o, k) - o->block), o->dtype);
            double apart = 2 * test_precision(o->dtype) * fabs(want);
            double got = test_get(t, i, k);
            if (!(fabs(got - want) <= apart + 1e-6 * scale))
                fail_msg("%s of %llu columns: slot %u[%llu] is %.9g, the host's %.9g", t->work.name,
                         (unsigned long long)t->work.dims[1], o->slot, (unsigned long long)k, got,
                         want);
        }
        free(host[i]);
    }
}

static const uint8_t storage[] = {TSR_BF16, TSR_F32};

/* Rows at an odd address, or with something between them, now and then. */
static int rows_of(struct test_call *t, unsigned slot, unsigned access, uint8_t dtype,
                   struct shape s, uint64_t more)
{
    int o = test_view(t, slot, access, dtype, s.rows, s.columns, more ? s.columns + more : 0);
    if (access & TSR_READ)
        test_fill(t, o, -2, 2);
    return o;
}

static void norms(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES * 4; i++) {
        struct shape s = shapes[i / 4];
        bool layer = i % 2;
        uint8_t dtype = storage[i / 2 % 2];
        struct test_call t;
        test_open(&t, layer ? "fused_add_layer_norm" : "rms_norm");
        test_dims(&t, s.rows, s.columns, 0, 0);
        t.work.constants[0] = 1e-5;
        rows_of(&t, 0, TSR_READ, dtype, s, i % 3 ? 0 : 1);
        if (layer)
            rows_of(&t, 1, TSR_READ, dtype, s, 0);
        test_input(&t, layer ? 2 : 1, TSR_F32, s.columns);
        if (layer)
            test_input(&t, 3, dtype, s.columns);
        if (layer)
            rows_of(&t, 4, TSR_WRITE, dtype, s, 0);
        rows_of(&t, layer ? 5 : 3, TSR_WRITE, dtype, s, 0);
        if (layer)
            test_output(&t, 6, TSR_F32, s.rows);
        test_output(&t, layer ? 7 : 4, TSR_F32, s.rows);
        same_as_host(&t, 10);
        test_close(&t);
    }
}

static void gradients_of_norms(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES * 4; i++) {
        struct shape s = shapes[i / 4];
        bool layer = i % 2;
        uint8_t dtype = storage[i / 2 % 2];
        struct test_call t;
        test_open(&t, layer ? "layer_norm_backward" : "rms_norm_backward");
        test_dims(&t, s.rows, s.columns, 0, 0);
        int g = rows_of(&t, 0, TSR_READ_WRITE, dtype, s, 0);
        t.operands[g].access = TSR_READ;
        rows_of(&t, 1, TSR_READ, dtype, s, i % 3 ? 0 : 1);
        test_input(&t, 2, storage[i / 4 % 2], s.columns);
        test_same(&t, 3, TSR_WRITE, g);
        test_output(&t, 4, TSR_F32, s.columns);
        if (layer)
            test_output(&t, 5, TSR_F32, s.columns);
        if (layer)
            test_input(&t, 6, TSR_F32, s.rows);
        int rstd = test_input(&t, layer ? 7 : 6, TSR_F32, s.rows);
        test_fill(&t, rstd, 0.5, 2);
        same_as_host(&t, 100);
        test_close(&t);
    }
}

static void exponentials(void **state)
{
    static const char *const names[] = {"softmax", "log_softmax", "row_max"};
    (void)state;
    for (int i = 0; i < (SHAPES + VOCABULARIES) * 6; i++) {
        struct shape s;
        if (!is_case(i, 6, &s))
            continue;
        struct test_call t;
        test_open(&t, names[i % 3]);
        test_dims(&t, s.rows, s.columns, 0, 0);
        rows_of(&t, 0, TSR_READ, storage[i / 3 % 2], s, i % 4 ? 0 : 8);
        if (i % 3 == 2)
            test_output(&t, 2, TSR_F32, s.rows);
        else
            rows_of(&t, 1, TSR_WRITE, storage[i % 2], s, 0);
        if (i % 3 == 0)
            test_arg(&t, i / 3 % 2); /* causal */
        same_as_host(&t, 5);
        test_close(&t);
    }
}

static void cross_entropy(void **state)
{
    (void)state;
    for (int i = 0; i < (SHAPES + VOCABULARIES) * 4; i++) {
        struct shape s;
        if (!is_case(i, 4, &s))
            continue;
        struct test_call t;
        test_open(&t, "fused_cross_entropy");
        int x = rows_of(&t, 0, TSR_READ, storage[i % 2], s, 0);
        int labels = test_tensor(&t, 1, TSR_READ, TSR_I64, s.rows);
        for (uint64_t row = 0; row < s.rows; row++)
            test_set(&t, labels, row, row % 4 == 3 ? -100 : (double)test_below(s.columns));
        test_set(&t, test_tensor(&t, 2, TSR_READ, TSR_F32, 1), 0, 3);
        test_output(&t, 3, TSR_F32, 1);
        if (i / 2 % 2)
            test_same(&t, 4, TSR_WRITE, x);
        else
            rows_of(&t, 4, TSR_WRITE, storage[i % 2], s, 0);
        if (i % 3)
            test_scratch(&t, 5, TSR_F32, s.rows);
        same_as_host(&t, 10);
        test_close(&t);
    }
}

static void sums(void **state)
{
    static const struct shape wide[] = {{1, 1}, {3000, 40}, {700, 257}, {65, 2304}, {0, 300}};
    (void)state;
    for (int i = 0; i < 10; i++) {
        struct shape s = wide[i / 2];
        struct test_call t;
        test_open(&t, "sum_bias_grad");
        test_dims(&t, s.rows, s.columns, 0, 0);
        rows_of(&t, 0, TSR_READ, storage[i % 2], s, 0);
        test_output(&t, 3, TSR_F32, s.columns);
        same_as_host(&t, 200);
        test_close(&t);
    }
}

/* Short ones, empty ones, some of several chunks, and norms of gradients that are not there. */
static void list_of_norms(void **state)
{
    (void)state;
    enum { EACH = 20 };
    static const uint64_t sizes[EACH] = {1, 0, 7, 8, 70001, 200000, 3};
    struct test_call t;
    test_open(&t, "foreach_norm");
    for (int i = 0; i < EACH; i++)
        test_input(&t, 0, i % 2 ? TSR_BF16 : TSR_F32, sizes[i % 7] + (uint64_t)i / 7);
    for (int i = 0; i < EACH; i++)
        test_arg(&t, i % 3 ? test_scale_bits(0.3f) : 0);
    for (int i = 0; i < EACH + 2; i++)
        test_output(&t, 6, TSR_F32, 1);
    same_as_host(&t, 10);
    test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),        cmocka_unit_test(gradients_of_norms),
        cmocka_unit_test(exponentials), cmocka_unit_test(cross_entropy),
        cmocka_unit_test(sums),         cmocka_unit_test(list_of_norms),
    };
    return cmocka_run_group_tests_name("CUDA: rows", tests, NULL, NULL);
}
