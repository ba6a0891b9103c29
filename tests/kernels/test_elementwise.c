/* test_kernels_elementwise.c: functions of elements, sums in place, copies and fills, in every
 * dtype, through views, repeated and one a row.
 */
#include "tests/kernels/kernels_testing.h"

/* ---- what they compute ----------------------------------------------------------------------- */

static double constant; /* of the function under test */

static double f_copy(double a, double b)
{
    (void)b;
    return a;
}
static double f_add(double a, double b)
{
    return a + b;
}
static double f_mul(double a, double b)
{
    return a * b;
}
static double f_mul_scalar(double a, double b)
{
    (void)b;
    return a * constant;
}
static double f_add_scalar(double a, double b)
{
    (void)b;
    return a + constant;
}
static double f_sub_scalar(double a, double b)
{
    (void)b;
    return a - constant;
}
static double f_div(double a, double b)
{
    (void)b;
    return a / constant;
}
static double f_neg(double a, double b)
{
    (void)b;
    return -a;
}
static double f_tanh(double a, double b)
{
    (void)b;
    return tanh(a);
}
static double f_cos(double a, double b)
{
    (void)b;
    return cos(a);
}
static double f_sin(double a, double b)
{
    (void)b;
    return sin(a);
}
static double f_silu(double a, double b)
{
    (void)b;
    return a / (1 + exp(-a));
}
static double f_relu(double a, double b)
{
    (void)b;
    return a > 0 ? a : 0;
}
static double f_gelu(double a, double b)
{
    (void)b;
    return 0.5 * a * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a)));
}
static double f_gelu_erf(double a, double b)
{
    (void)b;
    return 0.5 * a * (1 + erf(a / sqrt(2)));
}
static double f_at_most_one(double a, double b)
{
    (void)b;
    return a < 1 ? a : 1;
}

/* Backward of f by a central difference. */
static double slope(double (*f)(double, double), double x)
{
    return (f(x + 1e-6, 0) - f(x - 1e-6, 0)) / 2e-6;
}
static double f_silu_backward(double g, double x)
{
    return g * slope(f_silu, x);
}
static double f_gelu_backward(double g, double x)
{
    return g * slope(f_gelu, x);
}
static double f_gelu_erf_backward(double g, double x)
{
    return g * slope(f_gelu_erf, x);
}
static double f_threshold_backward(double g, double y)
{
    return y > 0 ? g : 0;
}
static double f_tanh_backward(double g, double y)
{
    return g * (1 - y * y);
}

struct function {
    const char *name;
    int n_in;
    double (*f)(double a, double b);
    double error; /* of the reference, more than rounding */
};

static const struct function functions[] = {
    {"clone", 1, f_copy, 0},
    {"cast", 1, f_copy, 0},
    {"add", 2, f_add, 0},
    {"mul", 2, f_mul, 0},
    {"add_mask", 2, f_add, 0},
    {"mul_scalar", 1, f_mul_scalar, 0},
    {"add_scalar", 1, f_add_scalar, 0},
    {"sub_scalar", 1, f_sub_scalar, 0},
    {"div", 1, f_div, 0},
    {"neg", 1, f_neg, 0},
    {"tanh", 1, f_tanh, 0},
    {"cos", 1, f_cos, 0},
    {"sin", 1, f_sin, 0},
    {"silu", 1, f_silu, 0},
    {"relu", 1, f_relu, 0},
    {"gelu", 1, f_gelu, 0},
    {"gelu_erf", 1, f_gelu_erf, 0},
    {"silu_backward", 2, f_silu_backward, 1e-8},
    {"gelu_backward", 2, f_gelu_backward, 1e-8},
    {"gelu_erf_backward", 2, f_gelu_erf_backward, 1e-8},
    {"threshold_backward", 2, f_threshold_backward, 0},
    {"tanh_backward", 2, f_tanh_backward, 0},
    {"scale_input_grad", 2, f_mul, 0},
    {"scale", 2, f_mul, 0},
    {"clamp", 1, f_at_most_one, 0},
    {"copy", 1, f_copy, 0},
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

static void check_function(const struct test_call *t, const struct function *f, int out,
                           const double *a, uint64_t n_a, const double *b, uint64_t n_b)
{
    for (uint64_t i = 0; i < t->operands[out].n; i++)
        test_near(t, out, i, f->f(a[i % n_a], b ? b[i % n_b] : 0), 5 + f->error * 1e13);
}

/* Dense, in all dtypes, of a block, of less and of more. */
static void functions_of_elements(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 7, 256, 1031};
    for (int k = 0; k < N_FUNCTIONS * TEST_FLOATS * TEST_FLOATS * 4; k++) {
        const struct function *f = &functions[k % N_FUNCTIONS];
        uint8_t in = test_floats[k / N_FUNCTIONS % 4], out = test_floats[k / N_FUNCTIONS / 4 % 4];
        uint64_t n = sizes[k / N_FUNCTIONS / 16];
        struct test_call t;
        if (strcmp(f->name, "clone") == 0 && in != out)
            continue;
        test_open(&t, f->name);
        t.work.constants[0] = constant = 1.7;
        int a = test_input(&t, 0, in, n), b = f->n_in > 1 ? test_input(&t, 1, in, n) : -1;
        int y = test_output(&t, (unsigned)f->n_in, out, n);
        test_run(&t);
        double *va = test_values(&t, a), *vb = b < 0 ? NULL : test_values(&t, b);
        check_function(&t, f, y, va, n, vb, n);
        free(va);
        free(vb);
        test_close(&t);
    }
}

