/* test_fused.c: the fused dialect: which kernels a step has and in which order, which results take
 * the place of which arguments, what is kept for backward, and where eager operations stay.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/layout/tensor_parallel.h"
#include "tests/engine/recording_testing.h"

enum { D = 64, F = 96, H = 8, HD = 8, V = 256, L = 3, SEQ = 32, T = SEQ };

struct options {
    bool eager, gpt2, checkpoint, no_early_stop, selective, tp, hand_norm, wraps_norms;
    uint32_t n_micro;
    uint64_t n_layers, chunks;
};

struct rig {
    struct options o;
    struct tsr_recorder recorder;
    struct tsr_program init, step;
    struct tsr_engine *e;
};

static const struct tsr_llama_config llama = {.hidden_size = D,
                                              .intermediate_size = F,
                                              .n_layers = L,
                                              .n_heads = H,
                                              .n_kv_heads = H,
                                              .head_dim = HD,
                                              .vocab_size = V,
                                              .max_positions = 64};

static void add_model(struct rig *r)
{
    struct tsr_llama_config model = llama;
    model.n_layers = r->o.n_layers;
    model.hand_norm = r->o.hand_norm;
    const struct tsr_gpt2_config gpt2 = {
        .n_embd = D, .n_layer = r->o.n_layers, .n_head = H, .n_positions = 64, .vocab_size = V};
    ok(r->o.gpt2 ? tsr_model_gpt2(r->e, &gpt2) : tsr_model_llama(r->e, &model));
}

static void shard(struct rig *r, const char *name)
{
    struct tsr_module *m = tsr_module_find(r->e, name);
    assert_non_null(m);
    ok(tsr_fully_shard(r->e, &m, 1, NULL));
}

static void wrap(struct rig *r)
{
    for (uint64_t i = 0; i < r->o.n_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, r->o.gpt2 ? "transformer.h.%d" : "model.layers.%d", (int)i);
        struct tsr_module *layer = tsr_module_find(r->e, name);
        if (r->o.checkpoint)
            ok(tsr_checkpoint(r->e, layer, false, !r->o.no_early_stop));
        if (r->o.selective)
            ok(tsr_checkpoint_selective(r->e, layer));
        if (r->o.wraps_norms) {
            strcat(name, ".post_attention_layernorm");
            shard(r, name);
        }
        ok(tsr_fully_shard(r->e, &layer, 1, NULL));
    }
    struct tsr_module *root = tsr_module_root(r->e);
    ok(tsr_fully_shard(r->e, &root, 1, NULL));
}

static void open_rig(struct rig *r, struct options o)
{
    struct tsr_engine_config c = {.mesh = {.n_dims = o.tp ? 2 : 1, .shape = {2, 2}},
                                  .executor = &r->recorder.base,
                                  .dialect = o.eager ? TSR_DIALECT_EAGER : TSR_DIALECT_FUSED};
    snprintf(c.mesh.name[0], sizeof c.mesh.name[0], "shard");
    snprintf(c.mesh.name[1], sizeof c.mesh.name[1], "tp");
    r->o = o;
    r->o.n_layers = o.n_layers ? o.n_layers : L;
    tsr_recorder_init(&r->recorder, &r->init);
    ok(tsr_engine_create(&c, &r->e));
    tsr_program_init(&r->init, tsr_engine_tables(r->e));
    tsr_program_init(&r->step, tsr_engine_tables(r->e));
    add_model(r);
    if (o.tp)
        ok(tsr_tensor_parallel_model(r->e, "tp", true));
    wrap(r);
    ok(tsr_step_configure(r->e, &(struct tsr_step_config){.batch = 1,
                                                          .seq = SEQ,
                                                          .n_micro = o.n_micro ? o.n_micro : 1,
                                                          .loss_chunks = o.chunks}));
    ok(tsr_engine_init_params(r->e));
    r->recorder.into = &r->step;
    ok(tsr_step_run(r->e, 0));
}

static void close_rig(struct rig *r)
{
    tsr_program_fini(&r->init);
    tsr_program_fini(&r->step);
    tsr_engine_destroy(r->e);
}

/* ---- questions to a program ------------------------------------------------------------------ */

