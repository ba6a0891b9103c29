/* test_compile.c: the dialect `compile` against what PyTorch 2.11 makes of the same blocks: saved
 * tensors and kernels as tests/oracle/compile/block.py prints them (its shapes are used here), the
 * memory that results take, and what is refused.
 */
#include <stdio.h>
#include <string.h>

#include "engine/layout/tensor_parallel.h"
#include "tests/engine/recording_testing.h"

enum { LAYERS = 2, LLAMA_D = 4096, LLAMA_T = 16384, GPT2_D = 1600, GPT2_T = 4096 };
enum { RANDOM_STATE = 16 + 8 }; /* of flash attention: seed and offset */
#define MIB(x) ((uint64_t)(x) << 20)

enum { VOCAB = 250 }; /* sizes of logits are those of nothing else */

struct options {
    bool gpt2, hf_names, hand_norm, full, selective, tp, plain, outside, wraps_inside, eager,
        fp8_gather;
    enum tsr_linear linear;
    enum tsr_loss_kernel loss;
    uint64_t chunks;
};

struct rig {
    struct options o;
    struct tsr_recorder recorder;
    struct tsr_program init, step, second;
    struct tsr_engine *e;
    uint32_t first, last; /* modules of the second block */
};

static void add_model(struct rig *r)
{
    const struct tsr_llama_config llama = {.hidden_size = LLAMA_D,
                                           .intermediate_size = 14336,
                                           .n_layers = LAYERS,
                                           .n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_dim = 128,
                                           .vocab_size = VOCAB,
                                           .max_positions = 8192,
                                           .hand_norm = r->o.hand_norm,
                                           .names = r->o.hf_names ? TSR_NAMES_HF : TSR_NAMES_PLAIN};
    const struct tsr_gpt2_config gpt2 = {.n_embd = GPT2_D,
                                         .n_layer = LAYERS,
                                         .n_head = 25,
                                         .n_positions = 1024,
                                         .vocab_size = 256,
                                         .names = TSR_NAMES_PLAIN};
    ok(r->o.gpt2 ? tsr_model_gpt2(r->e, &gpt2) : tsr_model_llama(r->e, &llama));
}

static struct tsr_module *block(const struct rig *r, int i)
{
    char name[64];
    const char *list = r->o.gpt2 ? "h" : r->o.hf_names ? "model.layers" : "layers";
    snprintf(name, sizeof name, "%s.%d", list, i);
    struct tsr_module *m = tsr_module_find(r->e, name);
    assert_non_null(m);
    return m;
}

static void wrap(struct rig *r)
{
    const struct tsr_wrap_options mp = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}};
    for (int i = 0; i < LAYERS; i++) {
        struct tsr_module *m = block(r, i);
        if (r->o.full || r->o.outside)
            ok(tsr_checkpoint(r->e, m, r->o.outside, true));
        if (r->o.selective)
            ok(tsr_checkpoint_selective(r->e, m));
        if (r->o.wraps_inside) {
            struct tsr_module *inner = tsr_module_child(m, 0);
            ok(tsr_fully_shard(r->e, &inner, 1, &mp));
        }
        ok(tsr_fully_shard(r->e, &m, 1, &mp));
    }
    struct tsr_module *root = tsr_module_root(r->e);
    ok(tsr_fully_shard(r->e, &root, 1, &mp));
}