/* Rows of a wider tensor, rows that repeat, and the result in the place of an argument. */
static void views(void **state)
{
    (void)state;
    for (int k = 0; k < N_FUNCTIONS * 2 * 3; k++) {
        const struct function *f = &functions[k % N_FUNCTIONS];
        uint8_t dtype = k / N_FUNCTIONS % 2 ? TSR_BF16 : TSR_F32;
        int kind = k / N_FUNCTIONS / 2;
        uint64_t rows = 1 + test_below(5), width = 1 + test_below(300);
        struct test_call t;
        if (strcmp(f->name, "clone") == 0 || strcmp(f->name, "cast") == 0)
            continue; /* plain copies: below */
        test_open(&t, f->name);
        t.work.constants[0] = constant = -0.6;
        uint64_t pitch = kind == 0 ? width + test_below(9) : kind == 1 ? 1 + width / 3 : 0;
        int a = test_view(&t, 0, kind == 2 ? TSR_READ_WRITE : TSR_READ, dtype, rows, width, pitch);
        test_fill(&t, a, -2, 2);
        int b = f->n_in > 1 ? test_input(&t, 1, dtype, rows * width) : -1, y;
        double *va = test_values(&t, a), *vb = b < 0 ? NULL : test_values(&t, b);
        if (kind == 2)
            y = test_same(&t, (unsigned)f->n_in, TSR_WRITE, a);
        else
            y = test_view(&t, (unsigned)f->n_in, TSR_WRITE, dtype, rows, width, width + 3);
        test_run(&t);
        check_function(&t, f, y, va, rows * width, vb, rows * width);
        free(va);
        free(vb);
        test_close(&t);
    }
}

static void repeated_and_one_a_row(void **state)
{
    (void)state;
    for (int k = 0; k < 60; k++) {
        uint64_t rows = 1 + test_below(9), columns = 1 + test_below(400);
        uint64_t bits = (uint64_t)k % 4, n[2] = {rows * columns, columns};
        struct test_call t;
        test_open(&t, k % 8 < 4 ? "mul" : "add");
        test_dims(&t, rows, columns, bits, 0);
        if (bits & 1)
            n[0] = rows;
        if (bits & 2)
            n[1] = rows;
        if (k % 12 == 0)
            n[1] = 1;
        int a = test_input(&t, 0, TSR_F32, n[0]), b = test_input(&t, 1, TSR_BF16, n[1]);
        int y = test_output(&t, 2, TSR_F32, rows * columns);
        test_run(&t);
        for (uint64_t i = 0; i < rows * columns; i++) {
            double va = test_get(&t, a, bits & 1 ? i / columns : i % n[0]);
            double vb = test_get(&t, b, bits & 2 ? i / columns : i % n[1]);
            test_near(&t, y, i, k % 8 < 4 ? va * vb : va + vb, 4);
        }
        test_close(&t);
    }
}

static void a_copy_of_a_column(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct test_call t;
        test_open(&t, k ? "cast" : "clone");
        test_dims(&t, 7, 90, (uint64_t)k, 0);
        int a = test_input(&t, 0, TSR_BF16, k ? 7 : 90);
        int y = test_output(&t, 1, k ? TSR_F32 : TSR_BF16, 7 * 90);
        test_run(&t);
        for (uint64_t i = 0; i < 7 * 90; i++)
            assert_true(test_get(&t, y, i) == test_get(&t, a, k ? i / 90 : i % 90));
        test_close(&t);
    }
}

/* ---- the others ------------------------------------------------------------------------------ */

