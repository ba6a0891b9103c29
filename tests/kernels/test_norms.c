/* test_kernels_norms.c: sums and norms, forward against double, backward against central
 * differences.
 */
#include "tests/kernels/kernels_testing.h"

/* ---- sums ------------------------------------------------------------------------------------ */

static void rows_and_columns(void **state)
{
    (void)state;
    static const char *const names[] = {"sum", "mean", "sum_bias_grad", "sum_weight_grad",
                                        "sum_rows"};
    for (int k = 0; k < 5 * TEST_FLOATS * 3; k++) {
        int which = k % 5;
        uint64_t rows = 1 + test_below(40), columns = 1 + test_below(600);
        uint8_t dtype = test_floats[k / 5 % 4];
        struct test_call t;
        test_open(&t, names[which]);
        test_dims(&t, rows, columns, 0, 0);
        int x = test_view(&t, 0, TSR_READ, dtype, rows, columns, k % 3 ? columns + 5 : 0);
        test_fill(&t, x, -2, 2);
        uint64_t n = which < 2 ? rows : columns;
        int y = test_output(&t, which < 2 || which == 4 ? 1 : 3, dtype, n);
        test_run(&t);
        for (uint64_t i = 0; i < n; i++) {
            double sum = 0;
            for (uint64_t j = 0; j < (which < 2 ? columns : rows); j++)
                sum += test_get(&t, x, which < 2 ? i * columns + j : j * columns + i);
            test_near(&t, y, i, which == 1 ? sum / (double)columns : sum, 2);
        }
        test_close(&t);
    }
}

static void of_everything(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * TEST_FLOATS; k++) {
        uint8_t dtype = test_floats[k % 4];
        struct test_call t;
        double sum = 0;
        test_open(&t, k < 4 ? "mean_all" : "scale_weight_grad");
        int g = test_input(&t, 0, dtype, 1001), x = k < 4 ? g : test_input(&t, 1, dtype, 1001);
        int y = test_output(&t, k < 4 ? 1 : 2, k < 4 ? TSR_F32 : dtype, k < 4 ? 1 : 300);
        test_run(&t);
        for (uint64_t i = 0; i < 1001; i++)
            sum += test_get(&t, g, i) * (k < 4 ? 1 : test_get(&t, x, i));
        for (uint64_t i = 0; i < t.operands[y].n; i++)
            test_near(&t, y, i, sum / (k < 4 ? 1001 : 300), 2);
        test_close(&t);
    }
}

/* ---- norms ----------------------------------------------------------------------------------- */

struct norm {
    bool centered;
    uint64_t rows, columns;
    double eps;
    double *x, *w, *b;
};

static void statistics(const struct norm *k, uint64_t row, double *mean, double *rstd)
{
    const double *x = k->x + row * k->columns;
    double n = (double)k->columns, sum = 0, squares = 0;
    for (uint64_t i = 0; i < k->columns; i++)
        sum += x[i];
    *mean = k->centered ? sum / n : 0;
    for (uint64_t i = 0; i < k->columns; i++)
        squares += (x[i] - *mean) * (x[i] - *mean);
    *rstd = 1 / sqrt(squares / n + k->eps);
}

static double value(const struct norm *k, uint64_t row, uint64_t column)
{
    double mean, rstd;
    statistics(k, row, &mean, &rstd);
    double y = (k->x[row * k->columns + column] - mean) * rstd * k->w[column];
    return k->centered ? y + k->b[column] : y;
}

/* Operands of a call that both directions have: x, w and b, as slots say. */
static void arguments(struct test_call *t, struct norm *k, uint8_t dtype, unsigned x, unsigned w,
                      int b)
{
    uint64_t n = k->rows * k->columns;
    test_dims(t, k->rows, k->columns, 0, 0);
    t->work.constants[0] = k->eps;
    k->x = test_values(t, test_input(t, x, dtype, n));
    k->w = test_values(t, test_input(t, w, dtype == TSR_F16 ? TSR_F32 : dtype, k->columns));
    k->b = k->centered && b >= 0 ? test_values(t, test_input(t, (unsigned)b, dtype, k->columns))
                                 : NULL;
}

static void forget(struct norm *k)
{
    free(k->x);
    free(k->w);
    free(k->b);
}

