/* test_kernels_loss.c: cross entropy as eager PyTorch composes it, in chunks, and with a vocabulary
 * cut over ranks; means of squares. Against double and central differences.
 */
#include "tests/kernels/kernels_testing.h"

/* Labels of which about every fourth is ignored, and (if `all`) every one. */
static int labels(struct test_call *t, unsigned slot, uint64_t rows, uint64_t words, bool all)
{
    int o = test_tensor(t, slot, TSR_READ, TSR_I64, rows);
    for (uint64_t i = 0; i < rows; i++)
        test_set(t, o, i, all || test_below(4) == 0 ? -100 : (double)test_below(words));
    return o;
}

static double log_sum(const double *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += exp(x[i]);
    return log(sum);
}

/* Mean of -log softmax(x)[label] over the labels that count; *n: how many. */
static double cross_entropy(const double *x, const double *label, uint64_t rows, uint64_t words,
                            double *n)
{
    double sum = 0;
    *n = 0;
    for (uint64_t r = 0; r < rows; r++)
        if (label[r] >= 0) {
            sum += log_sum(x + r * words, words) - x[r * words + (uint64_t)label[r]];
            *n += 1;
        }
    return sum / *n; /* NaN without any label */
}

/* ---- log-softmax ----------------------------------------------------------------------------- */

static void log_softmax(void **state)
{
    (void)state;
    for (int k = 0; k < TEST_FLOATS * 4; k++) {
        uint64_t rows = 1 + test_below(4), words = k < 4 ? 1 : 1 + test_below(900);
        uint8_t dtype = test_floats[k % 4];
        struct test_call t;
        test_open(&t, "log_softmax");
        test_dims(&t, rows, words, 0, 0);
        int x = test_view(&t, 0, TSR_READ, dtype, rows, words, k % 3 ? words + 2 : 0);
        test_fill(&t, x, -9, 9);
        int y = test_output(&t, 1, dtype == TSR_F64 ? TSR_F64 : TSR_F32, rows * words);
        test_run(&t);
        double *v = test_values(&t, x);
        for (uint64_t i = 0; i < rows * words; i++)
            test_near(&t, y, i, v[i] - log_sum(v + i / words * words, words), 20);
        free(v);
        test_close(&t);
    }
}

static void log_softmax_backward(void **state)
{
    (void)state;
    for (int k = 0; k < TEST_FLOATS * 3; k++) {
        uint64_t rows = 1 + test_below(4), words = 1 + test_below(700);
        struct test_call t;
        test_open(&t, "log_softmax_backward");
        test_dims(&t, rows, words, 0, 0);
        int g = test_input(&t, 0, test_floats[k % 4], rows * words);
        int y = test_input(&t, 1, test_floats[k % 4], rows * words);
        test_fill(&t, y, -9, 0);
        int out = test_output(&t, 2, test_floats[k % 4], rows * words);
        test_run(&t);
        for (uint64_t i = 0; i < rows * words; i++) {
            double sum = 0;
            for (uint64_t c = i / words * words; c < (i / words + 1) * words; c++)
                sum += test_get(&t, g, c);
            test_near(&t, out, i, test_get(&t, g, i) - exp(test_get(&t, y, i)) * sum, 50);
        }
        test_close(&t);
    }
}

/* ---- the whole loss -------------------------------------------------------------------------- */

struct problem {
    uint64_t rows, words;
    double *x, *label, *p; /* logits, labels, log-probabilities */
    double loss, count;
};

static struct problem problem_open(uint64_t rows, uint64_t words, bool all_ignored)
{
    struct problem k = {.rows = rows, .words = words};
    struct test_call t;
    test_open(&t, "none");
    k.x = test_values(&t, test_input(&t, 0, TSR_F32, rows * words));
    k.label = test_values(&t, labels(&t, 1, rows, words, all_ignored));
    k.p = calloc(rows * words, sizeof *k.p);
    assert_non_null(k.p);
    for (uint64_t i = 0; i < rows * words; i++)
        k.p[i] = k.x[i] - log_sum(k.x + i / words * words, words);
    k.loss = cross_entropy(k.x, k.label, rows, words, &k.count);
    test_close(&t);
    return k;
}