/* Returns the status of the first step. */
static tsr_status open_rig(struct rig *r, struct options o)
{
    struct tsr_engine_config c = {.mesh = {.n_dims = o.tp ? 2 : 1, .shape = {2, 2}},
                                  .executor = &r->recorder.base,
                                  .gqa_repeat = true,
                                  .linear = o.linear,
                                  .fp8_gather = o.fp8_gather,
                                  .dialect = o.eager ? TSR_DIALECT_EAGER : TSR_DIALECT_COMPILE};
    memset(r, 0, sizeof *r);
    snprintf(c.mesh.name[0], sizeof c.mesh.name[0], "shard");
    snprintf(c.mesh.name[1], sizeof c.mesh.name[1], "tp");
    r->o = o;
    c.executor = &r->recorder.base;
    tsr_recorder_init(&r->recorder, &r->init);
    ok(tsr_engine_create(&c, &r->e));
    tsr_program_init(&r->init, tsr_engine_tables(r->e));
    tsr_program_init(&r->step, tsr_engine_tables(r->e));
    tsr_program_init(&r->second, tsr_engine_tables(r->e));
    add_model(r);
    if (o.tp)
        ok(tsr_tensor_parallel_model(r->e, "tp", !o.plain));
    wrap(r);
    const struct tsr_step_config step = {.batch = o.gpt2 ? 4 : 2,
                                         .seq = o.gpt2 ? 1024 : 8192,
                                         .n_micro = 1,
                                         .loss_kernel = o.loss,
                                         .loss_chunks = o.chunks};
    tsr_status status = tsr_step_configure(r->e, &step);
    if (status != TSR_OK)
        return status;
    ok(tsr_engine_init_params(r->e));
    r->recorder.into = &r->step;
    return tsr_step_run(r->e, 0);
}

static void close_rig(struct rig *r)
{
    tsr_program_fini(&r->init);
    tsr_program_fini(&r->step);
    tsr_program_fini(&r->second);
    tsr_engine_destroy(r->e);
}

/* ---- questions to a program ------------------------------------------------------------------ */

/* The name of the instruction's module begins with that of block 1. */
static bool is_of_block(const struct rig *r, const struct tsr_instr *in)
{
    const char *name = tsr_module_fqn(block(r, 1));
    size_t n = strlen(name);
    if (in->origin.module == TSR_NO_ID || in->origin.hook != TSR_HOOK_NONE)
        return false;
    const char *of = tsr_engine_tables(r->e)->modules[in->origin.module];
    return strncmp(of, name, n) == 0 && (of[n] == 0 || of[n] == '.');
}

/* Names of the kernels of block 1 and of its collectives over tp, products left out, one a line. */
static void kernels(const struct rig *r, int phase, char *text, size_t size)
{
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        bool collective = r->o.tp && in->comm != UINT16_MAX && in->origin.hook == TSR_HOOK_NONE &&
                          strcmp(r->step.tables->comms[in->comm].name, "tp") == 0;
        if ((in->kind != TSR_OP && !collective) || in->origin.phase != phase ||
            !is_of_block(r, in) || (!collective && in->work->op == TSR_OP_GEMM))
            continue;
        int more = snprintf(text + n, size - n, "%s\n",
                            collective ? tsr_instr_kind_name(in->kind) : in->work->name);
        assert_true(more > 0 && (size_t)more < size - n);
        n += (size_t)more;
    }
}

static void assert_kernels(const struct rig *r, int phase, const char *want)
{
    static char text[8192];
    kernels(r, phase, text, sizeof text);
    assert_string_equal(text, want);
}

static int count_products(const struct rig *r, int phase, bool recompute, uint8_t dtype)
{
    int n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        n += in->kind == TSR_OP && in->work->op == TSR_OP_GEMM && in->origin.phase == phase &&
             in->work->recompute == recompute && in->work->dtype == dtype && is_of_block(r, in);
    }
    return n;
}

/* What block 1 allocated and still holds when backward begins. Its input belongs to block 0, its
 * result to itself, and both are of one size. */
static uint64_t kept(const struct rig *r)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        if (in->origin.phase == TSR_PHASE_BACKWARD)
            break;
        if (in->category != TSR_CAT_ACTIVATION || !is_of_block(r, in))
            continue;
        bytes += in->kind == TSR_ALLOC ? in->bytes : 0;
        bytes -= in->kind == TSR_FREE ? in->bytes : 0;
    }
    return bytes;
}

static const struct tsr_instr *kernel(const struct rig *r, const char *name)
{
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        if (in->kind == TSR_OP && is_of_block(r, in) && strcmp(in->work->name, name) == 0)
            return in;
    }
    fail_msg("no kernel %s", name);
    return NULL;
}

