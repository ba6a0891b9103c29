/* test_kernels_optimizer.c: the variants of AdamW against each other and against double, SGD, and
 * clipping by the norm.
 */
#include "tests/kernels/kernels_testing.h"

enum { PARAMS = 3, STEPS = 10, G = 0, M, V, P, T };

static const uint64_t sizes[PARAMS] = {1, 300, 77};
static const bool decays[PARAMS] = {true, false, true};

struct parameter {
    double *x[5]; /* as G to T */
};

struct model {
    struct parameter p[PARAMS];
    unsigned missed[PARAMS]; /* steps of the optimizer */
    uint8_t dtype, state_dtype;
    float scale, clip; /* fused: of the gradients; clip 0: no factor is given */
    double scalars[TSR_N_SCALARS];
};

static uint8_t dtype_of(const struct model *m, int what)
{
    return what == M || what == V || what == T ? m->state_dtype : m->dtype;
}

static void model_open(struct model *m, uint8_t dtype, uint8_t state_dtype)
{
    m->dtype = dtype;
    m->state_dtype = state_dtype;
    m->scale = 1;
    m->clip = 0;
    memset(m->missed, 0, sizeof m->missed);
    memset(m->scalars, 0, sizeof m->scalars);
    m->scalars[TSR_SCALAR_LR] = 0.01;
    m->scalars[TSR_SCALAR_BETA1] = 0.9;
    m->scalars[TSR_SCALAR_BETA2] = 0.95;
    m->scalars[TSR_SCALAR_EPS] = 1e-8;
    m->scalars[TSR_SCALAR_WEIGHT_DECAY] = 0.1;
    m->scalars[TSR_SCALAR_MOMENTUM] = 0.9;
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < 5; k++) {
            m->p[i].x[k] = calloc(sizes[i], sizeof(double));
            assert_non_null(m->p[i].x[k]);
            for (uint64_t e = 0; e < sizes[i] && k == P; e++)
                m->p[i].x[k][e] = test_quantize(test_between(-1, 1), dtype);
        }
}

static void model_close(struct model *m)
{
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < 5; k++)
            free(m->p[i].x[k]);
}

static void model_copy(struct model *to, const struct model *from)
{
    model_open(to, from->dtype, from->state_dtype);
    memcpy(to->missed, from->missed, sizeof to->missed);
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < 5; k++)
            memcpy(to->p[i].x[k], from->p[i].x[k], sizes[i] * sizeof(double));
}

static void new_gradients(struct model *m)
{
    for (int i = 0; i < PARAMS; i++)
        for (uint64_t e = 0; e < sizes[i]; e++)
            m->p[i].x[G][e] = test_quantize(test_between(-1, 1), m->dtype);
}

/* Runs a kernel over parameters [from, to): reads and writes are bits of G to T, which lie in the
 * slots of their numbers; `old`: T is read in slot 5. */
static void run(struct model *m, const char *name, unsigned reads, unsigned writes, bool old,
                int from, int to)
{
    struct test_call t;
    int operand[PARAMS][5];
    test_open(&t, name);
    memcpy(t.scalars, m->scalars, sizeof m->scalars);
    for (int i = from; i < to; i++) {
        test_arg(&t,
                 decays[i] | m->missed[i] << 2 | (m->scale != 1 ? test_scale_bits(m->scale) : 0));
        for (int k = 0; k < 5; k++) {
            unsigned access = (reads >> k & 1 ? TSR_READ : 0u) | (writes >> k & 1 ? TSR_WRITE : 0u);
            if (old && k == T)
                test_set_all(&t, test_tensor(&t, 5, TSR_READ, dtype_of(m, T), sizes[i]),
                             m->p[i].x[T]);
            if (!access)
                continue;
            operand[i][k] = test_tensor(&t, (unsigned)k, access, dtype_of(m, k), sizes[i]);
            if (access & TSR_READ)
                test_set_all(&t, operand[i][k], m->p[i].x[k]);
        }
    }
    if (m->clip > 0)
        test_set_all(&t, test_tensor(&t, 5, TSR_READ, TSR_F32, 1), (double[]){(double)m->clip});
    test_run(&t);
    for (int i = from; i < to; i++)
        for (int k = 0; k < 5; k++)
            for (uint64_t e = 0; writes >> k & 1 && e < sizes[i]; e++)
                m->p[i].x[k][e] = test_get(&t, operand[i][k], e);
    test_close(&t);
}