enum { ANY = -1 };

static bool is_kernel(const struct tsr_instr *i, const char *name, int phase, int recompute)
{
    return i->kind == TSR_OP && i->origin.hook == TSR_HOOK_NONE &&
           (phase == ANY || i->origin.phase == phase) &&
           (recompute == ANY || i->origin.recompute == recompute) &&
           strcmp(i->work->name, name) == 0;
}

static int count(const struct rig *r, const char *name, int phase, int recompute)
{
    int n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++)
        n += is_kernel(&r->step.instrs[i], name, phase, recompute);
    return n;
}

static const struct tsr_instr *kernel(const struct rig *r, const char *name, int nth)
{
    for (size_t i = 0; i < r->step.n_instrs; i++)
        if (is_kernel(&r->step.instrs[i], name, ANY, ANY) && nth-- == 0)
            return &r->step.instrs[i];
    fail_msg("no kernel %s", name);
    return NULL;
}

/* The operand of a slot; of a list the nth. */
static const struct tsr_operand *operand(const struct tsr_instr *in, unsigned slot, int nth)
{
    for (uint32_t i = 0; i < in->n_operands; i++)
        if (in->operands[i].slot == slot && nth-- == 0)
            return &in->operands[i];
    return NULL;
}

static bool in_place(const struct tsr_instr *in, unsigned slot, unsigned result, int nth)
{
    const struct tsr_operand *a = operand(in, slot, nth), *b = operand(in, result, nth);
    assert_true(a && b && a->access == TSR_READ && b->access == TSR_WRITE);
    return a->buffer == b->buffer && a->offset == b->offset;
}

/* Activations that are alive when backward begins. */
static uint64_t kept(const struct rig *r)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        if (in->origin.phase == TSR_PHASE_BACKWARD)
            break;
        if (in->kind == TSR_ALLOC && in->category == TSR_CAT_ACTIVATION)
            bytes += in->bytes;
        if (in->kind == TSR_FREE && in->category == TSR_CAT_ACTIVATION)
            bytes -= in->bytes;
    }
    return bytes;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void kernels_of_llama(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct options){.n_micro = 1});
    const struct {
        const char *name;
        int forward, loss, backward;
    } all[] = {{"rms_norm", L + 1, 0, 0}, /* the first of a block, the last of the model */
               {"fused_add_rms_norm", L, 0, 0},
               {"fused_add_rms_norm_backward", 0, 0, 2 * L},
               {"rms_norm_backward", 0, 0, 1},
               {"fused_rope", L, 0, L},
               {"fused_swiglu", L, 0, 0},
               {"fused_swiglu_backward", 0, 0, L},
               {"add", L, 0, 0},                  /* a block's last sum */
               {"addmm_input_grad", 0, 0, 3 * L}, /* of q, k, v; of gate and up */
               {"count_labels", 0, 1, 0},
               {"fused_cross_entropy", 0, 1, 0},
               {"mm", 7 * L + 1, 0, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(count(&r, all[i].name, TSR_PHASE_FORWARD, ANY), all[i].forward);
        assert_int_equal(count(&r, all[i].name, TSR_PHASE_LOSS, ANY), all[i].loss);
        assert_int_equal(count(&r, all[i].name, TSR_PHASE_BACKWARD, ANY), all[i].backward);
    }
    static const char *const none[] = {"silu", "mul", "cast", "rotary", "conjugate", "log_softmax"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(count(&r, none[i], ANY, ANY), 0);
    close_rig(&r);
}

static void kernels_of_gpt2(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct options){.gpt2 = true});
    assert_int_equal(count(&r, "layer_norm", TSR_PHASE_FORWARD, ANY), L + 1);
    assert_int_equal(count(&r, "fused_add_layer_norm", TSR_PHASE_FORWARD, ANY), L);
    assert_int_equal(count(&r, "fused_add_layer_norm_backward", TSR_PHASE_BACKWARD, ANY), 2 * L);
    assert_int_equal(count(&r, "layer_norm_backward", TSR_PHASE_BACKWARD, ANY), 1);
    assert_int_equal(count(&r, "add", TSR_PHASE_BACKWARD, ANY), 1); /* the tied table */
    assert_int_equal(count(&r, "cat_gradients", ANY, ANY), 0);
    assert_int_equal(count(&r, "fused_cross_entropy", TSR_PHASE_LOSS, ANY), 1);
    close_rig(&r);
}

