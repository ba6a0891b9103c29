/* test_kernels_matmul.c: products of linear layers and batched products of attention against sums
 * in double; those of backward are the slopes of those of forward.
 */
#include <pthread.h>

#include "tests/kernels/kernels_testing.h"

/* sum over p of a(i, p) b(p, j), where a and b are stored transposed or not. */
static double product(const double *a, bool ta, const double *b, bool tb, const uint64_t mnk[3],
                      uint64_t i, uint64_t j)
{
    uint64_t m = mnk[0], n = mnk[1], k = mnk[2];
    double sum = 0;
    for (uint64_t p = 0; p < k; p++)
        sum += a[ta ? p * m + i : i * k + p] * b[tb ? j * k + p : p * n + j];
    return sum;
}

struct kind {
    const char *name;
    uint64_t arg;
    bool ta, tb, swapped; /* swapped: slots 0 and 1 are b and a, and dims n, m, k */
    bool biased, into;
};

static const struct kind kinds[] = {
    {"mm", 0, false, true, false, false, false},
    {"mm", 1, false, false, false, false, false},
    {"addmm", 0, false, true, false, true, false},
    {"addmm", 1, false, false, false, true, false},
    {"mm_weight_grad", 0, true, false, false, false, false},
    {"mm_weight_grad", 1, true, false, true, false, false},
    {"addmm_weight_grad", 0, true, false, false, false, true},
    {"mm_input_grad", 0, false, false, false, false, false},
    {"mm_input_grad", 1, false, true, false, false, false},
    {"addmm_input_grad", 0, false, false, false, false, true},
    {"addmm_input_grad", 1, false, true, false, false, true},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* An operand of rows x columns, sometimes within wider rows. */
static int matrix(struct test_call *t, unsigned slot, unsigned access, uint8_t dtype, uint64_t rows,
                  uint64_t columns, bool view)
{
    int o = test_view(t, slot, access, dtype, rows, columns, view ? columns + 3 : 0);
    if (access & TSR_READ)
        test_fill(t, o, -1, 1);
    return o;
}

/* dtypes: of a, b and out. */
static void check_product(const struct kind *kind, const uint64_t mnk[3], const uint8_t dtypes[3],
                          bool views, uint64_t stride)
{
    struct test_call t;
    uint64_t m = mnk[0], n = mnk[1], k = mnk[2];
    test_open(&t, kind->name);
    test_dims(&t, kind->swapped ? n : m, kind->swapped ? m : n, k, 1);
    if (kind->arg)
        test_arg(&t, kind->arg);
    int a =
        matrix(&t, kind->swapped, TSR_READ, dtypes[0], kind->ta ? k : m, kind->ta ? m : k, views);
    int b =
        matrix(&t, !kind->swapped, TSR_READ, dtypes[1], kind->tb ? n : k, kind->tb ? k : n, views);
    int bias = kind->biased ? test_input(&t, 2, dtypes[2], n) : -1;
    int out = matrix(&t, 3, kind->into ? TSR_READ_WRITE : TSR_WRITE, dtypes[2], m, n, views);
    double *before = test_values(&t, out);
    if (kind->into)
        test_same(&t, 2, TSR_READ, out);
    test_run(&t);
    double *va = test_values(&t, a), *vb = test_values(&t, b);
    for (uint64_t at = 0; at < m * n; at += stride) {
        double want = product(va, kind->ta, vb, kind->tb, mnk, at / n, at % n);
        want += bias >= 0 ? test_get(&t, bias, at % n) : kind->into ? before[at] : 0;
        test_near(&t, out, at, want, 2 + 0.1 * (double)k);
    }
    free(before);
    free(va);
    free(vb);
    test_close(&t);
}

static void products(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS * 4 * 6; i++) {
        uint64_t mnk[3] = {1 + test_below(40), 1 + test_below(40), 1 + test_below(90)};
        uint8_t d = test_floats[i / N_KINDS % 4], dtypes[3] = {d, d, d};
        if (i / N_KINDS / 4 == 1) /* of different types */
            dtypes[1] = TSR_F32;
        if (i / N_KINDS / 4 == 2 && !kinds[i % N_KINDS].into)
            dtypes[2] = TSR_F32;
        if (i / N_KINDS / 4 == 3)
            mnk[test_below(3)] = 1;
        check_product(&kinds[i % N_KINDS], mnk, dtypes, i / N_KINDS / 4 >= 4, 1);
    }
}