#define BIT(k) (1u << (k))

static void step_foreach(struct model *m, bool host)
{
    run(m, "foreach_mul_weight_decay", BIT(P), BIT(P), false, 0, PARAMS);
    run(m, "foreach_lerp_exp_avg", BIT(G) | BIT(M), BIT(M), false, 0, PARAMS);
    run(m, "foreach_mul_exp_avg_sq", BIT(V), BIT(V), false, 0, PARAMS);
    run(m, "foreach_addcmul_exp_avg_sq", BIT(G) | BIT(V), BIT(V), false, 0, PARAMS);
    if (host) {
        run(m, "foreach_addcdiv", BIT(M) | BIT(V) | BIT(P), BIT(P), false, 0, PARAMS);
        return;
    }
    run(m, "foreach_sqrt", BIT(V), BIT(T), false, 0, PARAMS);
    run(m, "foreach_div_bias_correction", BIT(T), BIT(T), false, 0, PARAMS);
    run(m, "foreach_add_eps", BIT(T), BIT(T), false, 0, PARAMS);
    run(m, "foreach_addcdiv", BIT(M) | BIT(T) | BIT(P), BIT(P), false, 0, PARAMS);
}

static void step_loop(struct model *m)
{
    for (int i = 0; i < PARAMS; i++) {
        run(m, "mul_weight_decay", BIT(P), BIT(P), false, i, i + 1);
        run(m, "lerp_exp_avg", BIT(G) | BIT(M), BIT(M), false, i, i + 1);
        run(m, "mul_exp_avg_sq", BIT(V), BIT(V), false, i, i + 1);
        run(m, "addcmul_exp_avg_sq", BIT(G) | BIT(V), BIT(V), false, i, i + 1);
        run(m, "sqrt", BIT(V), BIT(T), false, i, i + 1);
        run(m, "div_bias_correction", 0, BIT(T), true, i, i + 1);
        run(m, "addcdiv", BIT(M) | BIT(T) | BIT(P), BIT(P), false, i, i + 1);
    }
}

static void step_fused(struct model *m)
{
    run(m, "fused_adamw", BIT(G) | BIT(M) | BIT(V) | BIT(P), BIT(M) | BIT(V) | BIT(P), false, 0,
        PARAMS);
}

/* The algorithm of Loshchilov and Hutter, in double; with AMSGrad T is the largest square. */
static void step_reference(struct model *m, bool amsgrad)
{
    const double *s = m->scalars;
    double lr = s[TSR_SCALAR_LR], b1 = s[TSR_SCALAR_BETA1], b2 = s[TSR_SCALAR_BETA2];
    for (int i = 0; i < PARAMS; i++) {
        double *const *x = m->p[i].x, own = s[TSR_SCALAR_STEP] - m->missed[i];
        for (uint64_t e = 0; e < sizes[i]; e++) {
            double g = x[G][e];
            x[M][e] = b1 * x[M][e] + (1 - b1) * g;
            x[V][e] = b2 * x[V][e] + (1 - b2) * g * g;
            double mean = x[M][e] / (1 - pow(b1, own));
            double largest = amsgrad ? x[T][e] = fmax(x[T][e], x[V][e]) : x[V][e];
            double square = largest / (1 - pow(b2, own));
            double wd = decays[i] ? s[TSR_SCALAR_WEIGHT_DECAY] : 0;
            x[P][e] -= lr * (mean / (sqrt(square) + s[TSR_SCALAR_EPS]) + wd * x[P][e]);
        }
    }
}

static double largest_difference(const struct model *a, const struct model *b, int k)
{
    double worst = 0;
    for (int i = 0; i < PARAMS; i++)
        for (uint64_t e = 0; e < sizes[i]; e++) {
            double off = fabs(a->p[i].x[k][e] - b->p[i].x[k][e]);
            assert_false(isnan(off));
            worst = off > worst ? off : worst;
        }
    return worst;
}

/* All variants, ten steps with the same gradients; from d = 4 on the parameters are behind the
 * optimizer by different numbers of steps. */