static double model_flops(const struct tsr_program *p)
{
    double sum = 0;
    for (size_t i = 0; i < p->n_instrs; i++)
        sum += p->instrs[i].work ? p->instrs[i].work->model_flops : 0;
    return sum;
}

/* ---- Llama ----------------------------------------------------------------------------------- */

static const char llama_forward[] =
    "rms_norm\ncast\nrotary\ncast\ncast\nrotary\ncast+expand_heads\n"
    "expand_heads\nflash_attention\nadd+rms_norm\nsilu+mul\nadd\n";
static const char llama_backward[] =
    "silu+mul+silu_backward\nadd+rms_norm_backward\npartial_sums\nflash_attention_backward\n"
    "sum_heads\nsum_heads+cast\nconjugate\nrotary_backward\ncast\ncast\nrotary_backward\ncast\n"
    "add+rms_norm_backward\npartial_sums\n";

static void llama_without_checkpoint(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){0}));
    assert_kernels(&r, TSR_PHASE_FORWARD, llama_forward);
    assert_kernels(&r, TSR_PHASE_BACKWARD, llama_backward);
    assert_int_equal(count_products(&r, TSR_PHASE_FORWARD, false, TSR_BF16), 7);
    assert_int_equal(count_products(&r, TSR_PHASE_BACKWARD, false, TSR_BF16), 14);
    assert_int_equal(count_products(&r, TSR_PHASE_BACKWARD, true, TSR_BF16), 0);
    /* block.py llama none: the input, or the result here; view (norm), q, k, v, log-sum-exp, result
     * of attention and its random state; mm_3, view_20 (norm), mm_4, mm_5, view_24; two statistics
     */
    assert_int_equal(kept(&r),
                     8 * MIB(128) + MIB(2) + RANDOM_STATE + 3 * MIB(448) + 2 * 4 * LLAMA_T);
    close_rig(&r);
}

static void llama_selective(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.selective = true}));
    assert_kernels(&r, TSR_PHASE_FORWARD, llama_forward);
    /* the recomputed first norm joins the gradient of the second: both read the block's input */
    assert_kernels(
        &r, TSR_PHASE_BACKWARD,
        "add+rms_norm\nsilu+mul\nsilu+mul+silu_backward\n"
        "add+rms_norm_backward+rms_norm\npartial_sums\ncast\nrotary\ncast\ncast\nrotary\n"
        "cast+expand_heads\nexpand_heads\nflash_attention_backward\nsum_heads\n"
        "sum_heads+cast\nconjugate\nrotary_backward\ncast\ncast\nrotary_backward\ncast\n"
        "add+rms_norm_backward\npartial_sums\n");
    /* block.py llama selective: input or result, mm, mm_2, getitem, log-sum-exp, random state,
     * mm_4; every second product is kept, the last of them is not needed */
    assert_int_equal(kept(&r), 3 * MIB(128) + MIB(32) + MIB(2) + RANDOM_STATE + MIB(448));
    assert_int_equal(count_products(&r, TSR_PHASE_BACKWARD, true, TSR_BF16), 3); /* k, o, up */
    close_rig(&r);
}

static void llama_full(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.full = true}));
    assert_int_equal(kept(&r), MIB(128)); /* the result: the next block's input */
    /* the last product of the block is not needed again */
    assert_int_equal(count_products(&r, TSR_PHASE_BACKWARD, true, TSR_BF16), 6);
    close_rig(&r);
}

static void norm_by_hand(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.hand_norm = true, .selective = true}));
    const struct tsr_instr *in = kernel(&r, "cast+pow+mean+add_scalar+rsqrt+mul");
    assert_int_equal(in->work->op, TSR_OP_NORM);
    assert_int_equal(in->work->bytes_read, MIB(128) + 2 * LLAMA_D); /* as the norm of one kernel */
    assert_int_equal(in->work->bytes_written, MIB(128));
    assert_int_equal(kept(&r), 3 * MIB(128) + MIB(32) + MIB(2) + RANDOM_STATE + MIB(448));
    close_rig(&r);
}

/* Real products turn halves: they fuse with the casts around them, and queries with repeated keys,
 * which are of one size and read one table. */
