/* test_kernels_fused.c: fused kernels against the eager kernels that they stand for, on the same
 * numbers: the same bits where the arithmetic is the same, else up to rounding. Their gradients
 * against central differences of the forward in double.
 */
#include "tests/kernels/kernels_testing.h"

/* An input of another call with the elements of an operand. */
static int same_as(struct test_call *t, unsigned slot, const struct test_call *from, int operand)
{
    const struct test_operand *o = &from->operands[operand];
    int copy = test_tensor(t, slot, TSR_READ, o->dtype, o->n);
    for (uint64_t i = 0; i < o->n; i++)
        test_set(t, copy, i, test_get(from, operand, i));
    return copy;
}

static void same_bits(const struct test_call *t, int operand, const struct test_call *with, int as)
{
    const struct test_operand *a = &t->operands[operand], *b = &with->operands[as];
    assert_int_equal(a->n, b->n);
    for (uint64_t i = 0; i < a->n; i++)
        assert_memory_equal(test_place(a, i), test_place(b, i), a->item);
}

/* Elements agree up to the rounding of results: eager's, and of the intermediate ones in `of`. */
static void nearly(const struct test_call *t, int operand, const struct test_call *with, int as,
                   const struct test_call *of, int between)
{
    const struct test_operand *o = &t->operands[operand];
    for (uint64_t i = 0; i < o->n; i++) {
        double got = test_get(t, operand, i), want = test_get(with, as, i);
        double room =
            2.1 * test_precision(o->dtype) * (fabs(want) + fabs(test_get(of, between, i)));
        if (!(fabs(got - want) <= room + (o->dtype == TSR_F16 ? ldexp(1, -22) : 0)))
            fail_msg("%s[%llu]: %.9g, eager %.9g (+- %.2g)", t->work.name, (unsigned long long)i,
                     got, want, room);
    }
}

static bool is_exact(uint8_t dtype)
{
    return dtype == TSR_F32 || dtype == TSR_F64;
}

/* ---- norms ----------------------------------------------------------------------------------- */

struct norm {
    struct test_call t;
    bool centered;
    uint8_t dtype;
    uint64_t rows, columns, n;
    int a, b, w, bias, h, y, mean, rstd;
};

/* place: 0 h in new memory, 1 in that of a, 2 in that of b. */
static void open_norm(struct norm *k, int i, int place)
{
    static const uint64_t columns[] = {1, 5, 256, 771};
    *k = (struct norm){.centered = i % 2, .dtype = test_floats[i / 2 % 4], .bias = -1, .mean = -1};
    k->rows = 1 + test_below(5);
    k->columns = columns[i / 8 % 4];
    k->n = k->rows * k->columns;
    uint8_t wide = k->dtype == TSR_F16 ? TSR_F32 : k->dtype;
    test_open(&k->t, k->centered ? "fused_add_layer_norm" : "fused_add_rms_norm");
    test_dims(&k->t, k->rows, k->columns, 0, 0);
    k->t.work.constants[0] = 1e-5;
    k->a = test_input(&k->t, 0, k->dtype, k->n);
    k->b = test_input(&k->t, 1, k->dtype, k->n);
    k->w = test_input(&k->t, 2, wide, k->columns);
    if (k->centered)
        k->bias = test_input(&k->t, 3, wide, k->columns);
    k->h = place ? test_same(&k->t, 4, TSR_WRITE, place == 1 ? k->a : k->b)
                 : test_output(&k->t, 4, k->dtype, k->n);
    k->y = test_output(&k->t, 5, k->dtype, k->n);
    if (k->centered)
        k->mean = test_output(&k->t, 6, TSR_F32, k->rows);
    k->rstd = test_output(&k->t, 7, TSR_F32, k->rows);
}

/* add, then the norm of it. */
static void sums_and_norms(void **state)
{
    (void)state;
    for (int i = 0; i < 96; i++) {
        struct norm k;
        struct test_call add, norm;
        open_norm(&k, i, i / 32);
        test_open(&add, "add");
        test_dims(&add, k.rows, k.columns, 0, 0);
        same_as(&add, 0, &k.t, k.a);
        same_as(&add, 1, &k.t, k.b);
        int sum = test_output(&add, 2, k.dtype, k.n);
        test_run(&add);
        test_open(&norm, k.centered ? "layer_norm" : "rms_norm");
        test_dims(&norm, k.rows, k.columns, 0, 0);
        norm.work.constants[0] = 1e-5;
        same_as(&norm, 0, &add, sum);
        same_as(&norm, 1, &k.t, k.w);
        if (k.centered)
            same_as(&norm, 2, &k.t, k.bias);
        int y = test_output(&norm, 3, k.dtype, k.n), mean = -1;
        if (k.centered)
            mean = test_output(&norm, 4, TSR_F32, k.rows);
        int rstd = test_output(&norm, k.centered ? 5 : 4, TSR_F32, k.rows);
        test_run(&norm);
        test_run(&k.t);
        same_bits(&k.t, k.h, &add, sum);
        same_bits(&k.t, k.y, &norm, y);
        same_bits(&k.t, k.rstd, &norm, rstd);
        if (k.centered)
            same_bits(&k.t, k.mean, &norm, mean);
        test_close(&norm);
        test_close(&add);
        test_close(&k.t);
    }
}