static void adamw(void **state)
{
    (void)state;
    static const uint8_t dtypes[][2] = {
        {TSR_F32, TSR_F32}, {TSR_F64, TSR_F64}, {TSR_F32, TSR_BF16}, {TSR_BF16, TSR_F32}};
    static const unsigned missed[PARAMS] = {3, 0, 9};
    for (int round = 0; round < 8; round++) {
        enum { FUSED, FOREACH, ON_HOST, LOOP, REFERENCE, VARIANTS };
        struct model m[VARIANTS];
        int d = round % 4, before = round < 4 ? 0 : 9;
        model_open(&m[0], dtypes[d][0], dtypes[d][1]);
        if (before)
            memcpy(m[0].missed, missed, sizeof missed);
        for (int k = 1; k < VARIANTS; k++)
            model_copy(&m[k], &m[0]);
        for (int step = 1; step <= STEPS; step++) {
            new_gradients(&m[0]);
            for (int k = 0; k < VARIANTS; k++) {
                m[k].scalars[TSR_SCALAR_STEP] = before + step;
                for (int i = 0; i < PARAMS; i++)
                    memcpy(m[k].p[i].x[G], m[0].p[i].x[G], sizes[i] * sizeof(double));
            }
            step_fused(&m[FUSED]);
            step_foreach(&m[FOREACH], false);
            step_foreach(&m[ON_HOST], true);
            step_loop(&m[LOOP]);
            step_reference(&m[REFERENCE], false);
        }
        /* a step moves p by about lr; what is stored in 16 bits is that much off, every step */
        double error = d == 0 ? 2e-7 * STEPS : d == 1 ? 1e-14 : d == 2 ? 0.01 : 0.004 * STEPS;
        for (int k = 0; k < REFERENCE; k++)
            assert_true(largest_difference(&m[k], &m[REFERENCE], P) < error);
        if (d < 2) { /* the same operations in the same order, without rounding in between */
            assert_true(largest_difference(&m[FUSED], &m[FOREACH], P) == 0);
            assert_true(largest_difference(&m[FUSED], &m[ON_HOST], P) == 0);
            assert_true(largest_difference(&m[FUSED], &m[LOOP], P) == 0);
            assert_true(largest_difference(&m[FUSED], &m[FOREACH], V) == 0);
        }
        for (int k = 0; k < VARIANTS; k++)
            model_close(&m[k]);
    }
}

/* AMSGrad within the fused kernel, and the kernel that takes the maximum alone. The first gradients
 * are the largest, so that the maximum is not the latest second moment. */
static void amsgrad(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        struct model m, want, plain;
        model_open(&m, d ? TSR_F64 : TSR_F32, d ? TSR_F64 : TSR_F32);
        for (int i = 0; i < PARAMS; i++)
            memset(m.p[i].x[T], 0, sizes[i] * sizeof(double));
        model_copy(&want, &m);
        model_copy(&plain, &m);
        struct model *const all[] = {&m, &want, &plain};
        for (int step = 1; step <= STEPS; step++) {
            new_gradients(&m);
            for (int i = 0; i < PARAMS; i++)
                for (uint64_t e = 0; e < sizes[i]; e++)
                    for (int k = 2; k >= 0; k--)
                        all[k]->p[i].x[G][e] = m.p[i].x[G][e] * (step == 1 ? 8 : 0.125);
            for (int k = 0; k < 3; k++)
                all[k]->scalars[TSR_SCALAR_STEP] = step;
            run(&m, "fused_adamw", BIT(G) | BIT(M) | BIT(V) | BIT(P) | BIT(T),
                BIT(M) | BIT(V) | BIT(P) | BIT(T), false, 0, PARAMS);
            step_reference(&want, true);
            step_reference(&plain, false);
        }
        assert_true(largest_difference(&m, &want, P) < (d ? 1e-13 : 2e-7 * STEPS));
        assert_true(largest_difference(&m, &want, T) < (d ? 1e-13 : 1e-5));
        assert_true(largest_difference(&plain, &want, P) > 1e-3);
        m.p[0].x[V][0] = NAN;
        run(&m, "foreach_maximum", BIT(M) | BIT(V), BIT(M), false, 0, PARAMS);
        for (int i = 0; i < PARAMS; i++)
            for (uint64_t e = 0; e < sizes[i]; e++)
                assert_true(i + e == 0 ? isnan(m.p[i].x[M][e]) : m.p[i].x[M][e] >= m.p[i].x[V][e]);
        model_close(&m);
        model_close(&want);
        model_close(&plain);
    }
}