static void rotation_of_halves(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.hf_names = true}));
    const struct tsr_instr *in = kernel(&r, "cast+rotary+expand_heads");
    assert_int_equal(in->work->bytes_written, 2 * MIB(128));
    close_rig(&r);
}

static void bytes_of_kernels(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){0}));
    const struct tsr_instr *in = kernel(&r, "add+rms_norm"); /* x and o, w; y and 1 / root */
    assert_int_equal(in->work->bytes_read, 2 * MIB(128) + 2 * LLAMA_D);
    assert_int_equal(in->work->bytes_written, MIB(128) + 4 * LLAMA_T);
    in = kernel(&r, "silu+mul");
    assert_int_equal(in->work->bytes_read, 2 * MIB(448));
    in = kernel(&r, "silu+mul+silu_backward");
    assert_int_equal(in->work->bytes_read, 3 * MIB(448));
    assert_int_equal(in->work->bytes_written, 2 * MIB(448));
    in = kernel(&r, "add+rms_norm_backward"); /* two gradients of y, x, o, w, root, the result's */
    assert_int_equal(in->work->bytes_read, 5 * MIB(128) + 2 * LLAMA_D + 4 * LLAMA_T);
    assert_int_equal(in->work->bytes_written, MIB(128) + 4 * LLAMA_D * LLAMA_T / 16);
    assert_int_equal(in->work->compiled, TSR_COMPILED);
    close_rig(&r);
}

/* Results of a kernel that take the memory of what it reads. */
static unsigned n_over(const struct tsr_instr *in)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < in->n_operands; i++)
        for (uint32_t k = 0; k < in->n_operands && in->operands[i].access == TSR_WRITE; k++)
            n += in->operands[k].access == TSR_READ &&
                 in->operands[k].buffer == in->operands[i].buffer;
    return n;
}

/* block.py llama none: of the gradients of SwiGLU, which both read the gradient of the product and
 * the gate, one takes the place of mm_5 (up), which only it reads; that of a norm's rows takes the
 * place of a gradient, although the sums over the row read that first. */
static void results_in_place(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){0}));
    assert_int_equal(n_over(kernel(&r, "silu+mul+silu_backward")), 1);
    assert_int_equal(n_over(kernel(&r, "add+rms_norm_backward")), 1);
    close_rig(&r);
}

static void same_work_as_eager(void **state)
{
    struct rig compiled, eager;
    (void)state;
    for (int full = 0; full < 2; full++) {
        ok(open_rig(&compiled, (struct options){.full = full}));
        ok(open_rig(&eager, (struct options){.full = full, .eager = true}));
        assert_true(model_flops(&compiled.step) == model_flops(&eager.step));
        assert_int_equal(count_products(&compiled, TSR_PHASE_BACKWARD, true, TSR_BF16),
                         count_products(&eager, TSR_PHASE_BACKWARD, true, TSR_BF16));
        close_rig(&compiled);
        close_rig(&eager);
    }
}

/* The plan is made once; once the allocator's cache is full, iterations are the same program. */
static void later_iterations(void **state)
{
    struct rig r;
    struct tsr_program again;
    (void)state;
    ok(open_rig(&r, (struct options){.selective = true}));
    tsr_program_init(&again, tsr_engine_tables(r.e));
    ok(tsr_step_run(r.e, 1));
    ok(tsr_step_run(r.e, 2));
    r.recorder.into = &r.second;
    ok(tsr_step_run(r.e, 3));
    r.recorder.into = &again;
    ok(tsr_step_run(r.e, 4));
    assert_true(r.second.n_instrs > 0);
    assert_true(tsr_program_hash(&r.second) == tsr_program_hash(&again));
    tsr_program_fini(&again);
    close_rig(&r);
}

static void evaluation(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.selective = true}));
    r.recorder.into = &r.second;
    ok(tsr_eval_run(r.e));
    int n = 0;
    for (size_t i = 0; i < r.second.n_instrs; i++)
        n += r.second.instrs[i].kind == TSR_OP &&
             strcmp(r.second.instrs[i].work->name, "add+rms_norm") == 0;
    assert_int_equal(n, LAYERS);
    close_rig(&r);
}