struct backward {
    struct test_call t;
    int g, gh, h, w, gx, gw, gb, mean, rstd;
};

/* The backward call of a norm that has run. place: of gx, 0 new memory, 1 that of g, 2 of gh.
 * without: bit 0 gh, 1 gx, 2 gw, 3 gb. */
static void open_backward(struct backward *b, const struct norm *k, int place, unsigned without)
{
    *b = (struct backward){.gh = -1, .gx = -1, .gw = -1, .gb = -1, .mean = -1};
    test_open(&b->t, k->centered ? "fused_add_layer_norm_backward" : "fused_add_rms_norm_backward");
    test_dims(&b->t, k->rows, k->columns, 0, 0);
    b->g = test_input(&b->t, 0, k->dtype, k->n);
    if (!(without & 1))
        b->gh = test_input(&b->t, 1, k->dtype, k->n);
    b->h = same_as(&b->t, 2, &k->t, k->h);
    b->w = same_as(&b->t, 3, &k->t, k->w);
    uint8_t wide = k->t.operands[k->w].dtype;
    if (place)
        b->gx = test_same(&b->t, 4, TSR_WRITE, place == 1 ? b->g : b->gh);
    else if (!(without & 2))
        b->gx = test_output(&b->t, 4, k->dtype, k->n);
    if (!(without & 4))
        b->gw = test_output(&b->t, 5, wide, k->columns);
    if (k->centered && !(without & 8))
        b->gb = test_output(&b->t, 6, wide, k->columns);
    if (k->centered)
        b->mean = same_as(&b->t, 7, &k->t, k->mean);
    b->rstd = same_as(&b->t, 8, &k->t, k->rstd);
}

/* The norm's backward, then the sum of both gradients; compares with what b has computed. g,
 * gh: the gradients that it got. */
static void check_backward(const struct backward *b, const struct norm *k, const double *g,
                           const double *gh)
{
    struct test_call norm, add;
    uint8_t wide = k->t.operands[k->w].dtype;
    test_open(&norm, k->centered ? "layer_norm_backward" : "rms_norm_backward");
    test_dims(&norm, k->rows, k->columns, 0, 0);
    test_set_all(&norm, test_tensor(&norm, 0, TSR_READ, k->dtype, k->n), g);
    same_as(&norm, 1, &k->t, k->h);
    same_as(&norm, 2, &k->t, k->w);
    int gx = test_output(&norm, 3, k->dtype, k->n), gw = test_output(&norm, 4, wide, k->columns);
    int gb = k->centered ? test_output(&norm, 5, wide, k->columns) : -1;
    if (k->centered)
        same_as(&norm, 6, &k->t, k->mean);
    same_as(&norm, k->centered ? 7 : 6, &k->t, k->rstd);
    test_run(&norm);
    test_open(&add, "add");
    test_dims(&add, k->rows, k->columns, 0, 0);
    same_as(&add, 0, &norm, gx);
    int other = test_tensor(&add, 1, TSR_READ, k->dtype, k->n);
    if (gh)
        test_set_all(&add, other, gh);
    int sum = test_output(&add, 2, k->dtype, k->n);
    test_run(&add);
    if (b->gx >= 0 && (is_exact(k->dtype) || !gh))
        same_bits(&b->t, b->gx, &add, sum);
    else if (b->gx >= 0)
        nearly(&b->t, b->gx, &add, sum, &norm, gx);
    if (b->gw >= 0)
        same_bits(&b->t, b->gw, &norm, gw);
    if (b->gb >= 0)
        same_bits(&b->t, b->gb, &norm, gb);
    test_close(&add);
    test_close(&norm);
}

static void gradients_of_norms(void **state)
{
    (void)state;
    for (int i = 0; i < 96; i++) {
        struct norm k;
        struct backward b;
        open_norm(&k, i, 0);
        test_run(&k.t);
        open_backward(&b, &k, i / 32, i / 32 ? 0 : (unsigned)i % 13);
        double *g = test_values(&b.t, b.g), *gh = b.gh >= 0 ? test_values(&b.t, b.gh) : NULL;
        test_run(&b.t);
        check_backward(&b, &k, g, gh);
        free(g);
        free(gh);
        test_close(&b.t);
        test_close(&k.t);
    }
}