/* Gradients that are scaled as they are read are those that were scaled before. */
static void scaled(void **state)
{
    (void)state;
    for (int clips = 0; clips < 2; clips++) {
        struct model m, want;
        model_open(&m, TSR_F32, TSR_F32);
        model_copy(&want, &m);
        m.scale = 0.25f;
        m.clip = clips ? 0.7f : 0;
        for (int step = 1; step <= STEPS; step++) {
            new_gradients(&m);
            m.scalars[TSR_SCALAR_STEP] = want.scalars[TSR_SCALAR_STEP] = step;
            for (int i = 0; i < PARAMS; i++)
                for (uint64_t e = 0; e < sizes[i]; e++) {
                    float g = (float)m.p[i].x[G][e] * m.scale;
                    want.p[i].x[G][e] = (double)(clips ? g * m.clip : g);
                }
            step_fused(&m);
            step_fused(&want);
        }
        for (int k = M; k <= P; k++)
            assert_true(largest_difference(&m, &want, k) == 0);
        model_close(&m);
        model_close(&want);
    }
}

/* What SGD is asked for; `first`: this step makes the momentums. */
struct sgd {
    bool momentum, nesterov, maximize, decays, first;
};

/* As torch.optim.SGD(foreach=True) does it: what is negated or decayed is a copy. */
static void sgd_foreach(struct model *m, const struct sgd *o)
{
    unsigned from = BIT(G);
    if (o->maximize)
        run(m, "foreach_neg_grad", BIT(G), BIT(T), false, 0, PARAMS);
    if (o->decays)
        run(m, "foreach_add_decay", BIT(P) | (o->maximize ? BIT(T) : BIT(G)), BIT(T), false, 0,
            PARAMS);
    if (o->maximize || o->decays)
        from = BIT(T);
    if (o->momentum && o->first) {
        for (int i = 0; i < PARAMS; i++)
            run(m, "clone_momentum", from, BIT(M), false, i, i + 1);
    } else if (o->momentum) {
        run(m, "foreach_mul_momentum", BIT(M), BIT(M), false, 0, PARAMS);
        run(m, "foreach_add_momentum", from | BIT(M), BIT(M), false, 0, PARAMS);
    }
    if (o->nesterov)
        run(m, "foreach_add_nesterov", from | BIT(M), from, false, 0, PARAMS);
    else if (o->momentum)
        from = BIT(M);
    run(m, "foreach_add_sgd", from | BIT(P), BIT(P), false, 0, PARAMS);
}

/* One parameter after the other: a new copy is made of the old one. */
static void sgd_loop(struct model *m, const struct sgd *o)
{
    for (int i = 0; i < PARAMS; i++) {
        bool copied = o->maximize;
        if (o->maximize)
            run(m, "neg_grad", BIT(G), BIT(T), false, i, i + 1);
        if (o->decays)
            run(m, "add_decay", BIT(P) | (copied ? 0 : BIT(G)), BIT(T), copied, i, i + 1);
        copied |= o->decays;
        unsigned from = copied ? BIT(T) : BIT(G);
        if (o->momentum && o->first) {
            run(m, "clone_momentum", from, BIT(M), false, i, i + 1);
        } else if (o->momentum) {
            run(m, "mul_momentum", BIT(M), BIT(M), false, i, i + 1);
            run(m, "add_momentum", from | BIT(M), BIT(M), false, i, i + 1);
        }
        if (o->nesterov)
            run(m, "add_nesterov", BIT(M) | (copied ? 0 : BIT(G)), BIT(T), copied, i, i + 1);
        from = o->nesterov ? BIT(T) : o->momentum ? BIT(M) : from;
        run(m, "add_sgd", from | BIT(P), BIT(P), false, i, i + 1);
    }
}

static void sgd_fused(struct model *m, const struct sgd *o)
{
    unsigned states = o->momentum ? BIT(M) : 0;
    m->scale = o->maximize ? -1 : 1;
    run(m, o->nesterov ? "fused_sgd_nesterov" : "fused_sgd",
        BIT(G) | BIT(P) | (o->first ? 0 : states), BIT(P) | states, false, 0, PARAMS);
    m->scale = 1;
}

