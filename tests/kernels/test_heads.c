/* test_kernels_heads.c: heads repeated, summed, padded, cut and joined; rotary embedding and its
 * tables; embeddings of tokens.
 */
#include "tests/kernels/kernels_testing.h"

/* ---- heads ----------------------------------------------------------------------------------- */

static void repeated(void **state)
{
    (void)state;
    for (int k = 0; k < TEST_FLOATS * 6; k++) {
        uint64_t rows = 1 + test_below(9), times = 1 + test_below(4), d = 1 + test_below(300);
        bool sums = k % 2;
        struct test_call t;
        test_open(&t, sums ? "sum_heads" : "expand_heads");
        test_arg(&t, times);
        test_arg(&t, d);
        int x = test_input(&t, 0, test_floats[k % 4], rows * d * (sums ? times : 1));
        int y = test_output(&t, 1, test_floats[k % 4], rows * d * (sums ? 1 : times));
        test_run(&t);
        for (uint64_t i = 0; i < rows * d * times; i++) {
            uint64_t row = i / d, c = i % d;
            if (!sums)
                assert_true(test_get(&t, y, i) == test_get(&t, x, row / times * d + c));
        }
        for (uint64_t i = 0; i < rows * d && sums; i++) {
            double sum = 0;
            for (uint64_t h = 0; h < times; h++)
                sum += test_get(&t, x, (i / d * times + h) * d + i % d);
            test_near(&t, y, i, sum, 5);
        }
        test_close(&t);
    }
}

static void placed(void **state)
{
    (void)state;
    static const char *const names[] = {"pad", "pad_backward", "slice_backward"};
    for (int k = 0; k < 60; k++) {
        uint64_t rows = 1 + test_below(5), from = 1 + test_below(9), to = 1 + test_below(9);
        uint64_t offset = 0;
        if (k % 3 == 2) {
            to = from + test_below(5);
            offset = test_below(to - from + 1);
        }
        struct test_call t;
        test_open(&t, names[k % 3]);
        test_arg(&t, from);
        test_arg(&t, to);
        test_arg(&t, offset);
        int x = test_input(&t, 0, TSR_BF16, rows * from),
            y = test_output(&t, 1, TSR_BF16, rows * to);
        test_run(&t);
        for (uint64_t i = 0; i < rows * to; i++) {
            uint64_t c = i % to;
            bool there = c >= offset && c - offset < from;
            assert_true(test_get(&t, y, i) ==
                        (there ? test_get(&t, x, i / to * from + c - offset) : 0));
        }
        test_close(&t);
    }
}

static void joined(void **state)
{
    (void)state;
    for (int k = 0; k < 20; k++) {
        uint64_t rows = 1 + test_below(5), a = 1 + test_below(9), b = 1 + test_below(9);
        struct test_call t;
        test_open(&t, "cat");
        test_arg(&t, a);
        test_arg(&t, b);
        int x = test_input(&t, 0, TSR_F32, rows * a), z = test_input(&t, 1, TSR_F32, rows * b);
        int y = test_output(&t, 2, TSR_F32, rows * (a + b));
        test_run(&t);
        for (uint64_t i = 0; i < rows * (a + b); i++) {
            uint64_t row = i / (a + b), c = i % (a + b);
            assert_true(test_get(&t, y, i) ==
                        (c < a ? test_get(&t, x, row * a + c) : test_get(&t, z, row * b + c - a)));
        }
        test_close(&t);
    }
}

/* Parts of which one or none is absent. */
static void gradients_side_by_side(void **state)
{
    (void)state;
    for (int k = 0; k < 16; k++) {
        uint64_t rows = 1 + test_below(5), widths[3], columns = 0;
        struct test_call t;
        test_open(&t, "cat_gradients");
        for (int i = 0; i < 3; i++) {
            widths[i] = i == k % 4 ? 0 : 1 + test_below(300);
            columns += widths[i];
            test_arg(&t, widths[i]);
            if (widths[i])
                test_input(&t, 0, TSR_BF16, rows * widths[i]);
        }
        test_dims(&t, rows, columns, 0, 0);
        int y = test_output(&t, 1, TSR_BF16, rows * columns);
        test_run(&t);
        uint64_t at = 0;
        for (int i = 0, part = 0; i < 3; at += widths[i++]) {
            for (uint64_t e = 0; e < rows * widths[i]; e++)
                assert_true(test_get(&t, part, e) ==
                            test_get(&t, y, e / widths[i] * columns + at + e % widths[i]));
            part += widths[i] > 0;
        }
        t.work.n_args = 2;
        if (widths[2])
            test_refused(&t);
        test_close(&t);
    }
}