/* sum(g y + gh h) of a row as a function of the sum h, in double. */
static double norm_loss(const struct norm *k, const double *h, const double *w, const double *g,
                        const double *gh)
{
    double loss = 0;
    for (uint64_t row = 0; row < k->rows; row++) {
        const double *x = h + row * k->columns;
        double n = (double)k->columns, mean = 0, squares = 0;
        for (uint64_t c = 0; c < k->columns && k->centered; c++)
            mean += x[c] / n;
        for (uint64_t c = 0; c < k->columns; c++)
            squares += (x[c] - mean) * (x[c] - mean) / n;
        for (uint64_t c = 0; c < k->columns; c++) {
            uint64_t at = row * k->columns + c;
            loss += g[at] * (x[c] - mean) / sqrt(squares + 1e-5) * w[c] + gh[at] * x[c];
        }
    }
    return loss;
}

static void slopes_of_norms(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct norm k;
        struct backward b;
        open_norm(&k, 8 + i, 0); /* 5 columns */
        test_run(&k.t);
        open_backward(&b, &k, 0, 0);
        double *g = test_values(&b.t, b.g), *gh = test_values(&b.t, b.gh);
        double *h = test_values(&b.t, b.h), *w = test_values(&b.t, b.w);
        test_run(&b.t);
        for (uint64_t at = 0; at < k.n; at++) {
            double x = h[at], high, low;
            h[at] = x + TEST_STEP;
            high = norm_loss(&k, h, w, g, gh);
            h[at] = x - TEST_STEP;
            low = norm_loss(&k, h, w, g, gh);
            h[at] = x;
            test_near(&b.t, b.gx, at, (high - low) / (2 * TEST_STEP),
                      60 + (test_is_wide(&b.t) ? 1e8 : 0));
        }
        free(g);
        free(gh);
        free(h);
        free(w);
        test_close(&b.t);
        test_close(&k.t);
    }
}

/* ---- rotation -------------------------------------------------------------------------------- */

static void open_rope(struct test_call *t, const char *name, const uint64_t s[4])
{
    test_open(t, name);
    test_dims(t, s[0], s[2], 0, 0);
    test_arg(t, s[1]);
    test_arg(t, s[2]);
    test_arg(t, s[3]);
}

/* Queries and keys, there and back, against rotary (in f32 beside 16 bits) with the table and with
 * the conjugate one. */
static void rotations(void **state)
{
    (void)state;
    for (int i = 0; i < 48; i++) {
        uint64_t seq = 1 + test_below(6), tokens = seq * (1 + test_below(2));
        const uint64_t s[4] = {tokens, seq, 2 * (1 + test_below(150)), (uint64_t)i % 2};
        uint64_t heads[2] = {1 + test_below(4), 1 + test_below(2)}, back = (uint64_t)i / 2 % 2;
        uint8_t dtype = test_floats[i / 4 % 4];
        bool in_place = i % 3 == 0;
        struct test_call t;
        int x[2], y[2], copy[2];
        open_rope(&t, "fused_rope", s);
        test_arg(&t, back);
        for (int k = 0; k < 2; k++)
            x[k] = test_input(&t, 0, dtype, tokens * heads[k] * s[2]);
        int table = test_input(&t, 1, TSR_F32, (seq + 2) * s[2]);
        struct test_call before;
        test_open(&before, "");
        for (int k = 0; k < 2; k++) {
            y[k] = in_place ? test_same(&t, 2, TSR_WRITE, x[k])
                            : test_output(&t, 2, dtype, t.operands[x[k]].n);
            copy[k] = same_as(&before, 0, &t, x[k]);
        }
        test_run(&t);
        for (int k = 0; k < 2; k++) {
            struct test_call one;
            open_rope(&one, back ? "rotary_backward" : "rotary", s);
            same_as(&one, 0, &before, copy[k]);
            int angles = same_as(&one, 1, &t, table);
            for (uint64_t p = 1; back && p < t.operands[table].n; p += 2)
                test_set(&one, angles, p, -test_get(&t, table, p));
            int out = test_output(&one, 2, dtype, t.operands[x[k]].n);
            test_run(&one);
            same_bits(&t, y[k], &one, out);
            test_close(&one);
        }
        test_close(&before);
        test_close(&t);
    }
}

/* ---- SwiGLU ---------------------------------------------------------------------------------- */