static void problem_close(struct problem *k)
{
    free(k->x);
    free(k->label);
    free(k->p);
}

static int given(struct test_call *t, unsigned slot, uint8_t dtype, uint64_t n, const double *x)
{
    int o = test_tensor(t, slot, TSR_READ, dtype, n);
    test_set_all(t, o, x);
    return o;
}

static void nll_loss(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        struct problem k = problem_open(1 + test_below(20), 1 + test_below(50), i % 10 == 0);
        struct test_call t;
        test_open(&t, "nll_loss");
        given(&t, 0, TSR_F32, k.rows * k.words, k.p);
        int label = given(&t, 1, TSR_I64, k.rows, k.label);
        int loss = test_output(&t, 2, TSR_F32, 1), weight = test_output(&t, 3, TSR_F32, 1);
        test_run(&t);
        test_near(&t, loss, 0, k.loss, 5);
        assert_true(test_get(&t, weight, 0) == k.count);
        test_set(&t, label, 0, (double)k.words);
        test_bad_label(&t, loss);
        test_close(&t);
        test_open(&t, "count_labels");
        given(&t, 0, TSR_I64, k.rows, k.label);
        weight = test_output(&t, 1, TSR_F32, 1);
        test_run(&t);
        assert_true(test_get(&t, weight, 0) == k.count);
        test_close(&t);
        problem_close(&k);
    }
}

/* Slope of the loss in logit i; 0 of a loss without labels. */
static double slope(const struct problem *k, uint64_t i)
{
    double x = k->x[i], n, high, low;
    k->x[i] = x + TEST_STEP;
    high = cross_entropy(k->x, k->label, k->rows, k->words, &n);
    k->x[i] = x - TEST_STEP;
    low = cross_entropy(k->x, k->label, k->rows, k->words, &n);
    k->x[i] = x;
    return n > 0 ? (high - low) / (2 * TEST_STEP) : 0;
}

/* nll_loss_backward and log_softmax_backward, and what does both at once. */
static void backward(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct problem k = problem_open(2 + test_below(6), 1 + test_below(20), false);
        uint64_t n = k.rows * k.words;
        const double one = 1, count = k.count > 0 ? k.count : 1;
        struct test_call t;
        test_open(&t, "nll_loss_backward");
        test_dims(&t, k.rows, k.words, 0, 0);
        given(&t, 0, TSR_F32, 1, &one);
        given(&t, 1, TSR_I64, k.rows, k.label);
        given(&t, 2, TSR_F32, 1, &count);
        double *g = NULL;
        int out = test_output(&t, 3, TSR_F32, n);
        test_run(&t);
        g = test_values(&t, out);
        test_close(&t);
        test_open(&t, "log_softmax_backward");
        test_dims(&t, k.rows, k.words, 0, 0);
        given(&t, 0, TSR_F32, n, g);
        given(&t, 1, TSR_F32, n, k.p);
        out = test_output(&t, 2, TSR_F32, n);
        test_run(&t);
        for (uint64_t e = 0; e < n; e++)
            test_near(&t, out, e, slope(&k, e), 5);
        test_close(&t);
        test_open(&t, "cross_entropy_backward");
        int p = test_tensor(&t, 0, TSR_READ_WRITE, TSR_F32, n);
        test_set_all(&t, p, k.p);
        given(&t, 1, TSR_I64, k.rows, k.label);
        given(&t, 2, TSR_F32, 1, &count);
        out = i % 2 ? test_same(&t, 3, TSR_WRITE, p) : test_output(&t, 3, TSR_F32, n);
        test_run(&t);
        for (uint64_t e = 0; e < n; e++)
            test_near(&t, out, e, slope(&k, e), 5);
        test_close(&t);
        free(g);
        problem_close(&k);
    }
}