/* In the list of foreach and of loop all decay, or none do. */
static void sgd_want(struct model *m, const struct sgd *o, bool all, double keeps)
{
    for (int i = 0; i < PARAMS; i++)
        for (uint64_t e = 0; e < sizes[i]; e++) {
            double *const *x = m->p[i].x;
            double g = (o->maximize ? -1 : 1) * x[G][e];
            g += (all ? o->decays : decays[i]) ? 0.1 * x[P][e] : 0;
            if (o->momentum)
                x[M][e] = o->first ? g : 0.9 * x[M][e] + keeps * g;
            x[P][e] -= 0.01 * (o->nesterov ? g + 0.9 * x[M][e] : o->momentum ? x[M][e] : g);
        }
}

/* Every variant, with and without each option, against double; momentums that begin are not read.
 */
static void sgd(void **state)
{
    (void)state;
    for (int k = 0; k < 3 * 16; k++) {
        struct model m, want;
        struct sgd o = {k / 3 & 1, (k / 3 & 3) == 3, k / 3 >> 2 & 1, k / 3 >> 3 & 1, true};
        double keeps = o.momentum && !o.nesterov ? 0.4 : 1;
        model_open(&m, k % 2 ? TSR_F64 : TSR_F32, k % 2 ? TSR_F64 : TSR_F32);
        m.scalars[TSR_SCALAR_DAMPENING] = 1 - keeps;
        model_copy(&want, &m);
        for (int i = 0; i < PARAMS; i++)
            for (uint64_t e = 0; e < sizes[i]; e++)
                m.p[i].x[M][e] = NAN;
        for (int step = 1; step <= STEPS; step++) {
            new_gradients(&m);
            for (int i = 0; i < PARAMS; i++)
                memcpy(want.p[i].x[G], m.p[i].x[G], sizes[i] * sizeof(double));
            m.scalars[TSR_SCALAR_STEP] = step;
            sgd_want(&want, &o, k % 3 < 2, keeps);
            (k % 3 == 0 ? sgd_foreach : k % 3 == 1 ? sgd_loop : sgd_fused)(&m, &o);
            o.first = false;
        }
        assert_true(largest_difference(&m, &want, P) < (k % 2 ? 1e-14 : 1e-6));
        model_close(&m);
        model_close(&want);
    }
}

/* AdamW against the gradient: of copies, and within the fused kernel. */
static void maximize(void **state)
{
    (void)state;
    struct model m, fused, want;
    model_open(&want, TSR_F32, TSR_F32);
    model_copy(&m, &want);
    model_copy(&fused, &want);
    for (int step = 1; step <= STEPS; step++) {
        new_gradients(&want);
        for (int i = 0; i < PARAMS; i++)
            for (uint64_t e = 0; e < sizes[i]; e++)
                m.p[i].x[G][e] = fused.p[i].x[G][e] = -want.p[i].x[G][e];
        m.scalars[TSR_SCALAR_STEP] = fused.scalars[TSR_SCALAR_STEP] =
            want.scalars[TSR_SCALAR_STEP] = step;
        step_fused(&want);
        fused.scale = -1;
        step_fused(&fused);
        run(&m, "foreach_neg_grad", BIT(G), BIT(T), false, 0, PARAMS);
        run(&m, "foreach_mul_weight_decay", BIT(P), BIT(P), false, 0, PARAMS);
        run(&m, "foreach_lerp_exp_avg", BIT(T) | BIT(M), BIT(M), false, 0, PARAMS);
        run(&m, "foreach_mul_exp_avg_sq", BIT(V), BIT(V), false, 0, PARAMS);
        run(&m, "foreach_addcmul_exp_avg_sq", BIT(T) | BIT(V), BIT(V), false, 0, PARAMS);
        run(&m, "foreach_addcdiv", BIT(M) | BIT(V) | BIT(P), BIT(P), false, 0, PARAMS);
    }
    for (int k = M; k <= P; k++) {
        assert_true(largest_difference(&fused, &want, k) == 0);
        assert_true(largest_difference(&m, &want, k) < 1e-6);
    }
    model_close(&m);
    model_close(&fused);
    model_close(&want);
}

