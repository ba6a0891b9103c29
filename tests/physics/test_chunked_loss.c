/* test_chunked_loss.c: head and loss in chunks of tokens (loss.chunks), and optimizer states in
 * another dtype (optimizer.state): by closed forms over what is allocated, and against the same
 * step without them.
 */
#include "tests/physics/physics.h"

enum { T = 192, D = 896, V = 151936 }; /* qwen2.5-0.5b, tied; batch 2 x seq 96 */

#define QWEN  "model: {name: qwen2.5-0.5b, layers: 2}\nworld: 4\nbatch: 2\nseq: 96\n"
#define LLAMA "model: {name: llama-3.1-8b, layers: 2}\nworld: 4\nseq: 256\n"
#define GPT2  "model: {name: gpt2, layers: 2}\nworld: 4\nseq: 128\n"

static void open_with(struct study *study, const char *text, const char *more)
{
    char all[1024];
    snprintf(all, sizeof all, "%s%s", text, more);
    study_open(study, all);
}

static const struct tsr_program *steady(const struct study *study)
{
    return study->programs[0][study->steady];
}

static bool is_in(const struct tsr_program *p, const struct tsr_instr *instr, const char *module,
                  int phase)
{
    return instr->origin.module != TSR_NO_ID && instr->origin.phase == phase &&
           instr->origin.hook == TSR_HOOK_NONE &&
           !strcmp(p->tables->modules[instr->origin.module], module);
}

/* Sizes that the head's forward asks for, in order; *most: of these the most alive at once. */
static size_t head_allocs(const struct tsr_program *p, int phase, uint64_t *out, size_t room,
                          uint64_t *most)
{
    size_t n = 0;
    uint64_t level = 0;
    uint32_t *mine = calloc(room, sizeof *mine);
    *most = 0;
    for (size_t i = 0; i < p->n_instrs; i++) {
        const struct tsr_instr *instr = &p->instrs[i];
        if (!is_in(p, instr, "lm_head", phase))
            continue;
        if (instr->kind == TSR_ALLOC && n < room) {
            mine[n] = instr->buffer;
            out[n++] = instr->bytes;
            level += instr->bytes;
        }
        for (size_t k = 0; instr->kind == TSR_FREE && k < n; k++)
            level -= mine[k] == instr->buffer ? out[k] : 0;
        *most = level > *most ? level : *most;
    }
    free(mine);
    return n;
}

static size_t kernels(const struct tsr_program *p, const char *module, int phase, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_instrs; i++)
        n += p->instrs[i].kind == TSR_OP && is_in(p, &p->instrs[i], module, phase) &&
             (!name || !strcmp(p->instrs[i].work->name, name));
    return n;
}

/* ---- memory of the head -------------------------------------------------------------------------
 */

static void logits_of_one_chunk_are_alive(void **state)
{
    static const uint64_t chunks[] = {2, 3, 5, 8, T};
    (void)state;
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        struct study study;
        char more[64];
        uint64_t rows = (T + chunks[c] - 1) / chunks[c], most, got[5 * T + 4];
        size_t n_chunks = (T + rows - 1) / rows;
        snprintf(more, sizeof more, "loss.chunks: %llu\n", (unsigned long long)chunks[c]);
        open_with(&study, QWEN, more);
        size_t n = head_allocs(steady(&study), TSR_PHASE_FORWARD, got, 5 * T + 4, &most);
        assert_int_equal(n, 4 + 5 * n_chunks);
        const uint64_t once[] = {2 * T * D, 2ULL * V * D, 4, 4};
        assert_memory_equal(got, once, sizeof once);
        for (size_t k = 0; k < n_chunks; k++) { /* the last one may be smaller */
            uint64_t part = V * (k + 1 < n_chunks ? rows : T - k * rows);
            const uint64_t chunk[] = {2 * part, 4 * part, 4 * part, 4, 2 * part};
            assert_memory_equal(got + 4 + 5 * k, chunk, sizeof chunk);
        }
        assert_int_equal(most, 2 * T * D + 2ULL * V * D + 8 + 8 * rows * V);
        study_close(&study);
    }
}

/* fp32 logits need no cast. */
static void full_precision_has_no_casts(void **state)
{
    struct study study;
    uint64_t got[64], most;
    (void)state;
    open_with(&study, QWEN, "precision: {param: none, reduce: none}\nloss.chunks: 4\n");
    size_t n = head_allocs(steady(&study), TSR_PHASE_FORWARD, got, 64, &most);
    assert_int_equal(n, 4 + 4 * 3);
    assert_int_equal(most, 4 * T * D + 4ULL * V * D + 8 + 8 * (T / 4) * V);
    study_close(&study);
}