/* ---- GPT-2 ----------------------------------------------------------------------------------- */

static void gpt2_without_checkpoint(void **state)
{
    const uint64_t row = 2 * (uint64_t)GPT2_D * GPT2_T;
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.gpt2 = true}));
    assert_kernels(&r, TSR_PHASE_FORWARD,
                   "layer_norm\nflash_attention\nadd+layer_norm\ngelu\nadd\n");
    /* the sums for biases stand alone, but those of the tangent, which the norm's kernel reads */
    assert_kernels(&r, TSR_PHASE_BACKWARD,
                   "gelu_backward\nsum_bias_grad\npartial_sums\n"
                   "add+layer_norm_backward+sum_bias_grad\npartial_sums\nflash_attention_backward\n"
                   "cat_gradients\nsum_bias_grad\npartial_sums\n"
                   "layer_norm_backward+add+sum_bias_grad\npartial_sums\n");
    /* block.py gpt2 none: input or result, view, q with k and v, view_6 (attention), addmm_1,
     * view_8; addmm_2, view_10; log-sum-exp; four statistics */
    assert_int_equal(kept(&r), 8 * row + 8 * row + 4 * 25 * GPT2_T + RANDOM_STATE + 4 * 4 * GPT2_T);
    const struct tsr_instr *in = kernel(&r, "cat_gradients");
    assert_int_equal(in->work->bytes_read, 3 * row);
    close_rig(&r);
}

/* ---- the loss -------------------------------------------------------------------------------- */

static unsigned count_kernels(const struct rig *r, const char *name)
{
    unsigned n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++)
        n += r->step.instrs[i].kind == TSR_OP && strcmp(r->step.instrs[i].work->name, name) == 0;
    return n;
}

/* Allocations of a step that have exactly so many bytes. */
static unsigned count_allocs(const struct rig *r, uint64_t bytes)
{
    unsigned n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++)
        n += r->step.instrs[i].kind == TSR_ALLOC && r->step.instrs[i].bytes == bytes;
    return n;
}

static const struct tsr_work *loss_kernel(const struct rig *r, const char *name)
{
    for (size_t i = 0; i < r->step.n_instrs; i++)
        if (r->step.instrs[i].kind == TSR_OP && strcmp(r->step.instrs[i].work->name, name) == 0)
            return r->step.instrs[i].work;
    fail_msg("no kernel %s", name);
    return NULL;
}

/* Logits and their gradient, both in bf16, and nothing of their size in f32; Inductor's kernels
 * read the logits once forward and once backward. */
static void compiled_loss(void **state)
{
    const uint64_t logits = 2 * (uint64_t)LLAMA_T * VOCAB;
    struct rig eager, r;
    (void)state;
    ok(open_rig(&eager, (struct options){.eager = true}));
    ok(open_rig(&r, (struct options){.eager = true, .loss = TSR_LOSS_COMPILED}));
    assert_int_equal(count_allocs(&eager, 2 * logits), 4);
    assert_int_equal(count_allocs(&r, 2 * logits), 0);
    assert_int_equal(count_allocs(&r, logits), 2);
    const struct tsr_work *first = loss_kernel(&r, "compiled_log_sum_exp");
    assert_int_equal(first->bytes_read, logits);
    assert_int_equal(first->bytes_written, 2 * 4 * LLAMA_T);
    assert_int_equal(first->compiled, TSR_COMPILED_FIRST);
    const struct tsr_work *rows = loss_kernel(&r, "compiled_nll");
    assert_true(rows->bytes_read < logits);
    assert_int_equal(rows->compiled, TSR_COMPILED);
    const struct tsr_work *back = loss_kernel(&r, "compiled_cross_entropy_backward");
    assert_int_equal(back->bytes_read, logits + (8 + 2 * 4) * LLAMA_T + 2 * 4);
    assert_int_equal(back->bytes_written, logits);
    close_rig(&r);
    close_rig(&eager);
}

/* block.py loss: of a cut vocabulary zeros and softmax less one-hot exist in fp32, and three
 * numbers a token are reduced over the ranks. */