/* Losses of chunks, each divided by the number of all labels, add up to the loss. */
static void chunks(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct problem k = problem_open(9, 11, i == 0);
        double sum = 0;
        for (uint64_t from = 0; from < k.rows; from += 4) {
            uint64_t rows = k.rows - from < 4 ? k.rows - from : 4;
            struct test_call t;
            test_open(&t, "nll_loss_part");
            given(&t, 0, TSR_F32, rows * k.words, k.p + from * k.words);
            given(&t, 1, TSR_I64, rows, k.label + from);
            given(&t, 2, TSR_F32, 1, &k.count);
            int loss = test_output(&t, 3, TSR_F32, 1);
            test_run(&t);
            sum += test_get(&t, loss, 0);
            test_close(&t);
        }
        assert_true(isnan(k.loss) ? isnan(sum) : fabs(sum - k.loss) < 1e-5);
        problem_close(&k);
    }
}

/* ---- a vocabulary over two ranks ------------------------------------------------------------- */

enum { ROWS = 7, WORDS = 13, CUT = 6 };

struct half {
    uint64_t first, n;
    double x[ROWS * WORDS];
};

static struct half half_of(const struct problem *k, int which)
{
    struct half h = {.first = which ? CUT : 0, .n = which ? WORDS - CUT : CUT};
    for (uint64_t i = 0; i < ROWS * h.n; i++)
        h.x[i] = k->x[i / h.n * WORDS + h.first + i % h.n];
    return h;
}

/* Runs `row_max` (max NULL) or `row_exp_sum` of a half. */
static void row_of_half(const struct half *h, const double *max, double *out)
{
    struct test_call t;
    test_open(&t, max ? "row_exp_sum" : "row_max");
    test_dims(&t, ROWS, h->n, 0, 0);
    given(&t, 0, TSR_F32, ROWS * h->n, h->x);
    if (max)
        given(&t, 1, TSR_F32, ROWS, max);
    int y = test_output(&t, 2, TSR_F32, ROWS);
    test_run(&t);
    for (uint64_t i = 0; i < ROWS; i++)
        out[i] = test_get(&t, y, i);
    test_close(&t);
}

/* Log-probabilities of a half in place of its logits, and those of its labels. */
static void finish_half(struct half *h, const double *max, const double *sum, const double *label,
                        double *gathered)
{
    struct test_call t;
    test_open(&t, "log_softmax_tp");
    test_dims(&t, ROWS, h->n, 0, 0);
    given(&t, 0, TSR_F32, ROWS * h->n, h->x);
    given(&t, 1, TSR_F32, ROWS, max);
    given(&t, 2, TSR_F32, ROWS, sum);
    int y = test_output(&t, 3, TSR_F32, ROWS * h->n);
    test_run(&t);
    for (uint64_t i = 0; i < ROWS * h->n; i++)
        h->x[i] = test_get(&t, y, i);
    test_close(&t);
    test_open(&t, "nll_gather");
    test_arg(&t, h->first);
    test_arg(&t, h->n);
    given(&t, 0, TSR_F32, ROWS * h->n, h->x);
    given(&t, 1, TSR_I64, ROWS, label);
    y = test_output(&t, 2, TSR_F32, ROWS);
    test_run(&t);
    for (uint64_t i = 0; i < ROWS; i++)
        gathered[i] += test_get(&t, y, i);
    test_close(&t);
}

static void check_half_backward(const struct problem *k, const struct half *h)
{
    const double g = 0.5, count = k->count > 0 ? k->count : 1;
    struct test_call t;
    test_open(&t, "nll_backward_tp");
    test_arg(&t, h->first);
    test_arg(&t, h->n);
    given(&t, 0, TSR_F32, 1, &g);
    given(&t, 1, TSR_I64, ROWS, k->label);
    given(&t, 2, TSR_F32, 1, &count);
    given(&t, 3, TSR_F32, ROWS * h->n, h->x);
    int y = test_output(&t, 4, TSR_F32, ROWS * h->n);
    test_run(&t);
    for (uint64_t i = 0; i < ROWS * h->n; i++)
        test_near(&t, y, i, g * slope(k, i / h->n * WORDS + h->first + i % h->n), 5);
    test_close(&t);
}