static void order_of_backward(void **state)
{
    (void)state;
    static const char *const want[] = {"mm_weight_grad", /* head */
                                       "mm_input_grad",
                                       "rms_norm_backward",
                                       "mm_weight_grad", /* down */
                                       "mm_input_grad",
                                       "fused_swiglu_backward",
                                       "mm_weight_grad", /* up */
                                       "mm_input_grad",
                                       "mm_weight_grad", /* gate */
                                       "addmm_input_grad",
                                       "fused_add_rms_norm_backward",
                                       "mm_weight_grad", /* o */
                                       "mm_input_grad",
                                       "efficient_attention_backward",
                                       "fused_rope",
                                       "mm_weight_grad", /* v */
                                       "mm_input_grad",
                                       "mm_weight_grad", /* k */
                                       "addmm_input_grad",
                                       "mm_weight_grad", /* q */
                                       "addmm_input_grad",
                                       "fused_add_rms_norm_backward",
                                       "embedding_dense_backward"};
    struct rig r;
    size_t n = 0;
    open_rig(&r, (struct options){.n_layers = 1});
    for (size_t i = 0; i < r.step.n_instrs; i++) {
        const struct tsr_instr *in = &r.step.instrs[i];
        if (in->kind != TSR_OP || in->origin.phase != TSR_PHASE_BACKWARD ||
            in->origin.hook != TSR_HOOK_NONE)
            continue;
        assert_true(n < sizeof want / sizeof *want);
        assert_string_equal(in->work->name, want[n++]);
    }
    assert_int_equal(n, sizeof want / sizeof *want);
    close_rig(&r);
}

static void results_take_places(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct options){.n_micro = 1});
    assert_true(in_place(kernel(&r, "fused_add_rms_norm", 0), 1, 4, 0));
    for (int i = 0; i < 2 * L; i++) {
        assert_true(in_place(kernel(&r, "fused_rope", i), 0, 2, 0));
        assert_true(in_place(kernel(&r, "fused_rope", i), 0, 2, 1));
        assert_true(in_place(kernel(&r, "fused_add_rms_norm_backward", i), 1, 4, 0));
    }
    assert_true(in_place(kernel(&r, "fused_swiglu_backward", 0), 1, 3, 0));
    assert_true(in_place(kernel(&r, "fused_swiglu_backward", 0), 2, 4, 0));
    const struct tsr_instr *loss = kernel(&r, "fused_cross_entropy", 0);
    assert_true(in_place(loss, 0, 4, 0));
    assert_int_equal(operand(loss, 5, 0)->bytes, 4 * T);
    assert_int_equal(operand(loss, 5, 0)->dtype, TSR_DTYPE_NONE); /* scratch */
    const struct tsr_instr *norm = kernel(&r, "fused_add_rms_norm_backward", 0);
    assert_int_equal(operand(norm, 9, 0)->dtype, TSR_DTYPE_NONE);
    close_rig(&r);
}

