/* test_kernels_grid.c: kernels that the host shares with CUDA give the same bits as a grid of
 * threads, in whatever order those run.
 */
#include "tests/kernels/grid_shim.h"

#include "exec/kernels/grid/grid_copy.h"
#include "exec/kernels/grid/grid_elementwise.h"
#include "exec/kernels/grid/grid_embedding.h"
#include "exec/kernels/grid/grid_optimizer.h"
#include "exec/kernels/grid/grid_rotary.h"

static unsigned random_threads(void)
{
    return 1 + (unsigned)test_below(test_below(2) ? 7 : GRID_MAX_THREADS);
}

/* ---- elements -------------------------------------------------------------------------------- */

struct function {
    const char *name;
    uint8_t op, n_in;
};

static const struct function functions[] = {
    {"cast", TSR_EW_COPY, 1},
    {"add", TSR_EW_ADD, 2},
    {"mul", TSR_EW_MUL, 2},
    {"mul_scalar", TSR_EW_MUL_BY, 1},
    {"add_scalar", TSR_EW_ADD_TO, 1},
    {"sub_scalar", TSR_EW_SUB_FROM, 1},
    {"div", TSR_EW_DIV_BY, 1},
    {"pow", TSR_EW_POW, 1},
    {"neg", TSR_EW_NEG, 1},
    {"rsqrt", TSR_EW_RSQRT, 1},
    {"tanh", TSR_EW_TANH, 1},
    {"cos", TSR_EW_COS, 1},
    {"sin", TSR_EW_SIN, 1},
    {"silu", TSR_EW_SILU, 1},
    {"relu", TSR_EW_RELU, 1},
    {"gelu", TSR_EW_GELU, 1},
    {"silu_backward", TSR_EW_SILU_BACKWARD, 2},
    {"gelu_backward", TSR_EW_GELU_BACKWARD, 2},
    {"gelu_erf", TSR_EW_GELU_ERF, 1},
    {"gelu_erf_backward", TSR_EW_GELU_ERF_BACKWARD, 2},
    {"threshold_backward", TSR_EW_THRESHOLD_BACKWARD, 2},
    {"tanh_backward", TSR_EW_TANH_BACKWARD, 2},
    {"scalar", TSR_EW_CONSTANT, 0},
    {"where", TSR_EW_WHERE, 3},
    {"root", TSR_EW_ROOT, 1},
    {"reciprocal", TSR_EW_RECIPROCAL, 1},
    {"clamp", TSR_EW_AT_MOST_ONE, 1},
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

/* Inputs as large as the output, or repeated, or one a row; dense or not. */
static int input(struct test_call *t, const struct function *f, unsigned slot, uint8_t dtype,
                 const uint64_t size[2], struct tsr_elementwise *e)
{
    bool plain = f->op == TSR_EW_COPY || (f->op >= TSR_EW_ROOT && !tsr_is_rare(f->op));
    uint64_t n = size[0] * size[1], kind = plain ? 0 : test_below(4);
    bool mask = f->op == TSR_EW_WHERE && slot == 0;
    if (kind == 1)
        n = size[1];
    if (kind == 2) {
        n = size[0];
        e->per_row |= (uint8_t)(1u << slot);
    }
    int o = test_view(t, slot, TSR_READ, mask ? TSR_U8 : dtype, n, 1, kind == 3 ? 2 : 0);
    test_fill(t, o, mask ? 0 : 0.1, 2);
    e->in[slot] = grid_elems(t, o);
    return o;
}

static void elements(void **state)
{
    (void)state;
    for (int k = 0; k < N_FUNCTIONS * TEST_FLOATS * 6; k++) {
        const struct function *f = &functions[k % N_FUNCTIONS];
        uint8_t dtype = test_floats[k / N_FUNCTIONS % 4], to = test_floats[test_below(3)];
        uint64_t size[2] = {1 + test_below(30), 1 + test_below(40)};
        struct test_call t;
        struct tsr_elementwise e = {.op = f->op, .n_in = f->n_in, .columns = size[1], .c = 1.5};
        test_open(&t, f->name);
        t.work.constants[0] = 1.5;
        for (unsigned slot = 0; slot < f->n_in; slot++)
            input(&t, f, slot, dtype, size, &e);
        test_dims(&t, size[0], size[1], e.per_row, 0);
        int out = test_view(&t, f->n_in, TSR_WRITE, to, size[0], size[1], k % 2 ? size[1] + 1 : 0);
        e.out = grid_elems(&t, out);
        unsigned char *host = grid_host(&t);
        unsigned threads = random_threads();
        if (tsr_is_rare(f->op) && test_is_wide(&t))
            GRID_LAUNCH(threads, tsr_grid_rare_f64, &e);
        else if (tsr_is_rare(f->op))
            GRID_LAUNCH(threads, tsr_grid_rare_f32, &e);
        else if (test_is_wide(&t))
            GRID_LAUNCH(threads, tsr_grid_elementwise_f64, &e);
        else
            GRID_LAUNCH(threads, tsr_grid_elementwise_f32, &e);
        grid_same(&t, host);
        test_close(&t);
    }
}

static void gates(void **state)
{
    (void)state;
    for (int k = 0; k < 40; k++) {
        uint64_t n = 1 + test_below(900);
        uint8_t dtype = test_floats[k / 2 % 4];
        bool back = k % 2, wide = dtype == TSR_F64;
        struct tsr_swiglu s = {.out = {.data = NULL}};
        struct test_call t;
        int in[3] = {-1, -1, -1};
        test_open(&t, back ? "fused_swiglu_backward" : "fused_swiglu");
        for (int i = back ? 0 : 1; i < 3; i++)
            in[i] = test_input(&t, (unsigned)(back ? i : i - 1), dtype, n);
        s.gate = grid_elems(&t, in[1]);
        s.up = grid_elems(&t, in[2]);
        if (back) {
            s.g = grid_elems(&t, in[0]);
            s.grad_gate = grid_elems(&t, test_same(&t, 3, TSR_WRITE, in[1]));
            s.grad_up = grid_elems(&t, test_output(&t, 4, dtype, n));
        } else {
            s.out = grid_elems(&t, test_output(&t, 2, dtype, n));
        }
        unsigned char *host = grid_host(&t);
        unsigned threads = random_threads();
        if (back && wide)
            GRID_LAUNCH(threads, tsr_grid_swiglu_backward_f64, &s);
        else if (back)
            GRID_LAUNCH(threads, tsr_grid_swiglu_backward_f32, &s);
        else if (wide)
            GRID_LAUNCH(threads, tsr_grid_swiglu_f64, &s);
        else
            GRID_LAUNCH(threads, tsr_grid_swiglu_f32, &s);
        grid_same(&t, host);
        test_close(&t);
    }
}

/* ---- heads and tokens ------------------------------------------------------------------------ */

static void rotary(void **state)
{
    (void)state;
    for (int k = 0; k < 40; k++) {
        uint64_t seq = 1 + test_below(6), tokens = seq * (1 + test_below(2));
        uint64_t heads = 1 + test_below(3), d = 2 * (1 + test_below(20));
        struct test_call t;
        struct tsr_rotary r = {.tokens = tokens, .heads = heads, .seq = seq, .d = d};
        r.halves = k % 2;
        r.inverse = k % 3 == 0;
        test_open(&t, "fused_rope");
        test_dims(&t, tokens, heads * d, 0, 0);
        test_arg(&t, seq);
        test_arg(&t, d);
        test_arg(&t, k % 2);
        test_arg(&t, k % 3 == 0);
        uint8_t dtype = test_floats[k / 2 % 4];
        r.x = grid_elems(&t, test_input(&t, 0, dtype, tokens * heads * d));
        r.table = grid_elems(&t, test_input(&t, 1, TSR_F32, seq * d));
        r.out = grid_elems(&t, test_output(&t, 2, dtype, tokens * heads * d));
        const struct tsr_rotaries turned = {1, {r}};
        unsigned char *host = grid_host(&t);
        unsigned threads = random_threads();
        if (dtype == TSR_F64)
            GRID_LAUNCH(threads, tsr_grid_rotary_f64, &turned);
        else
            GRID_LAUNCH(threads, tsr_grid_rotary_f32, &turned);
        grid_same(&t, host);
        test_close(&t);
    }
}

static void embedding(void **state)
{
    (void)state;
    enum { FIRST = 3, ROWS = 9, TOKENS = 31 };
    for (int k = 0; k < 40; k++) {
        uint64_t d = 1 + test_below(60);
        uint32_t start[ROWS], count[ROWS], order[TOKENS];
        uint8_t dtype = test_floats[k / 2 % 3];
        bool backward = k % 2;
        struct test_call t;
        test_open(&t, backward ? "embedding_dense_backward" : "embedding");
        test_arg(&t, FIRST);
        test_arg(&t, ROWS);
        int id = test_tensor(&t, backward ? 1 : 0, TSR_READ, TSR_I64, TOKENS);
        int x = test_input(&t, backward ? 0 : 1, dtype, (backward ? TOKENS : ROWS) * d);
        int y = test_output(&t, 2, dtype, (backward ? ROWS : TOKENS) * d);
        for (uint64_t token = 0; token < TOKENS; token++)
            test_set(&t, id, token, (double)test_below(ROWS + 6));
        for (uint32_t row = 0, n = 0; row < ROWS; row++) {
            start[row] = n;
            for (uint32_t token = 0; token < TOKENS; token++)
                if ((uint32_t)test_get(&t, id, token) == row + FIRST)
                    order[n++] = token;
            count[row] = n - start[row];
        }
        unsigned char *host = grid_host(&t);
        unsigned threads = random_threads();
        struct tsr_embedding e = {
            grid_elems(&t, id), grid_elems(&t, x), grid_elems(&t, y), FIRST, ROWS, d};
        struct tsr_embedding_grad g = {
            grid_elems(&t, x), grid_elems(&t, y), 0, ROWS, d, start, count, order};
        if (backward)
            GRID_LAUNCH(threads, tsr_grid_embedding_grad_f32, &g);
        else
            GRID_LAUNCH(threads, tsr_grid_embedding_f32, &e);
        grid_same(&t, host);
        test_close(&t);
    }
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static void pieces(void **state)
{
    (void)state;
    for (int k = 0; k < 80; k++) {
        bool joins = k % 2;
        struct test_call t;
        struct tsr_pieces_list list = {.n = 2};
        uint64_t ranks = 1 + test_below(4), stride = 0;
        uint8_t dtype = test_floats[k / 2 % 4], other = joins ? dtype : test_floats[test_below(4)];
        test_open(&t, joins ? "split_with_sizes_copy" : "chunk_cat");
        test_arg(&t, ranks);
        for (int i = 0; i < 2; i++) {
            struct tsr_cut cut = {1 + test_below(3), 1 + test_below(9), 1 + test_below(30), 0};
            cut.chunk = (cut.dim + ranks - 1) / ranks;
            uint64_t args[4] = {cut.outer, cut.dim, cut.inner, cut.chunk};
            for (int a = 0; a < 4; a++)
                test_arg(&t, args[a]);
            uint64_t n = cut.outer * cut.dim * cut.inner;
            int whole = joins ? test_output(&t, 2, dtype, n) : test_input(&t, 0, dtype, n);
            list.of[i] = (struct tsr_pieces){.cut = cut, .ranks = ranks, .first = stride};
            list.of[i].whole = grid_elems(&t, whole);
            stride += tsr_cut_padded(&cut);
        }
        int all = joins ? test_input(&t, 0, other, ranks * stride)
                        : test_output(&t, 2, other, ranks * stride);
        unsigned char *host = grid_host(&t);
        unsigned threads = random_threads();
        for (int i = 0; i < 2; i++) {
            list.of[i].stride = stride;
            list.of[i].pieces = grid_elems(&t, all);
        }
        if (joins)
            GRID_LAUNCH(threads, tsr_grid_join_words, &list);
        else if (dtype == TSR_F64 || other == TSR_F64)
            GRID_LAUNCH(threads, tsr_grid_cut_pieces_f64, &list);
        else
            GRID_LAUNCH(threads, tsr_grid_cut_pieces_f32, &list);
        grid_same(&t, host);
        test_close(&t);
    }
}

/* ---- optimizers ------------------------------------------------------------------------------ */

enum { G = 1, M = 2, V = 4, P = 8, T = 16, OLD = 32 };

static const struct {
    const char *name;
    uint8_t step, reads, writes;
} steps[] = {{"mul_weight_decay", TSR_STEP_DECAY, P, P},
             {"lerp_exp_avg", TSR_STEP_LERP, G | M, M},
             {"mul_exp_avg_sq", TSR_STEP_MUL_V, V, V},
             {"addcmul_exp_avg_sq", TSR_STEP_ADDCMUL_V, G | V, V},
             {"sqrt", TSR_STEP_SQRT, V, T},
             {"foreach_div_bias_correction", TSR_STEP_DIV_ROOT, T, T},
             {"foreach_add_eps", TSR_STEP_ADD_EPS, T, T},
             {"div_bias_correction", TSR_STEP_DIV_AND_EPS, OLD, T},
             {"addcdiv", TSR_STEP_ADDCDIV, M | P | T, P},
             {"foreach_addcdiv", TSR_STEP_ADDCDIV_V, M | P | V, P},
             {"fused_adamw", TSR_STEP_FUSED, G | M | V | P, M | V | P},
             {"foreach_add_step", TSR_STEP_COUNT, T, T},
             {"foreach_neg_grad", TSR_STEP_NEG, G, T},
             {"foreach_add_decay", TSR_STEP_ADD_DECAY, G | P, T},
             {"clone_momentum", TSR_STEP_CLONE, G, M},
             {"foreach_mul_momentum", TSR_STEP_MUL_M, M, M},
             {"foreach_add_momentum", TSR_STEP_ADD_M, G | M, M},
             {"foreach_add_nesterov", TSR_STEP_ADD_NESTEROV, G | M, G},
             {"fused_sgd", TSR_STEP_FUSED_SGD, G | M | P, M | P},
             {"fused_sgd_nesterov", TSR_STEP_FUSED_NESTEROV, G | M | P, M | P},
             {"foreach_add_sgd", TSR_STEP_SGD, G | P, P}};
enum { N_STEPS = sizeof steps / sizeof *steps };

static void optimizers(void **state)
{
    (void)state;
    const double b1 = 0.9, b2 = 0.99, lr = 0.01, eps = 1e-8, wd = 0.1, momentum = 0.8;
    for (int k = 0; k < N_STEPS * 12; k++) {
        uint64_t n = 1 + test_below(700);
        struct test_call t;
        struct tsr_optimizer o = {.step = steps[k % N_STEPS].step, .n = 1};
        struct tsr_optimizer_work *w = &o.works[0];
        struct tsr_elems *place[6] = {&w->g, &w->m, &w->v, &w->p, &w->t, &w->old};
        const double scalars[TSR_N_SCALARS] = {lr, b1, b2, eps, wd, momentum, 3, 1};
        test_open(&t, steps[k % N_STEPS].name);
        memcpy(t.scalars, scalars, sizeof scalars);
        if (k % 3) /* where they lie when the kernel runs, or as they are now */
            o.scalars_at = scalars;
        else
            memcpy(o.scalars, scalars, sizeof scalars);
        w->numel = n;
        w->decays = k % 2;
        w->scale = k % 5 ? 0.25f : 1;
        test_arg(&t, (unsigned)k % 2 | (k % 5 ? test_scale_bits(w->scale) : 0));
        for (unsigned slot = 0; slot < 6; slot++) {
            unsigned access = (steps[k % N_STEPS].reads >> slot & 1 ? TSR_READ : 0u) |
                              (steps[k % N_STEPS].writes >> slot & 1 ? TSR_WRITE : 0u);
            if (!access)
                continue;
            int x = test_tensor(&t, slot, access, test_floats[test_below(3)], n);
            if (access & TSR_READ)
                test_fill(&t, x, 0.1, 2);
            *place[slot] = grid_elems(&t, x);
        }
        if (o.step == TSR_STEP_FUSED && k % 2) {
            int clip = test_tensor(&t, 5, TSR_READ, TSR_F32, 1);
            test_fill(&t, clip, 0.1, 1);
            o.factor = grid_elems(&t, clip);
        }
        unsigned char *host = grid_host(&t);
        unsigned threads = random_threads();
        GRID_LAUNCH(threads, tsr_grid_optimizer_f32, &o);
        grid_same(&t, host);
        test_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(elements), cmocka_unit_test(gates),
                                       cmocka_unit_test(rotary),   cmocka_unit_test(embedding),
                                       cmocka_unit_test(pieces),   cmocka_unit_test(optimizers)};
    return cmocka_run_group_tests_name("kernels: grids", tests, NULL, NULL);
}