/* Counters on the device: each parameter's own number of steps. */
static void counters(void **state)
{
    (void)state;
    struct test_call t;
    test_open(&t, "foreach_add_step");
    for (uint64_t i = 0; i < PARAMS; i++) {
        int c = test_tensor(&t, T, TSR_READ_WRITE, TSR_F32, 1);
        test_set_all(&t, c, (double[]){(double)(7 - i) - 1});
        test_arg(&t, i << 2);
    }
    t.scalars[TSR_SCALAR_STEP] = 7;
    test_run(&t);
    for (int i = 0; i < PARAMS; i++)
        assert_true(test_get(&t, i, 0) == 7 - i);
    test_close(&t);
}

static void refusals(void **state)
{
    (void)state;
    struct test_call t;
    test_open(&t, "foreach_addcdiv");
    test_tensor(&t, M, TSR_READ, TSR_F32, 4);
    int p = test_tensor(&t, P, TSR_READ_WRITE, TSR_F32, 4);
    test_tensor(&t, T, TSR_READ, TSR_F32, 4);
    test_tensor(&t, M, TSR_READ, TSR_F32, 4);
    test_refused(&t); /* the second parameter has only m */
    t.n = 3;
    t.scalars[TSR_SCALAR_STEP] = 1;
    test_fill(&t, 2, 1, 2);
    test_run(&t);
    t.operands[p].access = TSR_READ;
    test_refused(&t);
    t.n = 4;
    test_close(&t);
    test_open(&t, "foreach_mul_weight_decay");
    test_tensor(&t, P, TSR_READ_WRITE, TSR_F32, 4);
    test_refused(&t); /* no flags */
    test_close(&t);
    test_open(&t, "foreach_div_bias_correction");
    test_tensor(&t, T, TSR_READ_WRITE, TSR_F32, 4);
    test_fill(&t, 0, 1, 2);
    t.scalars[TSR_SCALAR_STEP] = 3;
    test_arg(&t, 3 << 2);
    test_refused(&t); /* it missed all steps */
    test_close(&t);
}

/* ---- clipping -------------------------------------------------------------------------------- */

static void norms(void **state)
{
    (void)state;
    for (int k = 0; k < TEST_FLOATS; k++) {
        struct test_call t;
        double squares = 0, want[4] = {0};
        test_open(&t, "foreach_norm");
        for (int i = 0; i < PARAMS; i++) {
            test_input(&t, 0, test_floats[k], sizes[i]);
            for (uint64_t e = 0; e < sizes[i]; e++)
                want[i] += pow(test_get(&t, i, e), 2);
            squares += want[i] * (i == 1 ? 0.125 * 0.125 : 1);
            want[i] = sqrt(want[i]) * (i == 1 ? 0.125 : 1);
            test_arg(&t, i == 1 ? test_scale_bits(0.125f) : (uint64_t)i);
        }
        test_scratch(&t, 5, TSR_F32, 10);
        for (int i = 0; i < 4; i++) {
            int norm = test_output(&t, 6, TSR_F32, 1);
            assert_int_equal(norm, PARAMS + 1 + i);
        }
        test_run(&t);
        double got[4];
        for (int i = 0; i < 4; i++) {
            test_near(&t, PARAMS + 1 + i, 0, want[i], 10);
            got[i] = test_get(&t, PARAMS + 1 + i, 0);
        }
        test_close(&t);
        test_open(&t, "total_norm");
        test_set_all(&t, test_tensor(&t, 0, TSR_READ, TSR_F32, 4), got);
        int y = test_output(&t, 1, TSR_F32, 1);
        test_run(&t);
        test_near(&t, y, 0, sqrt(squares), 10);
        test_close(&t);
        test_open(&t, "norm_power");
        test_set_all(&t, test_tensor(&t, 0, TSR_READ, TSR_F32, 4), got);
        y = test_output(&t, 1, TSR_F32, 4);
        for (uint64_t i = 0; i < 4; i++)
            test_arg(&t, i + 1);
        test_run(&t);
        for (uint64_t i = 0; i < 4; i++)
            test_near(&t, y, i, got[i] * got[i] / (double)(i + 1), 1);
        test_close(&t);
    }
}

/* One kernel of a number. */
static double small(const char *name, double x)
{
    struct test_call t;
    test_open(&t, name);
    t.scalars[TSR_SCALAR_MAX_NORM] = 1;
    test_set_all(&t, test_tensor(&t, 0, TSR_READ, TSR_BF16, 1), &x);
    int y = test_output(&t, 1, TSR_BF16, 1);
    test_run(&t);
    double got = test_get(&t, y, 0);
    test_close(&t);
    return got;
}