static void forward(void **state)
{
    (void)state;
    static const uint64_t columns[] = {1, 5, 256, 771};
    for (int i = 0; i < 2 * TEST_FLOATS * 4; i++) {
        struct norm k = {.centered = i % 2, .rows = 1 + test_below(5), .eps = 1e-5};
        uint8_t dtype = test_floats[i / 2 % 4];
        struct test_call t;
        k.columns = columns[i / 8];
        test_open(&t, k.centered ? "layer_norm" : "rms_norm");
        arguments(&t, &k, dtype, 0, 1, 2);
        int y = test_output(&t, 3, dtype, k.rows * k.columns), mean = -1, rstd = -1;
        if (i % 5) {
            mean = k.centered ? test_output(&t, 4, TSR_F32, k.rows) : -1;
            rstd = test_output(&t, k.centered ? 5 : 4, TSR_F32, k.rows);
        }
        test_run(&t);
        for (uint64_t row = 0; row < k.rows; row++) {
            double m, r;
            statistics(&k, row, &m, &r);
            if (rstd >= 0)
                test_near(&t, rstd, row, r, r * (1 + r * fabs(m)));
            if (mean >= 0)
                test_near(&t, mean, row, m, 2);
            for (uint64_t c = 0; c < k.columns; c++)
                test_near(&t, y, row * k.columns + c, value(&k, row, c), 6 + 6 * r);
        }
        forget(&k);
        test_close(&t);
    }
}

/* sum(g y), whose slopes backward computes. */
static double loss(const struct norm *k, const double *g)
{
    double sum = 0;
    for (uint64_t row = 0; row < k->rows; row++) {
        double mean, rstd;
        statistics(k, row, &mean, &rstd);
        for (uint64_t c = 0; c < k->columns; c++)
            sum += g[row * k->columns + c] *
                   ((k->x[row * k->columns + c] - mean) * rstd * k->w[c] + (k->b ? k->b[c] : 0));
    }
    return sum;
}

static double slope(const struct norm *k, const double *g, double *at)
{
    double x = *at, high, low;
    *at = x + TEST_STEP;
    high = loss(k, g);
    *at = x - TEST_STEP;
    low = loss(k, g);
    *at = x;
    return (high - low) / (2 * TEST_STEP);
}

static void check_slopes(const struct test_call *t, const struct norm *k, const double *g, int out,
                         double *of)
{
    for (uint64_t i = 0; out >= 0 && i < t->operands[out].n; i++)
        test_near(t, out, i, slope(k, g, &of[i]), 30 + (test_is_wide(t) ? 1e7 : 0));
}

static void backward(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * TEST_FLOATS * 4; i++) {
        struct norm k = {.centered = i % 2, .rows = 1 + test_below(4), .eps = 0.01};
        uint8_t dtype = test_floats[i / 2 % 4], wide = dtype == TSR_F64 ? TSR_F64 : TSR_F32;
        struct test_call t;
        k.columns = i < 8 ? 1 + test_below(4) : 7 + test_below(20);
        test_open(&t, k.centered ? "layer_norm_backward" : "rms_norm_backward");
        double *g = test_values(&t, test_input(&t, 0, dtype, k.rows * k.columns));
        arguments(&t, &k, dtype, 1, 2, -1);
        k.b = calloc(k.columns, sizeof *k.b);
        assert_non_null(k.b);
        int gx = i % 5 ? test_output(&t, 3, dtype, k.rows * k.columns) : -1;
        int gw = i % 7 ? test_output(&t, 4, wide, k.columns) : -1;
        int gb = k.centered && i % 3 ? test_output(&t, 5, wide, k.columns) : -1;
        int mean = k.centered ? test_tensor(&t, 6, TSR_READ, wide, k.rows) : -1;
        int rstd = test_tensor(&t, k.centered ? 7 : 6, TSR_READ, wide, k.rows);
        for (uint64_t row = 0; row < k.rows; row++) {
            double m, r;
            statistics(&k, row, &m, &r);
            test_set(&t, rstd, row, r);
            if (mean >= 0)
                test_set(&t, mean, row, m);
        }
        test_run(&t);
        check_slopes(&t, &k, g, gx, k.x);
        check_slopes(&t, &k, g, gw, k.w);
        check_slopes(&t, &k, g, gb, k.b);
        free(g);
        forget(&k);
        test_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_and_columns),
                                       cmocka_unit_test(of_everything), cmocka_unit_test(forward),
                                       cmocka_unit_test(backward)};
    return cmocka_run_group_tests_name("kernels: sums and norms", tests, NULL, NULL);
}