static void compiled_loss_of_cut_vocabulary(void **state)
{
    const uint64_t logits = 2 * (uint64_t)LLAMA_T * VOCAB / 2;
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.tp = true, .loss = TSR_LOSS_COMPILED}));
    assert_int_equal(count_allocs(&r, 2 * logits), 2);
    assert_int_equal(count_allocs(&r, logits), 2);
    assert_int_equal(loss_kernel(&r, "compiled_row_exp_sum")->bytes_read, logits + 4 * LLAMA_T);
    const struct tsr_work *saved = loss_kernel(&r, "compiled_softmax");
    assert_int_equal(saved->bytes_read, logits + 2 * logits + 2 * 4 * LLAMA_T);
    assert_int_equal(saved->bytes_written, 2 * logits);
    const struct tsr_work *back = loss_kernel(&r, "compiled_cut_backward");
    assert_int_equal(back->bytes_read, 2 * logits + 2 * 4);
    assert_int_equal(back->bytes_written, logits);
    unsigned sums = 0;
    for (size_t i = 0; i < r.step.n_instrs; i++)
        sums += r.step.instrs[i].kind == TSR_ALL_REDUCE &&
                r.step.instrs[i].origin.phase == TSR_PHASE_LOSS &&
                r.step.instrs[i].bytes == 4 * LLAMA_T;
    assert_int_equal(sums, 3);
    close_rig(&r);
}

/* The same for the logits of each chunk. */
static void compiled_loss_in_chunks(void **state)
{
    const uint64_t logits = 2 * (uint64_t)LLAMA_T * VOCAB;
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.loss = TSR_LOSS_COMPILED, .chunks = 16}));
    assert_int_equal(count_kernels(&r, "compiled_cross_entropy_backward"), 16);
    assert_int_equal(count_allocs(&r, 2 * logits / 16), 0);
    assert_int_equal(count_allocs(&r, logits / 16), 2 * 16);
    close_rig(&r);
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

static void fp8_tensorwise(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.linear = TSR_LINEAR_FP8_TENSORWISE, .selective = true}));
    assert_int_equal(count_products(&r, TSR_PHASE_FORWARD, false, TSR_F8), 7);
    assert_int_equal(count_products(&r, TSR_PHASE_BACKWARD, false, TSR_F8), 14);
    assert_int_equal(count_products(&r, TSR_PHASE_BACKWARD, true, TSR_F8), 3);
    assert_int_equal(count_products(&r, TSR_PHASE_FORWARD, false, TSR_BF16), 0);
    /* the same products are kept, in 16 bits */
    assert_int_equal(kept(&r), 3 * MIB(128) + MIB(32) + MIB(2) + RANDOM_STATE + MIB(448));
    const struct tsr_instr *in = kernel(&r, "rms_norm+amax_rows"); /* found on the way */
    assert_int_equal(in->work->op, TSR_OP_NORM);
    in = kernel(&r, "fp8_mm"); /* q: both operands of one byte, a result of two */
    assert_int_equal(in->work->bytes_read, MIB(64) + MIB(16));
    assert_int_equal(in->work->bytes_written, MIB(128));
    close_rig(&r);
}

static uint64_t gathered(const struct rig *r)
{
    uint64_t most = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++)
        if (r->step.instrs[i].kind == TSR_ALL_GATHER && r->step.instrs[i].bytes > most)
            most = r->step.instrs[i].bytes;
    return most;
}

/* Seven matrices of a block travel with one byte an element, the norms with two; the weights are
 * there in fp8 already: no cast, and a copy the other way round for the input's gradient. */