/* ---- rotary ---------------------------------------------------------------------------------- */

static void rotation(void **state)
{
    (void)state;
    for (int k = 0; k < TEST_FLOATS * 10; k++) {
        uint64_t seq = 1 + test_below(9), batch = 1 + test_below(3), heads = 1 + test_below(3);
        uint64_t half = k % 5 ? 1 + test_below(20) : 200, d = 2 * half;
        bool halves = k % 2;
        struct test_call t;
        test_open(&t, k % 3 ? "rotary" : "rotary_backward");
        test_dims(&t, batch * seq, heads * d, 0, 0);
        test_arg(&t, seq);
        test_arg(&t, d);
        test_arg(&t, halves);
        int table = test_input(&t, 1, TSR_F32, (seq + test_below(3)) * d);
        int x = test_view(&t, 0, TSR_READ_WRITE, test_floats[k / 2 % 4], batch * seq, heads * d, 0);
        test_fill(&t, x, -2, 2);
        double *in = test_values(&t, x);
        int y = k % 7 ? test_output(&t, 2, test_floats[k / 2 % 4], batch * seq * heads * d)
                      : test_same(&t, 2, TSR_WRITE, x);
        test_run(&t);
        for (uint64_t i = 0; i < batch * seq * heads * half; i++) {
            uint64_t head = i / half, p = i % half, position = head / heads % seq;
            uint64_t a = head * d + (halves ? p : 2 * p), b = halves ? a + half : a + 1;
            double c = test_get(&t, table, 2 * (position * half + p));
            double s = test_get(&t, table, 2 * (position * half + p) + 1);
            test_near(&t, y, a, in[a] * c - in[b] * s, 5);
            test_near(&t, y, b, in[a] * s + in[b] * c, 5);
        }
        free(in);
        test_close(&t);
    }
}

/* Llama 3's frequencies, as its authors wrote them. */
static double llama3(double f, double factor, double low, double high, double original)
{
    double wave = 2 * 3.14159265358979323846 / f;
    if (wave < original / high)
        return f;
    if (wave > original / low)
        return f / factor;
    double smooth = (original / wave - low) / (high - low);
    return (1 - smooth) * f / factor + smooth * f;
}

static void tables(void **state)
{
    (void)state;
    for (uint64_t kind = 0; kind < 4; kind++) {
        enum { POSITIONS = 50, HALF = 64 };
        struct test_call t;
        test_open(&t, "rotary_table");
        test_dims(&t, POSITIONS, HALF, 0, 0);
        t.work.constants[0] = 500000;
        test_arg(&t, kind == 3 ? 1 : kind);
        if (kind == 3 || kind == 2) {
            test_arg(&t, 32);
            test_arg(&t, 1);
            test_arg(&t, 4);
            test_arg(&t, 512);
        }
        int out = test_output(&t, 0, TSR_F32, 2 * POSITIONS * HALF);
        test_run(&t);
        for (uint64_t i = 0; i < POSITIONS * HALF; i++) {
            uint64_t row = i / HALF;
            double position = (double)row;
            double f = pow(500000, -(double)(i % HALF) / HALF);
            f = kind == 1 ? llama3(f, 8, 1, 4, 8192) : kind == 3 ? llama3(f, 32, 1, 4, 512) : f;
            f = kind == 2 ? f / 32 : f;
            test_near(&t, out, 2 * i, cos(position * f), 10);
            test_near(&t, out, 2 * i + 1, sin(position * f), 10);
        }
        t.args[0] = 9;
        test_refused(&t);
        test_close(&t);
    }
}