/* Gradients, and what torch 2.11 makes of them in bf16: _foreach_norm(), the norm of the norms, the
 * factor, and clip_grad_norm_(max_norm=1, foreach=True). In f32 the norm is 25.745. */
static void norms_of_bf16_gradients_are_bf16(void **state)
{
    static double g0[] = {3.0, -4.0, 0.5, 7.25}, g1[] = {11.0, 13.0, 17.0},
                  g2[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0.330078125};
    static const double clips0[] = {0.1162109375, -0.1552734375, 0.0194091796875, 0.28125},
                        clips1[] = {0.427734375, 0.50390625, 0.66015625};
    double norm[3];
    struct test_call t;
    (void)state;
    test_open(&t, "foreach_norm");
    test_set_all(&t, test_tensor(&t, 0, TSR_READ, TSR_BF16, 4), g0);
    test_set_all(&t, test_tensor(&t, 0, TSR_READ, TSR_BF16, 10), g2);
    test_set_all(&t, test_tensor(&t, 0, TSR_READ, TSR_BF16, 3), g1);
    test_scratch(&t, 5, TSR_F32, 10);
    for (int i = 0; i < 3; i++)
        test_output(&t, 6, TSR_BF16, 1);
    for (uint64_t i = 0; i < 3; i++)
        test_arg(&t, test_scale_bits(1.0f));
    test_run(&t);
    for (int i = 0; i < 3; i++)
        norm[i] = test_get(&t, 4 + i, 0);
    test_close(&t);
    assert_true(fabs(norm[0] - 8.8125) + fabs(norm[1] - 3.015625) + fabs(norm[2] - 24.0) <= 0.0);
    test_open(&t, "total_norm");
    test_set_all(&t, test_tensor(&t, 0, TSR_READ, TSR_BF16, 3), norm);
    int y = test_output(&t, 1, TSR_BF16, 1);
    test_run(&t);
    double total = test_get(&t, y, 0);
    test_close(&t);
    assert_true(fabs(total - 25.75) <= 0.0);
    double factor = small("mul_max_norm", small("reciprocal", small("add_eps", total)));
    assert_true(fabs(small("clamp", factor) - 0.038818359375) <= 0.0);
    test_open(&t, "foreach_mul_clip");
    test_set_all(&t, test_tensor(&t, 0, TSR_READ_WRITE, TSR_BF16, 4), g0);
    test_set_all(&t, test_tensor(&t, 0, TSR_READ_WRITE, TSR_BF16, 3), g1);
    test_set_all(&t, test_tensor(&t, 5, TSR_READ, TSR_BF16, 1), &factor);
    test_run(&t);
    for (uint64_t e = 0; e < 4; e++)
        assert_true(fabs(test_get(&t, 0, e) - clips0[e]) <= 0.0);
    for (uint64_t e = 0; e < 3; e++)
        assert_true(fabs(test_get(&t, 1, e) - clips1[e]) <= 0.0);
    test_close(&t);
}

static void clipped(void **state)
{
    (void)state;
    struct test_call t;
    double *old[PARAMS];
    test_open(&t, "foreach_mul_clip");
    for (int i = 0; i < PARAMS; i++) {
        int g = test_tensor(&t, 0, TSR_READ_WRITE, test_floats[i], sizes[i]);
        test_fill(&t, g, -1, 1);
        old[i] = test_values(&t, g);
    }
    int factor = test_input(&t, 5, TSR_F32, 1);
    test_run(&t);
    for (int i = 0; i < PARAMS; i++) {
        for (uint64_t e = 0; e < sizes[i]; e++)
            test_near(&t, i, e, old[i][e] * test_get(&t, factor, 0), 1);
        free(old[i]);
    }
    test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw),    cmocka_unit_test(scaled),
        cmocka_unit_test(sgd),      cmocka_unit_test(maximize),
        cmocka_unit_test(amsgrad),  cmocka_unit_test(counters),
        cmocka_unit_test(refusals), cmocka_unit_test(norms),
        cmocka_unit_test(clipped),  cmocka_unit_test(norms_of_bf16_gradients_are_bf16)};
    return cmocka_run_group_tests_name("kernels: optimizers", tests, NULL, NULL);
}
