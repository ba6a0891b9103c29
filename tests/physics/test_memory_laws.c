/* test_memory_laws.c: memory of real models: categories sum to the total at every instant, nothing
 * is lost from one step to the next, and the closed forms of PyTorch's engine hold to the byte. */
#include "tests/physics/physics.h"

/* ---- a replay that watches every instant ------------------------------------------------------
 */

struct watch {
    uint64_t level[TSR_N_CATEGORIES], peak[TSR_N_CATEGORIES], peak_total, peak_reserved;
    uint64_t n;
};

static void on_sample(void *user, const struct tsr_memory_sample *sample)
{
    struct watch *watch = user;
    uint64_t sum = 0;
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        sum += sample->by_category[c];
        watch->level[c] = sample->by_category[c];
        if (sample->by_category[c] > watch->peak[c])
            watch->peak[c] = sample->by_category[c];
    }
    assert_int_equal(sum, sample->total);
    assert_true(sample->total <= sample->reserved);
    watch->peak_total = sum > watch->peak_total ? sum : watch->peak_total;
    watch->peak_reserved =
        sample->reserved > watch->peak_reserved ? sample->reserved : watch->peak_reserved;
    watch->n++;
}

/* Replays all iterations of a class; *before and *steady: the last two. */
static void replay(const struct study *study, uint32_t class, struct watch *before,
                   struct watch *steady)
{
    struct tsr_memory *memory;
    struct watch watch = {.n = 0};
    study_ok(tsr_memory_create(&memory));
    for (uint32_t it = 0; it < study->sim.n_iterations; it++) {
        struct tsr_memory_peak peak;
        *before = *steady;
        memcpy(watch.peak, watch.level, sizeof watch.peak);
        watch.peak_total = watch.peak_reserved = 0;
        study_ok(tsr_memory_replay(memory, study->programs[class][it], on_sample, &watch, &peak));
        assert_true(peak.allocated >= watch.peak_total);
        assert_true(peak.reserved >= watch.peak_reserved);
        *steady = watch;
    }
    tsr_memory_destroy(memory);
}

/* ---- conservation ------------------------------------------------------------------------------
 */

/* What may be alive between two steps. */
static bool outlives_a_step(const struct study *study, int category)
{
    switch (category) {
    case TSR_CAT_REDUCE_SCATTER: /* buckets */
        return study->job.settings->api == TSR_API_DDP;
    case TSR_CAT_SHARDED_PARAM:
    case TSR_CAT_BUFFER:
    case TSR_CAT_OPT_STATE:
    case TSR_CAT_SHARDED_GRAD:
    case TSR_CAT_WORKSPACE:
        return true;
    case TSR_CAT_UNSHARDED_GRAD: /* of DDP: nothing shards it */
        return study->job.settings->api == TSR_API_DDP;
    default:
        return false;
    }
}

static const char *const conserved[] = {
    "model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 8192\n",
    "model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 8192\nreshard_after_forward: 4\n",
    "model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 8192\nwrap: root\ncheckpoint: full\n",
    "model: llama-3.1-8b\ncluster: dgx-h100-2\nmesh: {replicate: 2, shard: 8}\n"
    "precision: {reduce: bf16}\nclip: true\n",
    "model: gpt2-xl\ncluster: dgx-a100-80g\nbatch: 4\nprecision: {param: none, reduce: none}\n",
    "model: gpt2-xl\ncluster: dgx-a100-80g\naccumulation: {steps: 3, mode: no_reduce}\n",
    "model: gpt2-xl\ncluster: dgx-a100-80g\noffload: cpu_pinned\n",
    "model: gpt2-xl\ncluster: dgx-a100-80g\napi: ddp\nprecision: {param: none, reduce: none}\n",
    "model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 8192\nloss.chunks: 8\n"
    "checkpoint: selective_op\noptimizer.state: bf16\n",
    "model: gpt2-xl\ncluster: dgx-a100-80g\naccumulation: {steps: 3, mode: no_reduce}\n"
    "loss.chunks: 7\nmodel.implementation: transformers\n",
    "model: gpt2-xl\ncluster: dgx-a100-80g\napi: replicate\noptimizer: {name: sgd}\n",
    "model: qwen2.5-7b\ncluster: dgx-h100-1\nworld: 7\nwrap: block_embed_head\n",
};