static void fp8_gather(void **state)
{
    const uint64_t matrices = 2 * MIB(16) + 2 * MIB(4) + 3 * MIB(56), norms = 2 * 2 * LLAMA_D;
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.linear = TSR_LINEAR_FP8_TENSORWISE}));
    assert_int_equal(gathered(&r), 2 * matrices + norms);
    close_rig(&r);
    ok(open_rig(&r, (struct options){.linear = TSR_LINEAR_FP8_TENSORWISE, .fp8_gather = true}));
    assert_int_equal(gathered(&r), matrices + norms);
    int casts = 0, turned = 0;
    for (size_t i = 0; i < r.step.n_instrs; i++) {
        const struct tsr_instr *in = &r.step.instrs[i];
        if (in->kind != TSR_OP || !is_of_block(&r, in) || in->work->op != TSR_OP_POINTWISE)
            continue;
        casts += in->origin.phase == TSR_PHASE_FORWARD && strstr(in->work->name, "fp8_cast");
        turned += !strcmp(in->work->name, "fp8_transpose");
    }
    assert_int_equal(casts, 4); /* inputs of q k v, o, gate up, down */
    assert_int_equal(turned, 7);
    close_rig(&r);
}

static void fp8_delayed(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.linear = TSR_LINEAR_FP8_DELAYED, .eager = true}));
    assert_int_equal(count_products(&r, TSR_PHASE_FORWARD, false, TSR_F8), 7);
    assert_int_equal(count_products(&r, TSR_PHASE_BACKWARD, false, TSR_F8), 14);
    const struct tsr_instr *in = kernel(&r, "fp8_cast_transpose");
    assert_int_equal(in->work->bytes_read, MIB(128));
    assert_int_equal(in->work->bytes_written, 2 * MIB(64));
    close_rig(&r);
}

/* ---- tensor parallelism ---------------------------------------------------------------------- */

/* block.py llama --tp 2: torch.cat of chunks (a clone here) is a kernel of its own behind an
 * all-gather and behind a product; before a reduce-scatter of backward it takes in the sum of the
 * gradients. */
static const char cut_forward[] =
    "rms_norm\nall_gather\nclone\ncast\nrotary\ncast\ncast\nrotary\ncast+expand_heads\n"
    "expand_heads\nflash_attention\nclone\nreduce_scatter\nadd+rms_norm\nall_gather\nclone\n"
    "silu+mul\nclone\nreduce_scatter\nadd\n";
static const char cut_tail[] =
    "flash_attention_backward\nsum_heads\nsum_heads+cast\nconjugate\n"
    "rotary_backward\ncast\ncast\nrotary_backward\ncast\nadd+clone\nreduce_scatter\n"
    "rms_norm_backward+add\npartial_sums\n";

static void assert_cut(struct options o, const char *backward, uint64_t saved)
{
    static char want[2048];
    struct rig r;
    o.tp = true;
    ok(open_rig(&r, o));
    snprintf(want, sizeof want, "%s%s", backward, cut_tail);
    assert_kernels(&r, TSR_PHASE_FORWARD, cut_forward);
    assert_kernels(&r, TSR_PHASE_BACKWARD, want);
    assert_int_equal(kept(&r), saved);
    close_rig(&r);
}

static void tensor_parallel(void **state)
{
    (void)state;
    /* saved: the input, or the result here; view_1, q, k, v, log-sum-exp, random state, view_23,
     * what the first reduce-scatter returned, view_27, mm_4, mm_5, view_34, two statistics */
    assert_cut((struct options){0},
               "all_gather\nclone\nsilu+mul+silu_backward\nadd+clone\nreduce_scatter\n"
               "add+rms_norm_backward\npartial_sums\nall_gather\nclone\n",
               6 * MIB(64) + 2 * MIB(128) + MIB(1) + RANDOM_STATE + 3 * MIB(224) +
                   2 * 4 * LLAMA_T / 2);
    /* nothing is scattered again: input or result, mm, mm_2, getitem, log-sum-exp, random state,
     * reduce_scatter_tensor, mm_4 */
    assert_cut((struct options){.selective = true},
               "all_gather\nclone\nadd+rms_norm\nall_gather\nclone\nsilu+mul\n"
               "silu+mul+silu_backward\nadd+clone\nreduce_scatter\n"
               "add+rms_norm_backward+rms_norm\npartial_sums\nall_gather\nclone\ncast\nrotary\n"
               "cast\nall_gather\nclone\ncast\nrotary\ncast+expand_heads\nexpand_heads\n",
               4 * MIB(64) + MIB(16) + MIB(1) + RANDOM_STATE + MIB(224));
    /* the last reduce-scatter of the block is not needed again */
    assert_cut((struct options){.full = true},
               "all_gather\nclone\nrms_norm\nall_gather\nclone\ncast\nrotary\ncast\ncast\nrotary\n"
               "cast+expand_heads\nexpand_heads\nflash_attention\nclone\nreduce_scatter\n"
               "add+rms_norm\nall_gather\nclone\nsilu+mul\nsilu+mul+silu_backward\nadd+clone\n"
               "reduce_scatter\nadd+rms_norm_backward\npartial_sums\nall_gather\nclone\n",
               MIB(64));
}