static void powers_and_roots(void **state)
{
    (void)state;
    static const double exponents[] = {1, 2, 3, 0.5, -1, 2.7};
    for (int k = 0; k < 6 + 3; k++) {
        static const char *const names[] = {"rsqrt", "root", "reciprocal"};
        struct test_call t;
        test_open(&t, k < 6 ? "pow" : names[k - 6]);
        t.work.constants[0] = k < 6 ? exponents[k] : 0;
        int a = test_tensor(&t, 0, TSR_READ, TSR_F32, 301);
        test_fill(&t, a, 0.1, 3);
        int y = test_output(&t, 1, TSR_F32, 301);
        test_run(&t);
        double e[] = {-0.5, 0.5, -1};
        for (uint64_t i = 0; i < 301; i++)
            test_near(&t, y, i, pow(test_get(&t, a, i), k < 6 ? exponents[k] : e[k - 6]), 20);
        test_close(&t);
    }
}

static void without_arguments(void **state)
{
    (void)state;
    static const char *const names[] = {"ones", "scalar", "arange"};
    for (int k = 0; k < 3; k++) {
        struct test_call t;
        test_open(&t, names[k]);
        t.work.constants[0] = 0.625;
        int y = test_output(&t, 0, k == 2 ? TSR_I64 : TSR_BF16, 700);
        test_run(&t);
        for (uint64_t i = 0; i < 700; i++)
            assert_true(test_get(&t, y, i) == (k == 0 ? 1 : k == 1 ? 0.625 : (double)i));
        test_close(&t);
    }
}

static void masks(void **state)
{
    (void)state;
    struct test_call t;
    enum { SIDE = 19 };
    test_open(&t, "tril");
    test_dims(&t, SIDE, SIDE, 0, 0);
    int a = test_tensor(&t, 0, TSR_READ, TSR_U8, SIDE * SIDE);
    test_fill(&t, a, 0, 256);
    int y = test_output(&t, 1, TSR_U8, SIDE * SIDE);
    test_run(&t);
    for (uint64_t i = 0; i < SIDE * SIDE; i++)
        assert_true(test_get(&t, y, i) == (i % SIDE <= i / SIDE ? test_get(&t, a, i) : 0));
    test_close(&t);
    test_open(&t, "where");
    a = test_tensor(&t, 0, TSR_READ, TSR_U8, 300);
    for (uint64_t i = 0; i < 300; i++)
        test_set(&t, a, i, (double)test_below(2));
    int b = test_input(&t, 1, TSR_F32, 300), c = test_input(&t, 2, TSR_F32, 1);
    y = test_output(&t, 3, TSR_F32, 300);
    test_run(&t);
    for (uint64_t i = 0; i < 300; i++)
        assert_true(test_get(&t, y, i) ==
                    (test_get(&t, a, i) != 0 ? test_get(&t, b, i) : test_get(&t, c, 0)));
    test_close(&t);
}

/* A NaN is not lost on the way, and large numbers go where they should. */
static void extremes(void **state)
{
    (void)state;
    static const char *const names[] = {"relu", "clamp", "gelu", "gelu_erf", "silu", "add_eps"};
    for (int k = 0; k < 6; k++) {
        struct test_call t;
        test_open(&t, names[k]);
        int a = test_tensor(&t, 0, TSR_READ, TSR_F32, 3);
        test_set(&t, a, 0, NAN);
        test_set(&t, a, 1, 80);
        test_set(&t, a, 2, -80);
        int y = test_output(&t, 1, TSR_F32, 3);
        test_run(&t);
        assert_true(isnan(test_get(&t, y, 0)));
        test_near(&t, y, 1, k == 1 ? 1 : k == 5 ? 80 + 1e-6 : 80, 1);
        test_near(&t, y, 2, k == 1 ? -80 : k == 5 ? -80 + 1e-6 : 0, 1);
        test_close(&t);
    }
}

/* Doubles that lie next to the middle of two results: a float in between would round twice. */
static void rounded_once(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct test_call t;
        uint8_t dtype = k ? TSR_F16 : TSR_BF16;
        test_open(&t, k ? "add_scalar" : "cast");
        int a = test_tensor(&t, 0, TSR_READ, TSR_F64, 500), y = test_output(&t, 1, dtype, 500);
        for (uint64_t i = 0; i < 500; i++) {
            double x = test_quantize(test_between(1, 2), dtype), half = k ? 0x1p-11 : 0x1p-8;
            test_set(&t, a, i, x + half + (test_below(2) ? 1 : -1) * 0x1p-40);
        }
        test_run(&t);
        for (uint64_t i = 0; i < 500; i++)
            assert_true(test_get(&t, y, i) == test_quantize(test_get(&t, a, i), dtype));
        test_close(&t);
    }
}