static void nothing_is_lost(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof conserved / sizeof conserved[0]; s++) {
        struct study study;
        study_open(&study, conserved[s]);
        for (uint32_t class = 0; class < study.sim.n_classes; class ++) {
            struct watch before = {.n = 0}, steady = {.n = 0};
            replay(&study, class, &before, &steady);
            assert_true(steady.n > before.n + 1000);
            for (int c = 0; c < TSR_N_CATEGORIES; c++) {
                if (steady.level[c] != before.level[c])
                    fail_msg("%s: %s: %llu bytes after %llu", conserved[s], tsr_category_name(c),
                             (unsigned long long)steady.level[c],
                             (unsigned long long)before.level[c]);
                if (steady.level[c] && !outlives_a_step(&study, c))
                    fail_msg("%s: %llu bytes of %s are left", conserved[s],
                             (unsigned long long)steady.level[c], tsr_category_name(c));
            }
            assert_true(steady.level[TSR_CAT_SHARDED_PARAM] || study.job.settings->offload);
        }
        study_close(&study);
    }
}

/* ---- closed forms (tests/golden-memory/README.md) ---------------------------------------------
 */

/* Bytes asked for, rounded up to 512: blocks of the allocator may be larger. */
static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

struct requests {
    uint64_t level[TSR_N_CATEGORIES], peak[TSR_N_CATEGORIES]; /* peak: of the last iteration */
};

static void count_requests(const struct study *study, struct requests *out)
{
    size_t room = 1 << 20;
    uint64_t *size = calloc(room, sizeof *size); /* [buffer] */
    assert_non_null(size);
    memset(out, 0, sizeof *out);
    for (uint32_t it = 0; it < study->sim.n_iterations; it++) {
        const struct tsr_program *program = study->programs[0][it];
        memcpy(out->peak, out->level, sizeof out->peak);
        for (size_t i = 0; i < program->n_instrs; i++) {
            const struct tsr_instr *instr = &program->instrs[i];
            uint64_t *level = &out->level[instr->category], *peak = &out->peak[instr->category];
            if (instr->kind != TSR_ALLOC && instr->kind != TSR_FREE)
                continue;
            assert_true(instr->buffer < room);
            if (instr->kind == TSR_FREE) {
                *level -= size[instr->buffer];
                continue;
            }
            size[instr->buffer] = rounded(instr->bytes);
            *level += size[instr->buffer];
            *peak = *level > *peak ? *level : *peak;
        }
    }
    free(size);
}

/* Bytes of a group: W ranks share its parameters, n_p elements of parameter p on each. */
struct group_bytes {
    uint64_t shards;        /* sum over p of r(4 n_p) */
    uint64_t unsharded;     /* sum over p of r(e W n_p) */
    uint64_t gather;        /* r(e W n) */
    uint64_t scatter, grad; /* r(g W n), r(4 n) */
};

static struct group_bytes group_bytes(struct tsr_engine *engine, const struct tsr_group_info *group,
                                      uint64_t param_bytes, uint64_t reduce_bytes)
{
    uint32_t world = tsr_shard_world(engine);
    struct group_bytes out = {0};
    uint64_t n = 0;
    for (size_t i = 0; i < tsr_n_param_layouts(engine); i++) {
        struct tsr_param_layout layout = tsr_param_layout(engine, i);
        uint64_t n_p = 1;
        if (!layout.group || strcmp(layout.group, group->name) != 0)
            continue;
        for (int d = 0; d < layout.n_dims; d++)
            n_p *= layout.padded[d];
        n += n_p;
        out.shards += rounded(4 * n_p);
        out.unsharded += rounded(param_bytes * world * n_p);
    }
    assert_int_equal(n, group->shard_numel);
    out.gather = rounded(param_bytes * world * n);
    out.scatter = rounded(reduce_bytes * world * n);
    out.grad = rounded(4 * n);
    return out;
}