static void cut_vocabulary(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct problem k = problem_open(ROWS, WORDS, i == 0);
        struct half h[2] = {half_of(&k, 0), half_of(&k, 1)};
        double max[2][ROWS], sum[2][ROWS], gathered[ROWS] = {0};
        row_of_half(&h[0], NULL, max[0]);
        row_of_half(&h[1], NULL, max[1]);
        for (int r = 0; r < ROWS; r++) /* the all-reduces */
            max[0][r] = fmax(max[0][r], max[1][r]);
        row_of_half(&h[0], max[0], sum[0]);
        row_of_half(&h[1], max[0], sum[1]);
        for (int r = 0; r < ROWS; r++)
            sum[0][r] += sum[1][r];
        finish_half(&h[0], max[0], sum[0], k.label, gathered);
        finish_half(&h[1], max[0], sum[0], k.label, gathered);
        for (uint64_t e = 0; e < ROWS * WORDS; e++) {
            const struct half *own = &h[e % WORDS >= CUT];
            double p = own->x[e / WORDS * own->n + e % WORDS - own->first];
            assert_true(fabs(p - k.p[e]) < 1e-5);
        }
        struct test_call t;
        test_open(&t, "nll_rows");
        given(&t, 0, TSR_F32, ROWS, gathered);
        given(&t, 1, TSR_I64, ROWS, k.label);
        int loss = test_output(&t, 2, TSR_F32, 1), weight = test_output(&t, 3, TSR_F32, 1);
        test_run(&t);
        test_near(&t, loss, 0, k.loss, 5);
        assert_true(test_get(&t, weight, 0) == k.count);
        test_close(&t);
        check_half_backward(&k, &h[0]);
        check_half_backward(&k, &h[1]);
        problem_close(&k);
    }
}

/* ---- means of squares ------------------------------------------------------------------------ */

static void mean_square(void **state)
{
    (void)state;
    for (int k = 0; k < TEST_FLOATS * 4; k++) {
        bool target = k & 4;
        uint64_t n = 1 + test_below(600);
        uint8_t dtype = test_floats[k % 4];
        struct test_call t;
        double sum = 0;
        test_open(&t, target ? "mse_target" : "mse");
        int x = test_input(&t, 0, dtype, n), y = target ? test_input(&t, 1, dtype, n) : -1;
        int loss = test_output(&t, 2, TSR_F32, 1);
        test_run(&t);
        for (uint64_t i = 0; i < n; i++)
            sum += pow(test_get(&t, x, i) - (target ? test_get(&t, y, i) : 0), 2);
        test_near(&t, loss, 0, sum / (double)n, 5);
        test_close(&t);
        test_open(&t, "mse_backward");
        x = test_input(&t, 0, dtype, n);
        int g = test_input(&t, 1, dtype, 1), out = test_output(&t, 2, dtype, n);
        y = target ? test_input(&t, 3, dtype, n) : -1;
        test_run(&t);
        for (uint64_t i = 0; i < n; i++) {
            double d = test_get(&t, x, i) - (target ? test_get(&t, y, i) : 0);
            test_near(&t, out, i, 2 * d * test_get(&t, g, 0) / (double)n, 10 / (double)n);
        }
        test_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_softmax), cmocka_unit_test(log_softmax_backward),
        cmocka_unit_test(nll_loss),    cmocka_unit_test(backward),
        cmocka_unit_test(chunks),      cmocka_unit_test(cut_vocabulary),
        cmocka_unit_test(mean_square),
    };
    return cmocka_run_group_tests_name("kernels: losses", tests, NULL, NULL);
}