/* Every byte that a kernel has to move, once. */
static void work_of_kernels(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct options){.n_micro = 1});
    const struct {
        const char *name;
        int kind;
        uint64_t read, written;
        double flops;
    } all[] = {
        {"fused_add_rms_norm", TSR_OP_NORM, 2 * T * D + D, 2 * T * D + T, 5 * T * D},
        {"fused_add_rms_norm_backward", TSR_OP_NORM_BWD, 3 * T * D + D + T, T * D + D, 9 * T * D},
        {"fused_rope", TSR_OP_POINTWISE, 2 * T * D + T * HD, 2 * T * D, 6 * T * D},
        {"fused_swiglu", TSR_OP_POINTWISE, 2 * T * F, T * F, 5 * T * F},
        {"fused_swiglu_backward", TSR_OP_POINTWISE, 3 * T * F, 2 * T * F, 10 * T * F},
        {"fused_cross_entropy", TSR_OP_LOSS, T * V + 2 * T + 1, T * V + 1, 6 * T * V}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct tsr_work *w = kernel(&r, all[i].name, 0)->work;
        assert_int_equal(w->op, all[i].kind);
        assert_int_equal(w->bytes_read, 4 * all[i].read);
        assert_int_equal(w->bytes_written, 4 * all[i].written);
        assert_true(w->flops == all[i].flops);
    }
    close_rig(&r);
}

/* In f32: eight tensors of the width a block (input, norm, q, k, v, result of attention, sum,
 * norm), gate, up and their product, statistics. Eager keeps silu(gate) as well, and
 * log-probabilities where fused has the gradient of the logits. */
static void what_is_kept(void **state)
{
    (void)state;
    const uint64_t block = 4 * T * (8 * D + 3 * F + 2 + H);
    const uint64_t rest = 4 * T * (2 * D + 1 + V) + 4; /* last norm, logits, loss */
    struct rig r;
    open_rig(&r, (struct options){.n_micro = 1});
    assert_int_equal(kept(&r), L * block + rest);
    close_rig(&r);
    open_rig(&r, (struct options){.eager = true});
    assert_int_equal(kept(&r), L * (block + 4 * T * F) + rest + 4); /* number of labels */
    close_rig(&r);
    open_rig(&r, (struct options){.checkpoint = true});
    assert_int_equal(kept(&r), L * 4 * T * D + rest);
    close_rig(&r);
}

/* ---- recomputation --------------------------------------------------------------------------- */

static void recomputes(void **state)
{
    (void)state;
    struct rig r;
    for (int early = 0; early < 2; early++) {
        open_rig(&r, (struct options){.checkpoint = true, .no_early_stop = !early});
        assert_int_equal(count(&r, "rms_norm", ANY, 1), L);
        assert_int_equal(count(&r, "fused_add_rms_norm", ANY, 1), L);
        assert_int_equal(count(&r, "fused_rope", ANY, 1), L);
        assert_int_equal(count(&r, "fused_swiglu", ANY, 1), L);
        /* it ends with the input of the last product, or with the block's sum */
        assert_int_equal(count(&r, "mm", ANY, 1), early ? 6 * L : 7 * L);
        assert_int_equal(count(&r, "add", ANY, 1), early ? 0 : L);
        assert_true(in_place(kernel(&r, "fused_swiglu_backward", 0), 1, 3, 0));
        close_rig(&r);
    }
}

/* What a policy keeps is not overwritten: the first product of a block is q, the third v, then the
 * gate and down; k may be turned in place, and so may what backward takes back. */
static void keeps_what_is_selected(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct options){.selective = true, .n_layers = 1});
    const struct tsr_instr *turn = kernel(&r, "fused_rope", 0);
    assert_false(in_place(turn, 0, 2, 0));
    assert_true(in_place(turn, 0, 2, 1));
    const uint32_t q = operand(turn, 0, 0)->buffer;
    const struct tsr_instr *again = kernel(&r, "fused_rope", 1);
    assert_int_equal(again->origin.recompute, 1);
    assert_int_equal(operand(again, 0, 0)->buffer, q);
    assert_true(in_place(again, 0, 2, 0));
    assert_int_equal(count(&r, "mm", ANY, 1), 3); /* k, o, up */
    assert_int_equal(count(&r, "efficient_attention", ANY, 1), 0);
    close_rig(&r);
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* The gradient is scaled by what backward begins with, unless that is 1. */
static void shares_of_micro_batches(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        struct rig r;
        open_rig(&r, (struct options){.n_micro = n});
        assert_int_equal(count(&r, "mul", TSR_PHASE_BACKWARD, ANY), n > 1 ? n : 0);
        assert_int_equal(count(&r, "fused_cross_entropy", ANY, ANY), n);
        close_rig(&r);
        open_rig(&r, (struct options){.n_micro = n, .chunks = 4});
        assert_int_equal(count(&r, "mul", TSR_PHASE_BACKWARD, ANY), n > 1 ? 2 * n : 0);
        assert_int_equal(count(&r, "fused_cross_entropy", ANY, ANY), 4 * n);
        assert_int_equal(count(&r, "log_softmax", ANY, ANY), 0);
        close_rig(&r);
    }
}