struct closed {
    const char *text;
    bool keeps; /* reshard_after_forward: false */
    unsigned param_bytes, reduce_bytes;
};

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A group per block and the root, which is gathered first and stays (section 7.2). */
static void check_closed(const struct closed *c)
{
    struct study study;
    struct requests got;
    struct group_bytes sum = {0}, root = {0}, block = {0};
    study_open(&study, c->text);
    struct tsr_engine *engine = study.emission.classes[0].engine;
    count_requests(&study, &got);
    for (size_t i = 0; i < tsr_n_groups(engine); i++) {
        struct tsr_group_info info = tsr_group_info(engine, i);
        struct group_bytes g = group_bytes(engine, &info, c->param_bytes, c->reduce_bytes);
        sum.shards += g.shards;
        sum.grad += g.grad;
        sum.unsharded += g.unsharded;
        *(i ? &block : &root) = g;
    }
    assert_int_equal(got.level[TSR_CAT_SHARDED_PARAM], sum.shards);
    assert_int_equal(got.level[TSR_CAT_SHARDED_GRAD], sum.grad);
    assert_int_equal(got.level[TSR_CAT_OPT_STATE], 2 * sum.shards);
    assert_int_equal(got.peak[TSR_CAT_UNSHARDED_PARAM],
                     c->keeps ? sum.unsharded : root.unsharded + block.unsharded);
    /* The result before this one lives until this one is copied out. */
    assert_int_equal(got.peak[TSR_CAT_ALL_GATHER],
                     block.gather + larger(root.gather, block.gather));
    assert_int_equal(got.peak[TSR_CAT_REDUCE_SCATTER], larger(root.scatter, block.scatter));
    study_close(&study);
}

static void closed_forms_of_the_groups(void **state)
{
    static const struct closed cases[] = {
        {"model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 8192\n", false, 2, 4},
        {"model: llama-3.1-8b\ncluster: dgx-h100-1\nreshard_after_forward: false\n", true, 2, 4},
        {"model: llama-3.1-70b\ncluster: dgx-h100-superpod-su\ncheckpoint: full\n", false, 2, 4},
        {"model: llama-3.1-8b\ncluster: dgx-h100-2\nmesh: {replicate: 2, shard: 8}\n", false, 2, 4},
        {"model: gpt2-xl\ncluster: dgx-a100-80g\nprecision: {reduce: bf16}\n", false, 2, 2},
        {"model: gpt2-xl\ncluster: dgx-a100-80g\nprecision: {param: none, reduce: none}\n", false,
         4, 4},
        {"model: qwen3-8b\ncluster: dgx-h100-1\n", false, 2, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_closed(&cases[i]);
}

/* DDP: every gradient has one place in one bucket. */
static void buckets_hold_each_gradient_once(void **state)
{
    struct study study;
    struct requests got;
    uint64_t bytes = 0;
    (void)state;
    study_open(&study, "model: gpt2-xl\ncluster: dgx-a100-80g\napi: ddp\nprecision: {param: none, "
                       "reduce: none}\n");
    struct tsr_engine *engine = study.emission.classes[0].engine;
    count_requests(&study, &got);
    for (size_t i = 0; i < tsr_ddp_n_buckets(engine); i++)
        bytes += rounded(tsr_ddp_bucket(engine, i).bytes);
    assert_int_equal(got.level[TSR_CAT_REDUCE_SCATTER], bytes);
    assert_true(bytes >= 4 * tsr_model_n_params(engine));
    assert_true(bytes < 4 * tsr_model_n_params(engine) + 512 * tsr_ddp_n_buckets(engine));
    study_close(&study);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(closed_forms_of_the_groups),
        cmocka_unit_test(buckets_hold_each_gradient_once),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