/* Sizes beyond a panel in each dimension. */
static void panels(void **state)
{
    (void)state;
    static const uint64_t sizes[3][3] = {{2051, 5, 3}, {4, 4100, 5}, {3, 5, 2060}};
    for (int i = 0; i < N_KINDS * 3; i++)
        check_product(&kinds[i % N_KINDS], sizes[i / N_KINDS],
                      (const uint8_t[]){TSR_BF16, TSR_BF16, TSR_BF16}, false, 7);
}

static void of_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct test_call t;
        uint64_t m = i == 0 ? 0 : 2, n = i == 1 ? 0 : 3, k = i == 2 ? 0 : 4;
        test_open(&t, "addmm");
        test_dims(&t, m, n, k, 1);
        test_input(&t, 0, TSR_BF16, m * k);
        test_input(&t, 1, TSR_BF16, n * k);
        int b = test_input(&t, 2, TSR_BF16, n), y = test_output(&t, 3, TSR_BF16, m * n);
        test_run(&t);
        for (uint64_t at = 0; at < m * n; at++)
            assert_true(test_get(&t, y, at) == test_get(&t, b, at % n));
        test_close(&t);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 10, SIDE = 150 };

struct worker {
    struct test_call t;
    bool failed;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    for (int i = 0; i < ROUNDS; i++)
        w->failed |= tsr_host_kernel("mm")(&w->t.call) != TSR_OK;
    return NULL;
}

/* Streams of several ranks multiply at once: the bits of each are those that it gets alone. */
static void check_threads(uint8_t of_a)
{
    static struct worker w[THREADS + 1];
    pthread_t threads[THREADS];
    for (int i = 0; i <= THREADS; i++) {
        test_open(&w[i].t, "mm");
        test_dims(&w[i].t, SIDE, SIDE, SIDE, 1);
        test_state = 77; /* all the same */
        test_input(&w[i].t, 0, of_a, SIDE * SIDE);
        test_input(&w[i].t, 1, TSR_BF16, SIDE * SIDE);
        test_output(&w[i].t, 3, TSR_F32, SIDE * SIDE);
        test_make_views(&w[i].t);
    }
    work(&w[THREADS]);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i <= THREADS; i++) {
        assert_false(w[i].failed);
        assert_memory_equal(test_place(&w[i].t.operands[2], 0),
                            test_place(&w[THREADS].t.operands[2], 0), 4 * SIDE * SIDE);
    }
    for (int i = 0; i <= THREADS; i++)
        test_close(&w[i].t);
}

static void at_the_same_time(void **state)
{
    (void)state;
    check_threads(TSR_F32);
    check_threads(TSR_BF16);
}

/* ---- heads ----------------------------------------------------------------------------------- */

struct heads {
    uint64_t batch, seq, heads, dim;
    double alpha;
};

static uint64_t token(const struct heads *s, uint64_t b, uint64_t i, uint64_t h, uint64_t d)
{
    return ((b * s->seq + i) * s->heads + h) * s->dim + d;
}

static uint64_t score(const struct heads *s, uint64_t b, uint64_t h, uint64_t i, uint64_t j)
{
    return ((b * s->heads + h) * s->seq + i) * s->seq + j;
}

/* out(b,h,i,j) += alpha x(i) y(j) */
static void outer(const struct heads *s, double alpha, const double *x, const double *y,
                  double *out)
{
    for (uint64_t at = 0; at < s->batch * s->heads * s->seq * s->seq * s->dim; at++) {
        uint64_t d = at % s->dim, j = at / s->dim % s->seq, i = at / s->dim / s->seq % s->seq;
        uint64_t h = at / s->dim / s->seq / s->seq % s->heads;
        uint64_t b = at / s->dim / s->seq / s->seq / s->heads;
        out[score(s, b, h, i, j)] += alpha * x[token(s, b, i, h, d)] * y[token(s, b, j, h, d)];
    }
}