static void evaluation_has_no_gradient(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct options){.n_micro = 1});
    struct tsr_program eval;
    tsr_program_init(&eval, tsr_engine_tables(r.e));
    r.recorder.into = &eval;
    ok(tsr_eval_run(r.e));
    int found = 0;
    for (size_t i = 0; i < eval.n_instrs; i++) {
        if (!is_kernel(&eval.instrs[i], "fused_cross_entropy", ANY, ANY))
            continue;
        found++;
        assert_null(operand(&eval.instrs[i], 4, 0));
        assert_int_equal(eval.instrs[i].work->bytes_written, 4);
    }
    assert_int_equal(found, 1);
    tsr_program_fini(&eval);
    close_rig(&r);
}

/* ---- where eager operations stay ------------------------------------------------------------- */

static void falls_back(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct options){.hand_norm = true});
    assert_int_equal(count(&r, "fused_add_rms_norm", ANY, ANY), 0);
    assert_int_equal(count(&r, "rsqrt", TSR_PHASE_FORWARD, ANY), 2 * L + 1);
    assert_int_equal(count(&r, "fused_swiglu", ANY, ANY), L);
    close_rig(&r);
    open_rig(&r, (struct options){.wraps_norms = true});
    assert_int_equal(count(&r, "fused_add_rms_norm", ANY, ANY), 0);
    assert_int_equal(count(&r, "rms_norm", TSR_PHASE_FORWARD, ANY), 2 * L + 1);
    assert_int_equal(count(&r, "fused_add_rms_norm_backward", ANY, ANY), L); /* of the first */
    close_rig(&r);
    open_rig(&r, (struct options){.tp = true});
    assert_int_equal(count(&r, "fused_cross_entropy", ANY, ANY), 0);
    assert_int_equal(count(&r, "log_softmax_tp", ANY, ANY), 1);
    assert_int_equal(count(&r, "fused_add_rms_norm", ANY, ANY), L);
    close_rig(&r);
}

static void refused(void **state)
{
    (void)state;
    struct tsr_program none;
    struct tsr_recorder recorder;
    struct tsr_engine *e;
    tsr_program_init(&none, NULL);
    tsr_recorder_init(&recorder, &none);
    const struct tsr_engine_config c = {.mesh = {.n_dims = 1, .shape = {2}},
                                        .executor = &recorder.base,
                                        .dialect = TSR_DIALECT_FUSED};
    struct tsr_llama_config model = llama;
    model.impl = TSR_IMPL_TRANSFORMERS;
    ok(tsr_engine_create(&c, &e));
    assert_int_equal(tsr_model_llama(e, &model), TSR_EUNSUPPORTED);
    assert_non_null(strstr(tsr_error_text(), "fused dialect"));
    model.impl = TSR_IMPL_PLAIN;
    ok(tsr_model_llama(e, &model));
    tsr_engine_destroy(e);
    tsr_program_fini(&none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_of_llama),
                                       cmocka_unit_test(kernels_of_gpt2),
                                       cmocka_unit_test(order_of_backward),
                                       cmocka_unit_test(results_take_places),
                                       cmocka_unit_test(work_of_kernels),
                                       cmocka_unit_test(what_is_kept),
                                       cmocka_unit_test(recomputes),
                                       cmocka_unit_test(keeps_what_is_selected),
                                       cmocka_unit_test(shares_of_micro_batches),
                                       cmocka_unit_test(evaluation_has_no_gradient),
                                       cmocka_unit_test(falls_back),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("fused dialect", tests, NULL, NULL);
}