/* Backward with the conjugate table undoes forward; the table may say that it is f64. */
static void there_and_back(void **state)
{
    (void)state;
    enum { PAIRS = 24, SEQ = 4, D = 12 };
    struct test_call t, u;
    test_open(&t, "conjugate");
    test_dims(&t, PAIRS, 0, 0, 0);
    int table = test_tensor(&t, 0, TSR_READ, TSR_F32, 2 * PAIRS + 6);
    int out = test_output(&t, 1, TSR_F32, 2 * PAIRS);
    for (uint64_t i = 0; i < PAIRS; i++) {
        test_set(&t, table, 2 * i, cos((double)i));
        test_set(&t, table, 2 * i + 1, sin((double)i));
    }
    t.operands[out].dtype = TSR_F64; /* a pair in each element */
    t.operands[out].item = 4;
    test_run(&t);
    t.operands[out].dtype = TSR_F32;
    for (uint64_t i = 0; i < PAIRS; i++) {
        assert_true(test_get(&t, out, 2 * i) == test_get(&t, table, 2 * i));
        assert_true(test_get(&t, out, 2 * i + 1) == -test_get(&t, table, 2 * i + 1));
    }
    double *conjugate = test_values(&t, out), *turns = test_values(&t, table);
    double *x = NULL, *y = NULL;
    for (int back = 0; back < 2; back++) {
        test_open(&u, back ? "rotary_backward" : "rotary");
        test_dims(&u, SEQ, D, 0, 0);
        test_arg(&u, SEQ);
        test_arg(&u, D);
        test_arg(&u, 1);
        int in = test_input(&u, 0, TSR_F32, SEQ * D);
        test_set_all(&u, test_tensor(&u, 1, TSR_READ, TSR_F32, 2 * PAIRS),
                     back ? conjugate : turns);
        int to = test_output(&u, 2, TSR_F32, SEQ * D);
        if (back)
            test_set_all(&u, in, y);
        else
            x = test_values(&u, in);
        test_run(&u);
        free(y);
        y = test_values(&u, to);
        test_close(&u);
    }
    for (int i = 0; i < SEQ * D; i++)
        assert_true(fabs(x[i] - y[i]) < 1e-6);
    free(x);
    free(y);
    free(conjugate);
    free(turns);
    test_close(&t);
}

/* ---- embeddings ------------------------------------------------------------------------------ */

static void ids(struct test_call *t, int operand, int64_t from, uint64_t n)
{
    for (uint64_t i = 0; i < t->operands[operand].n; i++)
        test_set(t, operand, i, (double)(from + (int64_t)test_below(n)));
}

static void embedding(void **state)
{
    (void)state;
    for (int k = 0; k < TEST_FLOATS * 5; k++) {
        uint64_t first = k % 3 ? test_below(9) : 0, rows = 1 + test_below(20),
                 tokens = test_below(30);
        uint64_t d = 1 + test_below(400);
        bool backward = k % 2;
        uint8_t dtype = test_floats[k / 2 % 4];
        struct test_call t;
        test_open(&t, backward ? "embedding_dense_backward" : "embedding");
        test_arg(&t, first);
        test_arg(&t, rows);
        int id = test_tensor(&t, backward ? 1 : 0, TSR_READ, TSR_I64, tokens);
        ids(&t, id, -2, first + rows + 4);
        int x =
            backward ? test_input(&t, 0, dtype, tokens * d) : test_input(&t, 1, dtype, rows * d);
        int y = test_output(&t, 2, dtype, backward ? rows * d : tokens * d);
        test_run(&t);
        for (uint64_t i = 0; i < t.operands[y].n; i++) {
            uint64_t own = i / d;
            double want = 0;
            for (uint64_t token = 0; token < tokens; token++) {
                double row = test_get(&t, id, token) - (double)first;
                if (backward && row == (double)own)
                    want += test_get(&t, x, token * d + i % d);
                else if (!backward && token == i / d && row >= 0 && row < (double)rows)
                    want = test_get(&t, x, (uint64_t)row * d + i % d);
            }
            test_near(&t, y, i, want, backward ? 20 : 0);
        }
        test_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeated),       cmocka_unit_test(placed),
        cmocka_unit_test(joined),         cmocka_unit_test(gradients_side_by_side),
        cmocka_unit_test(rotation),       cmocka_unit_test(tables),
        cmocka_unit_test(there_and_back), cmocka_unit_test(embedding),
    };
    return cmocka_run_group_tests_name("kernels: heads", tests, NULL, NULL);
}