/* out(i) += alpha p(i,j) y(j); turned: out(j) += alpha p(i,j) y(i) */
static void apply(const struct heads *s, double alpha, const double *p, const double *y,
                  bool turned, double *out)
{
    for (uint64_t at = 0; at < s->batch * s->heads * s->seq * s->seq * s->dim; at++) {
        uint64_t d = at % s->dim, j = at / s->dim % s->seq, i = at / s->dim / s->seq % s->seq;
        uint64_t h = at / s->dim / s->seq / s->seq % s->heads;
        uint64_t b = at / s->dim / s->seq / s->seq / s->heads;
        double weight = alpha * p[score(s, b, h, i, j)];
        out[token(s, b, turned ? j : i, h, d)] += weight * y[token(s, b, turned ? i : j, h, d)];
    }
}

enum { SCORES, GRAD_P, VALUES, GRAD_Q, GRAD_K, GRAD_V, N_BMM };

static void check_bmm(int which, const struct heads *s, uint8_t dtype, bool one_head)
{
    static const char *const names[] = {"bmm_scores", "bmm_grad_p", "bmm_values",
                                        "bmm_grad_q", "bmm_grad_k", "bmm_grad_v"};
    bool makes_scores = which <= GRAD_P;
    uint64_t tokens = s->batch * s->seq * s->heads * s->dim;
    uint64_t scores = s->batch * s->heads * s->seq * s->seq;
    struct test_call t;
    test_open(&t, names[which]);
    t.work.constants[0] = s->alpha;
    test_arg(&t, s->batch);
    test_arg(&t, s->seq);
    test_arg(&t, s->heads);
    test_arg(&t, s->dim);
    int a = test_input(&t, 0, dtype, makes_scores || which == GRAD_V ? tokens : scores);
    int b = which == GRAD_V ? test_input(&t, 1, dtype, scores)
                            : test_view(&t, 1, TSR_READ, dtype, s->batch * s->seq,
                                        s->heads * s->dim, one_head ? s->dim : 0);
    test_fill(&t, b, -1, 1);
    int out = test_output(&t, 3, dtype, makes_scores ? scores : tokens);
    test_run(&t);
    double *va = test_values(&t, a), *vb = test_values(&t, b);
    double *want = calloc(t.operands[out].n, sizeof *want);
    assert_non_null(want);
    double alpha = which == GRAD_P || which == VALUES || which == GRAD_V ? 1 : s->alpha;
    if (makes_scores)
        outer(s, alpha, va, vb, want);
    else
        apply(s, alpha, which == GRAD_V ? vb : va, which == GRAD_V ? va : vb, which >= GRAD_K,
              want);
    test_near_all(&t, out, want, 2 + 0.2 * (double)(makes_scores ? s->dim : s->seq));
    free(va);
    free(vb);
    free(want);
    test_close(&t);
}

static void batched(void **state)
{
    (void)state;
    for (int i = 0; i < N_BMM * TEST_FLOATS * 4; i++) {
        struct heads s = {1 + test_below(2), 1 + test_below(20), 1 + test_below(3),
                          1 + test_below(9), 0.3};
        if (i >= N_BMM * TEST_FLOATS * 3) /* more than a block of queries */
            s = (struct heads){1, 130, 2, 3, 0.5};
        check_bmm(i % N_BMM, &s, test_floats[i / N_BMM % 4], i % 7 == 0);
    }
}

int main(void)
{
    assert_int_equal(tsr_kernels_init(), TSR_OK);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products), cmocka_unit_test(panels), cmocka_unit_test(of_nothing),
        cmocka_unit_test(at_the_same_time), cmocka_unit_test(batched)};
    return cmocka_run_group_tests_name("kernels: products", tests, NULL, NULL);
}