static void elementwise(struct test_call *t, const char *name, uint64_t n)
{
    test_open(t, name);
    test_dims(t, 1, n, 0, 0);
}

static void gates(void **state)
{
    (void)state;
    for (int i = 0; i < 32; i++) {
        uint64_t n = 1 + test_below(700);
        uint8_t dtype = test_floats[i % 4];
        struct test_call t, silu, mul;
        test_open(&t, "fused_swiglu");
        test_dims(&t, 1, n, 0, 0);
        int gate = test_input(&t, 0, dtype, n), up = test_input(&t, 1, dtype, n);
        int out = test_output(&t, 2, dtype, n);
        test_run(&t);
        elementwise(&silu, "silu", n);
        same_as(&silu, 0, &t, gate);
        int s = test_output(&silu, 1, dtype, n);
        test_run(&silu);
        elementwise(&mul, "mul", n);
        same_as(&mul, 0, &silu, s);
        same_as(&mul, 1, &t, up);
        int product = test_output(&mul, 2, dtype, n);
        test_run(&mul);
        if (is_exact(dtype))
            same_bits(&t, out, &mul, product);
        else
            nearly(&t, out, &mul, product, &mul, product);
        test_close(&mul);
        test_close(&silu);
        test_close(&t);
    }
}

static double swiglu(double gate, double up)
{
    return gate / (1 + exp(-gate)) * up;
}

/* In place of gate and up or not, both gradients or one. */
static void gradients_of_gates(void **state)
{
    (void)state;
    for (int i = 0; i < 48; i++) {
        uint64_t n = 1 + test_below(700);
        uint8_t dtype = test_floats[i % 4];
        struct test_call t;
        test_open(&t, "fused_swiglu_backward");
        test_dims(&t, 1, n, 0, 0);
        int in[3], out[2] = {-1, -1};
        double *x[3];
        for (unsigned k = 0; k < 3; k++) {
            in[k] = test_input(&t, k, dtype, n);
            x[k] = test_values(&t, in[k]);
        }
        for (unsigned k = 0; k < 2; k++)
            if (i / 4 % 3 != (int)k)
                out[k] = i / 12 % 2 ? test_same(&t, 3 + k, TSR_WRITE, in[1 + k])
                                    : test_output(&t, 3 + k, dtype, n);
        test_run(&t);
        for (uint64_t at = 0; at < n; at++) {
            double gate = x[1][at], up = x[2][at], d = TEST_STEP;
            double of_gate = (swiglu(gate + d, up) - swiglu(gate - d, up)) / (2 * d);
            double of_up = (swiglu(gate, up + d) - swiglu(gate, up - d)) / (2 * d);
            double room = 8 + (test_is_wide(&t) ? 1e5 : 0);
            if (out[0] >= 0)
                test_near(&t, out[0], at, x[0][at] * of_gate, room);
            if (out[1] >= 0)
                test_near(&t, out[1], at, x[0][at] * of_up, room);
        }
        for (int k = 0; k < 3; k++)
            free(x[k]);
        test_close(&t);
    }
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

struct loss {
    struct test_call t;
    uint64_t rows, columns;
    uint8_t dtype;
    int x, labels, count, loss, gx;
    double *logits; /* before the call */
};

/* kind: 0 no gradient, 1 in new memory, 2 in place. */
static void open_loss(struct loss *k, uint8_t dtype, int kind, double ignored)
{
    *k = (struct loss){.rows = 1 + test_below(6), .columns = 1 + test_below(600), .gx = -1};
    k->dtype = dtype;
    test_open(&k->t, "fused_cross_entropy");
    test_dims(&k->t, k->rows, k->columns, 0, 0);
    k->x = test_input(&k->t, 0, dtype, k->rows * k->columns);
    k->logits = test_values(&k->t, k->x);
    k->labels = test_tensor(&k->t, 1, TSR_READ, TSR_I64, k->rows);
    double n = 0;
    for (uint64_t row = 0; row < k->rows; row++) {
        bool counts = test_between(0, 1) >= ignored;
        test_set(&k->t, k->labels, row, counts ? (double)test_below(k->columns) : -100);
        n += counts;
    }
    k->count = test_tensor(&k->t, 2, TSR_READ, TSR_F32, 1);
    test_set(&k->t, k->count, 0, n);
    k->loss = test_output(&k->t, 3, TSR_F32, 1);
    if (kind)
        k->gx = kind == 2 ? test_same(&k->t, 4, TSR_WRITE, k->x)
                          : test_output(&k->t, 4, dtype, k->rows * k->columns);
    test_scratch(&k->t, 5, TSR_F32, k->rows);
}

static void close_loss(struct loss *k)
{
    free(k->logits);
    test_close(&k->t);
}

/* cast to f32, log_softmax, nll_loss, cross_entropy_backward, cast: the loss in chunks. */
static void check_loss(const struct loss *k)
{
    struct test_call p, nll, gradient;
    uint64_t n = k->rows * k->columns;
    uint8_t wide = k->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    test_open(&p, "log_softmax");
    test_dims(&p, k->rows, k->columns, 0, 0);
    test_set_all(&p, test_tensor(&p, 0, TSR_READ, wide, n), k->logits);
    int logs = test_output(&p, 1, wide, n);
    test_run(&p);
    test_open(&nll, "nll_loss");
    same_as(&nll, 0, &p, logs);
    same_as(&nll, 1, &k->t, k->labels);
    int loss = test_output(&nll, 2, TSR_F32, 1);
    test_output(&nll, 3, TSR_F32, 1);
    test_run(&nll);
    same_bits(&k->t, k->loss, &nll, loss);
    test_open(&gradient, "cross_entropy_backward");
    same_as(&gradient, 0, &p, logs);
    same_as(&gradient, 1, &k->t, k->labels);
    same_as(&gradient, 2, &k->t, k->count);
    int gx = test_output(&gradient, 3, k->dtype, n);
    test_run(&gradient);
    if (k->gx >= 0)
        same_bits(&k->t, k->gx, &gradient, gx);
    test_close(&gradient);
    test_close(&nll);
    test_close(&p);
}

static void losses(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        struct loss k;
        open_loss(&k, test_floats[i % 4], i / 4 % 3, i < 48 ? 0.3 : 1);
        test_run(&k.t);
        check_loss(&k);
        if (i >= 48) /* no label: the mean of nothing, and no gradient */
            assert_true(isnan(test_get(&k.t, k.loss, 0)));
        for (uint64_t at = 0; i >= 48 && k.gx >= 0 && at < k.rows * k.columns; at++)
            assert_true(test_get(&k.t, k.gx, at) == 0);
        close_loss(&k);
    }
}