/* An evaluation wants no gradients: neither their memory nor their products. */
static void evaluation_makes_no_gradients(void **state)
{
    struct study study;
    uint64_t got[64], most;
    (void)state;
    open_with(&study, QWEN, "phases: [step1, step2, eval]\nloss.chunks: 4\n");
    bool found = false;
    for (uint32_t i = 0; i < study.sim.n_iterations; i++) {
        const struct tsr_program *p = study.programs[0][i];
        size_t n = head_allocs(p, TSR_PHASE_EVAL, got, 64, &most);
        if (n == 0)
            continue;
        found = true;
        assert_int_equal(n, 2 + 4 * 4);
        assert_int_equal(most, 8 + 8 * (T / 4) * V);
        assert_int_equal(kernels(p, "lm_head", TSR_PHASE_EVAL, "mm"), 4);
        assert_int_equal(kernels(p, "lm_head", TSR_PHASE_EVAL, "mm_input_grad"), 0);
        assert_int_equal(kernels(p, "lm_head", TSR_PHASE_EVAL, "addmm_weight_grad"), 0);
    }
    assert_true(found);
    study_close(&study);
}

/* ---- the same step otherwise ---------------------------------------------------------------- */

static double model_flops(const struct tsr_program *p)
{
    double sum = 0;
    for (size_t i = 0; i < p->n_instrs; i++)
        sum += p->instrs[i].work ? p->instrs[i].work->model_flops : 0;
    return sum;
}

static size_t next_collective(const struct tsr_program *p, size_t i)
{
    while (i < p->n_instrs && !is_collective(&p->instrs[i]))
        i++;
    return i;
}

/* Every collective in the same order, from the same hook of the same group. */
static void same_collectives(const struct tsr_program *a, const struct tsr_program *b)
{
    size_t i = next_collective(a, 0), k = next_collective(b, 0);
    assert_true(i < a->n_instrs);
    for (; i < a->n_instrs && k < b->n_instrs;
         i = next_collective(a, i + 1), k = next_collective(b, k + 1)) {
        const struct tsr_instr *x = &a->instrs[i], *y = &b->instrs[k];
        assert_int_equal(x->kind, y->kind);
        assert_int_equal(x->bytes, y->bytes);
        assert_int_equal(x->comm, y->comm);
        assert_int_equal(x->origin.group, y->origin.group);
        assert_int_equal(x->origin.hook, y->origin.hook);
    }
    assert_int_equal(i, a->n_instrs);
    assert_int_equal(k, b->n_instrs);
}

/* Sums of gradients as large as the embedding, which a tied head adds to. */
static size_t large_sums(const struct tsr_program *p, uint64_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_instrs; i++)
        n += p->instrs[i].kind == TSR_OP && p->instrs[i].origin.phase == TSR_PHASE_BACKWARD &&
             !strcmp(p->instrs[i].work->name, "add") && p->instrs[i].work->bytes_written == bytes;
    return n;
}

static void hooks_and_products_are_the_same(void **state)
{
    static const char *const texts[] = {
        QWEN,
        QWEN "wrap: block_embed_head\n",
        QWEN "wrap: root\nclip: true\n",
        QWEN "api: replicate\naccumulation: {steps: 2, mode: no_reduce}\n",
        LLAMA,
        LLAMA "wrap: block_embed_head\nmodel.implementation: transformers\n",
        LLAMA "model.names: torchtitan\nreshard_after_forward: false\n",
        LLAMA "mesh: [2, 2]\naccumulation: {steps: 2}\noffload: cpu_pinned\n",
        GPT2,
        GPT2 "wrap: block_embed_head\nmodel.names: torchtitan\n",
        GPT2 "model.implementation: transformers\nmodel.packed: true\n",
        GPT2 "api: ddp\nddp.gradient_as_bucket_view: true\n"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct study whole, parts;
        open_with(&whole, texts[i], "");
        open_with(&parts, texts[i], "loss.chunks: 8\n");
        const struct tsr_program *a = steady(&whole), *b = steady(&parts);
        same_collectives(a, b);
        double x = model_flops(a), y = model_flops(b);
        assert_true(fabs(x - y) < 1e-9 * x);
        const char *head =
            tsr_module_find(parts.emission.classes[0].engine, "output") ? "output" : "lm_head";
        assert_int_equal(kernels(b, head, TSR_PHASE_LOSS, NULL), 0);
        assert_int_equal(kernels(b, head, TSR_PHASE_BACKWARD, "mm_input_grad"), 0);
        assert_int_equal(kernels(b, head, TSR_PHASE_BACKWARD, "mul"),
                         2 * parts.job.settings->accum_steps);
        study_close(&whole);
        study_close(&parts);
    }
}

