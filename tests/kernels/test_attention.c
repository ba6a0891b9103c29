/* test_kernels_attention.c: attention against its definition in double, its gradients against
 * central differences, and both against the kernels that it fuses.
 */
#include "tests/kernels/kernels_testing.h"

struct shape {
    uint64_t batch, heads, kv_heads, queries, keys, dim;
    bool causal;
    double scale;
};

static uint64_t row(uint64_t rows, uint64_t heads, uint64_t dim, uint64_t b, uint64_t t, uint64_t h)
{
    return ((b * rows + t) * heads + h) * dim;
}

static double score(const struct shape *s, const double *q, const double *k, uint64_t b, uint64_t h,
                    uint64_t i, uint64_t j)
{
    const double *x = q + row(s->queries, s->heads, s->dim, b, i, h);
    const double *y = k + row(s->keys, s->kv_heads, s->dim, b, j, h * s->kv_heads / s->heads);
    double sum = 0;
    for (uint64_t d = 0; d < s->dim; d++)
        sum += x[d] * y[d];
    return s->scale * sum;
}

/* out and lse by the book. */
static void reference(const struct shape *s, const double *q, const double *k, const double *v,
                      double *out, double *lse)
{
    for (uint64_t at = 0; at < s->batch * s->heads * s->queries; at++) {
        uint64_t i = at % s->queries, h = at / s->queries % s->heads;
        uint64_t b = at / s->queries / s->heads,
                 seen = s->causal && i + 1 < s->keys ? i + 1 : s->keys;
        double *y = out + row(s->queries, s->heads, s->dim, b, i, h), sum = 0;
        for (uint64_t d = 0; d < s->dim; d++)
            y[d] = 0;
        for (uint64_t j = 0; j < seen; j++)
            sum += exp(score(s, q, k, b, h, i, j));
        for (uint64_t j = 0; j < seen; j++) {
            double p = exp(score(s, q, k, b, h, i, j)) / sum;
            const double *x =
                v + row(s->keys, s->kv_heads, s->dim, b, j, h * s->kv_heads / s->heads);
            for (uint64_t d = 0; d < s->dim; d++)
                y[d] += p * x[d];
        }
        lse[at] = log(sum);
    }
}

static uint64_t size_q(const struct shape *s)
{
    return s->batch * s->queries * s->heads * s->dim;
}
static uint64_t size_k(const struct shape *s)
{
    return s->batch * s->keys * s->kv_heads * s->dim;
}
static uint64_t size_lse(const struct shape *s)
{
    return s->batch * s->heads * s->queries;
}

static void sizes(struct test_call *t, const struct shape *s)
{
    uint64_t d[] = {s->batch, s->heads, s->kv_heads, s->queries, s->keys, s->dim};
    memcpy(t->work.dims, d, sizeof d);
    t->work.causal = s->causal;
    t->work.constants[0] = s->scale;
}

static double *numbers(uint64_t n)
{
    double *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    return x;
}

static struct shape random_shape(int i)
{
    uint64_t kv = 1 + test_below(2), seq = i % 9 == 8 ? 70 : 1 + test_below(20);
    struct shape s = {
        1 + test_below(2), kv * (1 + test_below(3)), kv, seq, seq, 1 + test_below(9), i % 2, 0.7};
    if (i % 5 == 4)
        s.keys = 1 + test_below(30);
    return s;
}