static double loss_of(const struct loss *k, const double *x)
{
    double loss = 0, n = test_get(&k->t, k->count, 0);
    for (uint64_t row = 0; row < k->rows; row++) {
        double label = test_get(&k->t, k->labels, row), sum = 0;
        for (uint64_t c = 0; c < k->columns && label >= 0; c++)
            sum += exp(x[row * k->columns + c]);
        if (label >= 0)
            loss += (log(sum) - x[row * k->columns + (uint64_t)label]) / n;
    }
    return loss;
}

static void slopes_of_losses(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct loss k;
        open_loss(&k, test_floats[i % 4], 2, 0.2);
        test_run(&k.t);
        for (int m = 0; m < 40; m++) {
            uint64_t at = test_below(k.rows * k.columns);
            double x = k.logits[at], high, low;
            k.logits[at] = x + TEST_STEP;
            high = loss_of(&k, k.logits);
            k.logits[at] = x - TEST_STEP;
            low = loss_of(&k, k.logits);
            k.logits[at] = x;
            test_near(&k.t, k.gx, at, (high - low) / (2 * TEST_STEP),
                      1 + (test_is_wide(&k.t) ? 1e5 : 0));
        }
        close_loss(&k);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refusals(void **state)
{
    (void)state;
    struct norm k;
    struct loss l;
    struct test_call t;
    open_norm(&k, 8, 0);
    k.t.operands[k.h].access = TSR_READ;
    test_refused(&k.t);
    test_close(&k.t);
    open_loss(&l, TSR_F32, 1, 0);
    test_set(&l.t, l.labels, 0, (double)l.columns);
    test_bad_label(&l.t, l.loss);
    close_loss(&l);
    const uint64_t s[4] = {2, 2, 4, 0};
    open_rope(&t, "fused_rope", s);
    test_arg(&t, 0);
    test_input(&t, 0, TSR_F32, 8);
    test_input(&t, 0, TSR_F32, 16);
    test_input(&t, 1, TSR_F32, 8);
    test_output(&t, 2, TSR_F32, 8); /* one result of two */
    test_refused(&t);
    test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_norms),  cmocka_unit_test(gradients_of_norms),
        cmocka_unit_test(slopes_of_norms), cmocka_unit_test(rotations),
        cmocka_unit_test(gates),           cmocka_unit_test(gradients_of_gates),
        cmocka_unit_test(losses),          cmocka_unit_test(slopes_of_losses),
        cmocka_unit_test(refusals)};
    return cmocka_run_group_tests_name("kernels: fused", tests, NULL, NULL);
}