static void a_tied_head_is_added_to_the_embedding(void **state)
{
    struct study whole, parts;
    (void)state;
    open_with(&whole, QWEN, "");
    open_with(&parts, QWEN, "loss.chunks: 8\n");
    assert_int_equal(large_sums(steady(&whole), 2ULL * V * D), 1);
    assert_int_equal(large_sums(steady(&parts), 2ULL * V * D), 1);
    study_close(&whole);
    study_close(&parts);
}

/* ---- states of the optimizer --------------------------------------------------------------------
 */

struct sums {
    uint64_t state, temp, read;
};

/* Requested bytes of states and temporaries in a whole run; read: by the kernels of a step. */
static struct sums optimizer_of(const struct study *study)
{
    struct sums s = {0};
    for (uint32_t it = 0; it < study->sim.n_iterations; it++) {
        const struct tsr_program *p = study->programs[0][it];
        s.read = 0;
        for (size_t i = 0; i < p->n_instrs; i++) {
            const struct tsr_instr *instr = &p->instrs[i];
            if (instr->kind == TSR_ALLOC && instr->category == TSR_CAT_OPT_STATE)
                s.state += instr->bytes;
            if (instr->kind == TSR_ALLOC && instr->category == TSR_CAT_OPT_TEMP)
                s.temp += instr->bytes;
            if (instr->kind == TSR_OP && instr->work->op == TSR_OP_OPTIMIZER)
                s.read += instr->work->bytes_read;
        }
    }
    return s;
}

static struct sums optimizer_with(const char *more)
{
    struct study study;
    open_with(&study, QWEN, more);
    struct sums s = optimizer_of(&study);
    study_close(&study);
    return s;
}

static void states_in_bf16_are_half(void **state)
{
    (void)state;
    struct sums full = optimizer_with(""), half = optimizer_with("optimizer.state: bf16\n");
    uint64_t params = full.state / 8; /* two states of four bytes */
    assert_int_equal(full.state, 2 * half.state);
    assert_int_equal(full.temp, 2 * half.temp);
    /* foreach reads in eight kernels: parameter and gradient twice, states five times and
     * temporaries three times */
    assert_int_equal(full.read, params * 4 * (4 + 8));
    assert_int_equal(half.read, params * (4 * 4 + 2 * 8));
}

/* The default is the dtype of the parameters; f32 beside bf16 ones is larger. */
static void states_follow_the_master(void **state)
{
    (void)state;
    struct sums f32 = optimizer_with("optimizer.state: f32\n"), master = optimizer_with("");
    struct sums bf16 = optimizer_with("precision.master: bf16\n");
    struct sums both = optimizer_with("precision.master: bf16\noptimizer.state: f32\n");
    assert_int_equal(f32.state, master.state);
    assert_int_equal(f32.read, master.read);
    assert_int_equal(2 * bf16.state, f32.state);
    assert_int_equal(both.state, f32.state);
}

static void every_optimizer_keeps_them(void **state)
{
    static const char *const optimizers[] = {"{name: adamw, variant: loop, state: ",
                                             "{name: sgd, state: "};
    (void)state;
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++) {
        char a[96], b[96];
        snprintf(a, sizeof a, "optimizer: %sf32}\n", optimizers[i]);
        snprintf(b, sizeof b, "optimizer: %sbf16}\n", optimizers[i]);
        struct sums full = optimizer_with(a), half = optimizer_with(b);
        assert_true(half.state > 0);
        assert_int_equal(full.state, 2 * half.state);
        assert_true(half.read < full.read);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_one_chunk_are_alive),
        cmocka_unit_test(full_precision_has_no_casts),
        cmocka_unit_test(evaluation_makes_no_gradients),
        cmocka_unit_test(hooks_and_products_are_the_same),
        cmocka_unit_test(a_tied_head_is_added_to_the_embedding),
        cmocka_unit_test(states_in_bf16_are_half),
        cmocka_unit_test(states_follow_the_master),
        cmocka_unit_test(every_optimizer_keeps_them),
    };
    return cmocka_run_group_tests_name("loss in chunks, states in bf16", tests, NULL, NULL);
}