static void epsilon(void **state)
{
    (void)state;
    struct test_call t;
    test_open(&t, "add_eps");
    int a = test_tensor(&t, 0, TSR_READ, TSR_F32, 1), y = test_output(&t, 1, TSR_F32, 1);
    test_set(&t, a, 0, 2e-6);
    test_run(&t);
    test_near(&t, y, 0, 3e-6, 1e-6);
    test_close(&t);
}

static void max_norm(void **state)
{
    (void)state;
    struct test_call t;
    test_open(&t, "mul_max_norm");
    t.scalars[TSR_SCALAR_MAX_NORM] = 0.25;
    int a = test_input(&t, 0, TSR_F32, 1), y = test_output(&t, 1, TSR_F32, 1);
    test_run(&t);
    test_near(&t, y, 0, 0.25 * test_get(&t, a, 0), 1);
    test_close(&t);
}

static void in_place(void **state)
{
    (void)state;
    static const char *const names[] = {"add_into", "accumulate_grad", "host_add", "div",
                                        "div_by_world"};
    for (int k = 0; k < 5 * TEST_FLOATS; k++) {
        int which = k % 5;
        struct test_call t;
        test_open(&t, names[which]);
        t.work.constants[0] = 3;
        int into = test_tensor(&t, which < 3 ? 1 : 0, TSR_READ_WRITE, test_floats[k / 5], 333);
        test_fill(&t, into, -1, 1);
        double *old = test_values(&t, into);
        int from = which < 3 ? test_input(&t, 0, test_floats[(k + 1) % 4], 333) : -1;
        test_run(&t);
        for (uint64_t i = 0; i < 333; i++)
            test_near(&t, into, i, which < 3 ? old[i] + test_get(&t, from, i) : old[i] / 3, 3);
        free(old);
        test_close(&t);
    }
}

static void lists_of_sums(void **state)
{
    (void)state;
    struct test_call t;
    double *old[3];
    test_open(&t, "accumulate_sharded_grad");
    for (int i = 0; i < 3; i++) {
        test_input(&t, 0, i == 1 ? TSR_BF16 : TSR_F32, 5 + 200 * (uint64_t)i);
        int into = test_tensor(&t, 1, TSR_READ_WRITE, TSR_F32, 5 + 200 * (uint64_t)i);
        test_fill(&t, into, -1, 1);
        old[i] = test_values(&t, into);
    }
    test_run(&t);
    for (int i = 0; i < 3; i++) {
        for (uint64_t k = 0; k < t.operands[2 * i].n; k++)
            test_near(&t, 2 * i + 1, k, old[i][k] + test_get(&t, 2 * i, k), 3);
        free(old[i]);
    }
    t.n = 5;
    test_refused(&t);
    t.n = 6;
    test_close(&t);
}

static void fills(void **state)
{
    (void)state;
    static const uint8_t dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64, TSR_I64, TSR_U8};
    for (int k = 0; k < 7; k++) {
        struct test_call t;
        test_open(&t, "fill");
        int y = test_view(&t, 0, TSR_WRITE, k < 6 ? dtypes[k] : TSR_U8, 3, 100, k % 2 ? 103 : 0);
        t.call.factor = 3;
        test_make_views(&t);
        if (k == 6)
            t.views[0].dtype = TSR_DTYPE_NONE;
        t.call.work = NULL;
        assert_int_equal(tsr_host_fill(&t.call), TSR_OK);
        test_check_memory(&t);
        for (uint64_t i = 0; i < 300; i++)
            assert_true(test_get(&t, y, i) == (k < 6 ? 3 : 0));
        t.call.n_views = 0;
        assert_int_equal(tsr_host_fill(&t.call), TSR_EDEFECT);
        test_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_of_elements),
        cmocka_unit_test(views),
        cmocka_unit_test(repeated_and_one_a_row),
        cmocka_unit_test(a_copy_of_a_column),
        cmocka_unit_test(powers_and_roots),
        cmocka_unit_test(without_arguments),
        cmocka_unit_test(masks),
        cmocka_unit_test(extremes),
        cmocka_unit_test(rounded_once),
        cmocka_unit_test(epsilon),
        cmocka_unit_test(max_norm),
        cmocka_unit_test(in_place),
        cmocka_unit_test(lists_of_sums),
        cmocka_unit_test(fills),
    };
    return cmocka_run_group_tests_name("kernels: elements", tests, NULL, NULL);
}