static void forward(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        struct shape s = random_shape(i);
        if (i == 8) /* several blocks of queries */
            s.queries = s.keys = 150;
        uint8_t dtype = test_floats[i % 4];
        uint64_t pad = i % 3 ? 0 : 5; /* behind the rows of lse */
        struct test_call t;
        test_open(&t, i % 2 ? "flash_attention" : "efficient_attention");
        sizes(&t, &s);
        uint64_t pitch = i % 4 == 1 ? 3 * s.heads * s.dim : 0; /* a slice of q, k and v */
        int q = test_view(&t, 0, TSR_READ, dtype, s.batch * s.queries, s.heads * s.dim, pitch);
        test_fill(&t, q, -2, 2);
        int k = test_input(&t, 1, dtype, size_k(&s)), v = test_input(&t, 2, dtype, size_k(&s));
        int out = test_output(&t, 3, dtype, size_q(&s));
        uint64_t heads = s.batch * s.heads;
        int lse = test_view(&t, 4, TSR_WRITE, TSR_F32, heads, s.queries + pad, 0);
        test_run(&t);
        double *vq = test_values(&t, q), *vk = test_values(&t, k), *vv = test_values(&t, v);
        double *want = numbers(size_q(&s)), *want_lse = numbers(size_lse(&s));
        reference(&s, vq, vk, vv, want, want_lse);
        test_near_all(&t, out, want, 10);
        for (uint64_t at = 0; at < heads * (s.queries + pad); at++) {
            uint64_t query = at % (s.queries + pad);
            if (query < s.queries)
                test_near(&t, lse, at, want_lse[at / (s.queries + pad) * s.queries + query], 20);
            else
                assert_true(test_get(&t, lse, at) == INFINITY);
        }
        free(vq);
        free(vk);
        free(vv);
        free(want);
        free(want_lse);
        test_close(&t);
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

static double loss(const struct shape *s, double *const qkv[3], const double *g, double *out,
                   double *lse)
{
    double sum = 0;
    reference(s, qkv[0], qkv[1], qkv[2], out, lse);
    for (uint64_t i = 0; i < size_q(s); i++)
        sum += g[i] * out[i];
    return sum;
}

/* Of every third element or so, or of all if there are few. */
static void check_slopes(const struct test_call *t, const struct shape *s, double *const qkv[3],
                         const double *g, const int grads[3])
{
    double *out = numbers(size_q(s)), *lse = numbers(size_lse(s));
    for (int k = 0; k < 3; k++) {
        uint64_t n = k ? size_k(s) : size_q(s);
        for (uint64_t i = test_below(n > 40 ? n / 20 : 1); i<n; i += n> 40 ? n / 20 : 1) {
            double x = qkv[k][i], high, low;
            qkv[k][i] = x + TEST_STEP;
            high = loss(s, qkv, g, out, lse);
            qkv[k][i] = x - TEST_STEP;
            low = loss(s, qkv, g, out, lse);
            qkv[k][i] = x;
            /* a result in 16 bits is wrong by that much in sum(g out), which all gradients have */
            bool exact = t->operands[3].dtype == TSR_F32;
            double scale = test_is_wide(t) ? 1e6 : exact ? 50 : 1e5;
            test_near(t, grads[k], i, (high - low) / (2 * TEST_STEP), scale);
        }
    }
    free(out);
    free(lse);
}

static void backward(void **state)
{
    (void)state;
    for (int i = 0; i < 48; i++) {
        struct shape s = random_shape(i);
        uint8_t dtype = test_floats[i % 4];
        struct test_call t;
        test_open(&t, i % 2 ? "flash_attention_backward" : "efficient_attention_backward");
        sizes(&t, &s);
        int in[3], grads[3];
        double *qkv[3];
        for (int k = 0; k < 3; k++) {
            in[k] = test_input(&t, (unsigned)k, dtype, k ? size_k(&s) : size_q(&s));
            qkv[k] = test_values(&t, in[k]);
        }
        double *out = numbers(size_q(&s)), *lse = numbers(size_lse(&s));
        reference(&s, qkv[0], qkv[1], qkv[2], out, lse);
        bool half = dtype == TSR_BF16 || dtype == TSR_F16;
        uint8_t result = half && i % 3 ? TSR_F32 : dtype;
        test_set_all(&t, test_tensor(&t, 3, TSR_READ, result, size_q(&s)), out);
        test_set_all(
            &t, test_tensor(&t, 4, TSR_READ, dtype == TSR_F64 ? TSR_F64 : TSR_F32, size_lse(&s)),
            lse);
        double *g = test_values(&t, test_input(&t, 5, dtype, size_q(&s)));
        for (int k = 0; k < 3; k++)
            grads[k] = test_output(&t, 6 + (unsigned)k, dtype, k ? size_k(&s) : size_q(&s));
        test_run(&t);
        check_slopes(&t, &s, qkv, g, grads);
        for (int k = 0; k < 3; k++)
            free(qkv[k]);
        free(out);
        free(lse);
        free(g);
        test_close(&t);
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

static void softmax(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        bool causal = i % 2;
        uint8_t dtype = test_floats[i / 2 % 4];
        uint64_t columns = 1 + test_below(i < 8 ? 4 : 600), rows = causal ? 2 * columns : 3;
        struct test_call t;
        rows = rows > 80 ? 80 : rows;
        test_open(&t, "softmax");
        test_dims(&t, rows, columns, 0, 0);
        if (causal)
            test_arg(&t, 1);
        int x = test_input(&t, 0, dtype, rows * columns),
            y = test_output(&t, 1, dtype, rows * columns);
        bool masked = i == 38 && rows > 1;
        for (uint64_t c = 0; c < columns && masked; c++)
            test_set(&t, x, columns + c, -INFINITY);
        test_run(&t);
        for (uint64_t r = 0; r < rows; r++) {
            uint64_t seen = causal ? r % columns + 1 : columns;
            double sum = 0;
            for (uint64_t c = 0; c < seen; c++)
                sum += exp(test_get(&t, x, r * columns + c));
            for (uint64_t c = 0; c < columns; c++) {
                double p = c < seen ? exp(test_get(&t, x, r * columns + c)) / sum : 0;
                test_near(&t, y, r * columns + c, masked && r == 1 ? 0 : p, 1);
            }
        }
        test_close(&t);
    }
}

static void softmax_backward(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_FLOATS * 3; i++) {
        uint64_t columns = 1 + test_below(300), rows = 1 + test_below(4);
        struct test_call t;
        test_open(&t, "softmax_backward");
        test_dims(&t, rows, columns, 0, 0);
        int g = test_input(&t, 0, test_floats[i % 4], rows * columns);
        int p = test_input(&t, 1, test_floats[i % 4], rows * columns);
        int y = test_output(&t, 2, test_floats[i % 4], rows * columns);
        test_fill(&t, p, 0, 0.01);
        test_run(&t);
        for (uint64_t r = 0; r < rows; r++) {
            double sum = 0;
            for (uint64_t c = r * columns; c < (r + 1) * columns; c++)
                sum += test_get(&t, g, c) * test_get(&t, p, c);
            for (uint64_t c = r * columns; c < (r + 1) * columns; c++)
                test_near(&t, y, c, test_get(&t, p, c) * (test_get(&t, g, c) - sum), 0.1);
        }
        test_close(&t);
    }
}

/* ---- the same of single kernels -------------------------------------------------------------- */

/* Runs a kernel of f32 whose operands are arrays of doubles: inputs in their slots, output last. */
struct step {
    const char *name;
    const double *in[6];
    uint64_t sizes[6];
    uint64_t dims[4], args[4];
    uint32_t n_args;
    double constant;
};

static double *run_step(const struct step *s, unsigned slot, uint64_t n)
{
    struct test_call t;
    test_open(&t, s->name);
    memcpy(t.work.dims, s->dims, sizeof s->dims);
    t.work.constants[0] = s->constant;
    for (uint32_t i = 0; i < s->n_args; i++)
        test_arg(&t, s->args[i]);
    for (unsigned i = 0; i < 6; i++)
        if (s->in[i])
            test_set_all(&t, test_tensor(&t, i, TSR_READ, TSR_F32, s->sizes[i]), s->in[i]);
    int out = test_output(&t, slot, TSR_F32, n);
    test_run(&t);
    double *result = test_values(&t, out);
    test_close(&t);
    return result;
}

static double *run_bmm(const char *name, const struct shape *s, const double *a, uint64_t n_a,
                       const double *b, uint64_t n_b, uint64_t n)
{
    struct step step = {
        .name = name, .in = {a, b}, .sizes = {n_a, n_b}, .n_args = 4, .constant = 1};
    uint64_t args[4] = {s->batch, s->queries, s->heads, s->dim};
    memcpy(step.args, args, sizeof args);
    return run_step(&step, 3, n);
}

static void near_arrays(const double *a, const double *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        assert_true(fabs(a[i] - b[i]) < 2e-5);
}

struct results {
    double *out, *lse, *gq, *gk, *gv;
};

static struct results fused(const struct shape *s, double *const x[4])
{
    struct test_call t;
    struct results r;
    uint64_t n = size_q(s);
    test_open(&t, "flash_attention");
    sizes(&t, s);
    for (int k = 0; k < 3; k++)
        test_set_all(&t, test_tensor(&t, (unsigned)k, TSR_READ, TSR_F32, n), x[k]);
    int out = test_output(&t, 3, TSR_F32, n), lse = test_output(&t, 4, TSR_F32, size_lse(s));
    test_run(&t);
    r.out = test_values(&t, out);
    r.lse = test_values(&t, lse);
    test_close(&t);
    test_open(&t, "flash_attention_backward");
    sizes(&t, s);
    const double *in[6] = {x[0], x[1], x[2], r.out, r.lse, x[3]};
    for (int k = 0; k < 6; k++)
        test_set_all(&t, test_tensor(&t, (unsigned)k, TSR_READ, TSR_F32, k == 4 ? size_lse(s) : n),
                     in[k]);
    for (unsigned k = 6; k < 9; k++)
        test_output(&t, k, TSR_F32, n);
    test_run(&t);
    r.gq = test_values(&t, 6);
    r.gk = test_values(&t, 7);
    r.gv = test_values(&t, 8);
    test_close(&t);
    return r;
}

static void composition(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        struct shape s = {2, 3, 3, 37, 37, 8, causal, 0.35};
        uint64_t n = size_q(&s), scores = s.batch * s.heads * s.queries * s.keys;
        double *x[4];
        for (int k = 0; k < 4; k++) {
            x[k] = numbers(n);
            for (uint64_t i = 0; i < n; i++)
                x[k][i] = (double)(float)test_between(-1, 1);
        }
        struct results r = fused(&s, x);
        struct step scale = {.name = "mul_scalar", .in = {x[0]}, .sizes = {n}, .constant = s.scale};
        double *q = run_step(&scale, 1, n);
        double *raw = run_bmm("bmm_scores", &s, q, n, x[1], n, scores);
        struct step soft = {.name = "softmax", .in = {raw}, .sizes = {scores}, .n_args = 1};
        soft.dims[0] = scores / s.keys;
        soft.dims[1] = s.keys;
        soft.args[0] = (uint64_t)causal;
        double *p = run_step(&soft, 1, scores);
        double *out = run_bmm("bmm_values", &s, p, scores, x[2], n, n);
        near_arrays(r.out, out, n);
        double *gv = run_bmm("bmm_grad_v", &s, x[3], n, p, scores, n);
        near_arrays(r.gv, gv, n);
        double *gp = run_bmm("bmm_grad_p", &s, x[3], n, x[2], n, scores);
        struct step back = {.name = "softmax_backward", .in = {gp, p}, .sizes = {scores, scores}};
        memcpy(back.dims, soft.dims, sizeof soft.dims);
        double *gs = run_step(&back, 2, scores);
        double *gk = run_bmm("bmm_grad_k", &s, gs, scores, q, n, n);
        near_arrays(r.gk, gk, n);
        double *gq = run_bmm("bmm_grad_q", &s, gs, scores, x[1], n, n);
        scale.in[0] = gq;
        double *gx = run_step(&scale, 1, n);
        near_arrays(r.gq, gx, n);
        double *all[] = {x[0], x[1], x[2], x[3], r.out, r.lse, r.gq, r.gk, r.gv, q,
                         raw,  p,    out,  gv,   gp,    gs,    gk,   gq,   gx};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]);
    }
}

int main(void)
{
    assert_int_equal(tsr_kernels_init(), TSR_OK);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward), cmocka_unit_test(backward), cmocka_unit_test(softmax),
        cmocka_unit_test(softmax_backward), cmocka_unit_test(composition)};
    return cmocka_run_group_tests_name("kernels: attention", tests, NULL, NULL);
}