/* block.py llama --tp 2 --plain: sums over the ranks take the place of what they add, without a
 * copy. */
static void sums_over_ranks(void **state)
{
    struct rig r;
    (void)state;
    ok(open_rig(&r, (struct options){.tp = true, .plain = true}));
    assert_kernels(&r, TSR_PHASE_FORWARD,
                   "rms_norm\ncast\nrotary\ncast\ncast\nrotary\ncast+expand_heads\n"
                   "expand_heads\nflash_attention\nall_reduce\nadd+rms_norm\nsilu+mul\n"
                   "all_reduce\nadd\n");
    /* the input, or the result here; view_1, q, k, v, log-sum-exp, random state, view_25, the sum
     * over the ranks, view_29, mm_4, mm_5, view_37, two statistics */
    assert_int_equal(kept(&r), 4 * MIB(128) + 4 * MIB(64) + MIB(1) + RANDOM_STATE + 3 * MIB(224) +
                                   2 * 4 * LLAMA_T);
    for (size_t i = 0; i < r.step.n_instrs; i++)
        if (r.step.instrs[i].kind == TSR_ALL_REDUCE && is_of_block(&r, &r.step.instrs[i]))
            assert_int_equal(r.step.instrs[i].n_operands, 1); /* in place */
    close_rig(&r);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void assert_refused(struct options o, const char *text)
{
    struct rig r;
    assert_int_equal(open_rig(&r, o), TSR_EUNSUPPORTED);
    assert_non_null(strstr(tsr_error_text(), text));
    close_rig(&r);
}

static void refusals(void **state)
{
    (void)state;
    assert_refused((struct options){.wraps_inside = true}, "is wrapped or checkpointed inside");
    assert_refused((struct options){.outside = true}, "lies outside its hooks");
    struct tsr_recorder recorder;
    struct tsr_program program;
    struct tsr_engine *e;
    tsr_recorder_init(&recorder, &program);
    struct tsr_engine_config c = {.mesh = {.n_dims = 1, .shape = {2}},
                                  .executor = &recorder.base,
                                  .linear = TSR_LINEAR_FP8_TENSORWISE};
    assert_int_equal(tsr_engine_create(&c, &e), TSR_EUNSUPPORTED);
    c.linear = TSR_LINEAR_FP8_DELAYED;
    c.dialect = TSR_DIALECT_COMPILE;
    assert_int_equal(tsr_engine_create(&c, &e), TSR_EUNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_without_checkpoint),
        cmocka_unit_test(llama_selective),
        cmocka_unit_test(llama_full),
        cmocka_unit_test(norm_by_hand),
        cmocka_unit_test(rotation_of_halves),
        cmocka_unit_test(bytes_of_kernels),
        cmocka_unit_test(results_in_place),
        cmocka_unit_test(same_work_as_eager),
        cmocka_unit_test(later_iterations),
        cmocka_unit_test(evaluation),
        cmocka_unit_test(gpt2_without_checkpoint),
        cmocka_unit_test(compiled_loss),
        cmocka_unit_test(compiled_loss_of_cut_vocabulary),
        cmocka_unit_test(compiled_loss_in_chunks),
        cmocka_unit_test(fp8_tensorwise),
        cmocka_unit_test(fp8_gather),
        cmocka_unit_test(fp8_delayed),
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(sums_over_ranks),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("compile", tests, NULL, NULL);
}
