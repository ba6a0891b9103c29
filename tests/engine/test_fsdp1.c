/* test_fsdp1.c: FSDP1's flat parameters: layout, what is refused, what optimizer and clipping
 * touch, memory with and without the rate limiter, a full device. Schedules:
 * tests/conformance/test_fsdp1.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/recording_testing.h"

enum { W = 1026, INNER = 4097, VOCAB = 64, BLOCKS = 6, RANKS = 4 };

struct options {
    bool ties, freezes, skips_last, no_limit, keeps, clips, post, root_only, decays, matrices;
    uint32_t micro, ranks;
    uint64_t device_bytes;
    tsr_dtype param;
};

static void add_model(struct recording *r, const struct options *o)
{
    static const char *const names[] = {"b0", "b1", "b2", "b3", "b4", "b5"};
    static const char *const run[] = {"embed", "b0", "b1", "b2", "b3", "b4", "head"};
    const struct tsr_tree_node block[] = {
        {.name = "up", .type = TSR_TREE_LINEAR, .in = W, .out = INNER, .bias = true},
        {.name = "act", .type = TSR_TREE_GELU},
        {.name = "down", .type = TSR_TREE_LINEAR, .in = INNER, .out = W, .bias = true}};
    struct tsr_tree_node nodes[BLOCKS + 2] = {
        {.name = "embed", .type = TSR_TREE_EMBEDDING, .in = VOCAB, .out = W}};
    for (size_t i = 0; i < BLOCKS; i++)
        nodes[i + 1] = (struct tsr_tree_node){
            .name = names[i], .type = TSR_TREE_SEQ, .n_children = 3, .children = block};
    nodes[BLOCKS + 1] =
        (struct tsr_tree_node){.name = "head", .type = TSR_TREE_LINEAR, .in = W, .out = VOCAB};
    struct tsr_tree_config config = {
        .root = {.type = TSR_TREE_SEQ, .n_children = BLOCKS + 2, .children = nodes},
        .tokens = VOCAB};
    if (o->skips_last) {
        config.root.n_run = 7;
        config.root.run = run;
    }
    ok(tsr_model_tree(r->e, &config));
    if (o->ties)
        ok(tsr_param_tie(r->e, "b1.up.weight", "b0.up.weight"));
    if (o->freezes)
        ok(tsr_param_freeze(r->e, "b2.up.bias"));
}

static tsr_status wrap(struct recording *r, const char *name, const struct options *o)
{
    struct tsr_fsdp1_options options = {.keep_after_forward = o->keeps,
                                        .mp = {.param = o->param},
                                        .backward_prefetch = o->post ? TSR_FSDP1_BACKWARD_POST
                                                                     : TSR_FSDP1_BACKWARD_PRE,
                                        .no_limit = o->no_limit};
    return tsr_fsdp1(r->e, tsr_module_find(r->e, name), &options);
}

static void make(struct recording *r, const struct options *o)
{
    struct tsr_engine_config config = {.mesh = {1, {o->ranks ? o->ranks : RANKS}, {"shard"}},
                                       .allocator = {.device_bytes = o->device_bytes}};
    recording_begin(r, config);
    add_model(r, o);
}

static tsr_status wrap_all(struct recording *r, const struct options *o)
{
    for (int i = 0; i < BLOCKS && !o->root_only; i++) {
        char name[4];
        snprintf(name, sizeof name, "b%d", i);
        TSR_TRY(wrap(r, name, o));
    }
    return wrap(r, "", o);
}

/* Wrapped, and three iterations; the last one is in r->step. */
static void run(struct recording *r, const struct options *o)
{
    make(r, o);
    ok(wrap_all(r, o));
    ok(tsr_step_configure(r->e, &(struct tsr_step_config){
                                    .batch = 8,
                                    .seq = 64,
                                    .n_micro = o->micro ? o->micro : 1,
                                    .clip = o->clips,
                                    .sgd_decay = o->decays,
                                    .decay_matrices_only = o->matrices,
                                    .optimizer = o->decays ? TSR_OPT_SGD : TSR_OPT_ADAMW_FOREACH}));
    ok(tsr_engine_init_params(r->e));
    for (uint32_t i = 0; i < 3; i++) {
        tsr_program_fini(&r->step);
        tsr_program_init(&r->step, tsr_engine_tables(r->e));
        r->recorder.into = &r->step;
        ok(tsr_step_run(r->e, i));
    }
}

/* ---- layout ---------------------------------------------------------------------------------- */

static uint64_t up_to(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Each parameter begins at 16 bytes; the whole is divided by the ranks. */
static void test_layout(void **state)
{
    (void)state;
    const uint64_t sizes[] = {W * INNER, INNER, INNER * W, W};
    const struct options dtypes[] = {{.ranks = 7}, {.ranks = 7, .param = TSR_BF16}};
    for (size_t k = 0; k < 2; k++) {
        struct recording r;
        uint64_t align = dtypes[k].param == TSR_BF16 ? 8 : 4, end = 0;
        for (size_t i = 0; i < 4; i++)
            end = up_to(end, align) + sizes[i];
        make(&r, &dtypes[k]);
        ok(wrap_all(&r, &dtypes[k]));
        assert_int_equal(tsr_n_groups(r.e), BLOCKS + 1);
        struct tsr_group_info info = tsr_group_info(r.e, 1);
        assert_string_equal(info.api, "fsdp1");
        assert_int_equal(info.n_params, 4);
        assert_string_equal(info.params[0], "b0.up.weight");
        assert_int_equal(info.all_gather_numel, up_to(end, 7));
        assert_int_equal(info.shard_numel, up_to(end, 7) / 7);
        /* one class of ranks, whatever the sizes */
        uint32_t class_of[7], representative[7], n_classes;
        ok(tsr_engine_rank_classes(r.e, class_of, representative, &n_classes));
        assert_int_equal(n_classes, 1);
        /* the views are the model's parameters, once */
        uint64_t total = 2 * VOCAB * W + BLOCKS * (sizes[0] + sizes[1] + sizes[2] + sizes[3]);
        assert_int_equal(tsr_model_n_params(r.e), total);
        recording_end(&r);
    }
}

static void refused(const struct options *o, const char *word)
{
    struct recording r;
    make(&r, o);
    tsr_status status = wrap_all(&r, o);
    assert_int_not_equal(status, TSR_OK);
    assert_non_null(strstr(tsr_error_text(), word));
    recording_end(&r);
}

static void test_refusals(void **state)
{
    (void)state;
    refused(&(struct options){.ties = true}, "tied");
    refused(&(struct options){.freezes = true}, "frozen");
    struct recording r;
    struct options o = {0};
    make(&r, &o);
    ok(wrap(&r, "b0", &o));
    assert_int_equal(wrap(&r, "b0", &o), TSR_EASSERT);
    assert_int_equal(wrap(&r, "b1", &(struct options){.post = true}), TSR_EVALUE);
    /* other APIs after it: a sibling, and the whole around it */
    const char *const others[] = {"b1", ""};
    for (size_t i = 0; i < 2; i++) {
        struct tsr_module *m = tsr_module_find(r.e, others[i]);
        assert_int_equal(tsr_fully_shard(r.e, &m, 1, NULL), TSR_EUNSUPPORTED);
        assert_int_equal(tsr_replicate(r.e, &m, 1, NULL), TSR_EUNSUPPORTED);
    }
    assert_int_equal(tsr_ddp(r.e, NULL), TSR_EUNSUPPORTED);
    ok(wrap(&r, "b2", &o)); /* none of them left anything behind */
    assert_int_equal(tsr_set_requires_gradient_sync(r.e, tsr_module_find(r.e, "b0"), true, false),
                     TSR_EATTRIBUTE);
    recording_end(&r);
    /* and before it: a sibling is not modelled, below it PyTorch fails, too */
    make(&r, &o);
    struct tsr_module *b1 = tsr_module_find(r.e, "b1");
    ok(tsr_fully_shard(r.e, &b1, 1, NULL));
    assert_int_equal(wrap(&r, "b2", &o), TSR_EUNSUPPORTED);
    assert_int_equal(wrap(&r, "", &o), TSR_ERUNTIME);
    assert_non_null(strstr(tsr_error_text(), "mixed torch.Tensor and DTensor"));
    recording_end(&r);
    make(&r, &o);
    assert_int_equal(tsr_fsdp1_set_sync(r.e, false), TSR_EATTRIBUTE);
    recording_end(&r);
    /* a tie inside one module is no hindrance */
    run(&r, &(struct options){.ties = true, .root_only = true});
    recording_end(&r);
}

/* ---- optimizer and clipping ------------------------------------------------------------------ */

static uint64_t shard_bytes(struct recording *r)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < tsr_n_groups(r->e); i++)
        bytes += 4 * tsr_group_info(r->e, i).shard_numel;
    return bytes;
}

/* Bytes of operands of a slot in kernels of a phase, of those with this name or of all. */
static uint64_t touched(const struct recording *r, int phase, const char *name, unsigned slot)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        if (in->kind != TSR_OP || in->origin.phase != phase || strcmp(in->work->name, name))
            continue;
        for (uint32_t k = 0; k < in->n_operands; k++)
            bytes += in->operands[k].slot == slot ? in->operands[k].bytes : 0;
    }
    return bytes;
}

static int count_ops(const struct recording *r, int phase, const char *name)
{
    int n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++)
        n += r->step.instrs[i].kind == TSR_OP && r->step.instrs[i].origin.phase == phase &&
             strcmp(r->step.instrs[i].work->name, name) == 0;
    return n;
}

/* Every byte of every shard is updated, clipped and counted in the norm, once. */
static void test_steps_whole_shards(void **state)
{
    (void)state;
    const uint32_t ranks[] = {2, 4, 64};
    for (size_t k = 0; k < 3; k++) {
        struct recording r;
        run(&r, &(struct options){.clips = true, .ranks = ranks[k]});
        uint64_t bytes = shard_bytes(&r);
        assert_int_equal(touched(&r, TSR_PHASE_OPTIMIZER, "foreach_addcdiv", 3), bytes);
        assert_int_equal(touched(&r, TSR_PHASE_OPTIMIZER, "foreach_lerp_exp_avg", 0), bytes);
        assert_int_equal(touched(&r, TSR_PHASE_OPTIMIZER, "foreach_lerp_exp_avg", 1), bytes);
        int norms = count_ops(&r, TSR_PHASE_CLIP, "norm_of_gradient");
        assert_int_equal(touched(&r, TSR_PHASE_CLIP, "norm_of_gradient", 0), bytes);
        assert_int_equal(touched(&r, TSR_PHASE_CLIP, "mul_clip", 0), bytes);
        /* a kernel per part that the fullest rank has: at most one per parameter */
        assert_int_equal(count_ops(&r, TSR_PHASE_CLIP, "mul_clip"), norms);
        assert_in_range(norms, BLOCKS + 1, 4 * BLOCKS + 2);
        if (ranks[k] == 2)
            assert_int_equal(norms, 3 * BLOCKS + 1);
        recording_end(&r);
    }
}

/* SGD's decay reads each decayed parameter once. Views of shards have one dimension, so "matrices"
 * decays none of them; without sharding the original parameters are seen. */
static void test_what_decays(void **state)
{
    (void)state;
    const uint64_t matrices = 2 * VOCAB * W + 2 * BLOCKS * W * INNER,
                   all = matrices + BLOCKS * (INNER + W);
    const struct {
        uint32_t ranks;
        bool matrices;
        uint64_t decayed;
    } cases[] = {{1, true, 4 * matrices}, {1, false, 4 * all}, {2, true, 0}};
    for (size_t k = 0; k < 3; k++) {
        struct recording r;
        run(&r, &(struct options){
                    .ranks = cases[k].ranks, .decays = true, .matrices = cases[k].matrices});
        assert_int_equal(touched(&r, TSR_PHASE_OPTIMIZER, "foreach_add_decay", 3),
                         cases[k].decayed);
        recording_end(&r);
    }
    struct recording r;
    run(&r, &(struct options){.ranks = 2, .decays = true});
    assert_int_equal(touched(&r, TSR_PHASE_OPTIMIZER, "foreach_add_decay", 3), shard_bytes(&r));
    recording_end(&r);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool is_allocated_before(const struct recording *r, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (r->step.instrs[k].kind == TSR_ALLOC &&
            r->step.instrs[k].buffer == r->step.instrs[i].buffer)
            return true;
    return false;
}

/* The most buffers of a category that live at once in the recorded step, those counted that lived
 * before it. */
static int most_alive(const struct recording *r, int category)
{
    int n = 0, most = 0, before = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        if (in->category != category)
            continue;
        before += in->kind == TSR_FREE && !is_allocated_before(r, i);
        n += (in->kind == TSR_ALLOC) - (in->kind == TSR_FREE);
        most = n > most ? n : most;
    }
    return before + most;
}

static uint64_t peak(const struct recording *r)
{
    return tsr_engine_memory(r->e).peak_allocated;
}

static void test_limiter_bounds_memory(void **state)
{
    (void)state;
    struct recording limited, unlimited, keeps;
    run(&limited, &(struct options){0});
    run(&unlimited, &(struct options){.no_limit = true});
    run(&keeps, &(struct options){.keeps = true});
    /* the root's, and of the blocks one in use, one being gathered, one that waits for its event */
    assert_in_range(most_alive(&limited, TSR_CAT_ALL_GATHER), 3, 4);
    assert_true(most_alive(&unlimited, TSR_CAT_ALL_GATHER) > BLOCKS);
    assert_true(peak(&unlimited) > peak(&limited));
    assert_true(most_alive(&keeps, TSR_CAT_ALL_GATHER) > BLOCKS);
    recording_end(&limited);
    recording_end(&unlimited);
    recording_end(&keeps);
}

static int count_kind(const struct recording *r, int kind)
{
    int n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++)
        n += r->step.instrs[i].kind == kind;
    return n;
}

/* Deferred blocks do not make a run fail that has room without them: the host waits. */
static void test_full_device(void **state)
{
    (void)state;
    struct recording r;
    run(&r, &(struct options){.no_limit = true});
    uint64_t unlimited = tsr_engine_memory(r.e).peak_reserved;
    int waits = count_kind(&r, TSR_HOST_WAIT);
    recording_end(&r);
    run(&r, &(struct options){0});
    uint64_t limited = tsr_engine_memory(r.e).peak_reserved;
    recording_end(&r);
    assert_true(limited < unlimited);
    run(&r, &(struct options){.no_limit = true, .device_bytes = limited});
    assert_true(tsr_engine_memory(r.e).peak_reserved <= limited);
    assert_true(count_kind(&r, TSR_HOST_WAIT) > waits);
    recording_end(&r);
}

/* Without the limiter the launch queue bounds how many blocks wait: those of 1024 instructions. */
static void test_launch_queue(void **state)
{
    (void)state;
    struct recording r;
    int n_alloc = 0, device = 0;
    run(&r, &(struct options){.no_limit = true, .micro = 16});
    for (size_t i = 0; i < r.step.n_instrs; i++) {
        const struct tsr_instr *in = &r.step.instrs[i];
        n_alloc += in->kind == TSR_ALLOC && in->category == TSR_CAT_ALL_GATHER;
        device += in->kind == TSR_OP || in->kind == TSR_COPY || in->kind == TSR_FILL ||
                  in->kind == TSR_RECORD || in->kind == TSR_WAIT ||
                  (in->kind >= TSR_ALL_GATHER && in->kind <= TSR_ALL_REDUCE);
    }
    double per_gather = (double)device / n_alloc;
    int most = most_alive(&r, TSR_CAT_ALL_GATHER);
    assert_true(n_alloc > 2 * most);
    assert_true(most < 1.4 * 1024 / per_gather);
    assert_true(most > 0.5 * 1024 / per_gather);
    recording_end(&r);
}

/* ---- lazy initialisation --------------------------------------------------------------------- */

/* Blocks of the first forward that are freed as soon as they are there. */
static size_t n_touched(tsr_dtype param)
{
    struct recording r;
    const struct options o = {.param = param};
    size_t n = 0;
    make(&r, &o);
    ok(wrap_all(&r, &o));
    ok(tsr_step_configure(r.e, &(struct tsr_step_config){.batch = 8, .seq = 64, .n_micro = 1}));
    ok(tsr_engine_init_params(r.e));
    tsr_program_fini(&r.step);
    tsr_program_init(&r.step, tsr_engine_tables(r.e));
    r.recorder.into = &r.step;
    ok(tsr_step_run(r.e, 0));
    for (size_t i = 0; i + 1 < r.step.n_instrs; i++) {
        const struct tsr_instr *a = &r.step.instrs[i], *b = a + 1;
        n += a->kind == TSR_ALLOC && a->category == TSR_CAT_TEMP && b->kind == TSR_FREE &&
             b->buffer == a->buffer;
    }
    recording_end(&r);
    return n;
}

/* F10a: a flat parameter takes the memory of its gathers and gives it back; with a cast that of the
 * cast shard and of gathers in full precision, too. */
static void test_lazy_init_leaves_segments(void **state)
{
    (void)state;
    assert_int_equal(n_touched(TSR_DTYPE_NONE), BLOCKS + 1);
    assert_int_equal(n_touched(TSR_BF16), 3 * (BLOCKS + 1));
}

/* ---- parameters that are not used ------------------------------------------------------------ */

static void test_unused_module(void **state)
{
    (void)state;
    struct recording r, all;
    run(&all, &(struct options){0});
    run(&r, &(struct options){.skips_last = true});
    assert_int_equal(count_kind(&all, TSR_ALL_GATHER), 2 * BLOCKS + 1);
    assert_int_equal(count_kind(&all, TSR_REDUCE_SCATTER), BLOCKS + 1);
    assert_int_equal(count_kind(&r, TSR_ALL_GATHER), 2 * (BLOCKS - 1) + 1);
    assert_int_equal(count_kind(&r, TSR_REDUCE_SCATTER), BLOCKS);
    recording_end(&r);
    recording_end(&all);
}

/* A module that is used, but whose parameters in part are not: zeros take the place of gradients.
 */
static void test_unused_parameters(void **state)
{
    (void)state;
    struct recording r;
    run(&r, &(struct options){.skips_last = true, .root_only = true});
    uint64_t unused = 0;
    for (size_t i = 0; i < r.step.n_instrs; i++)
        if (r.step.instrs[i].kind == TSR_FILL &&
            r.step.instrs[i].origin.phase == TSR_PHASE_BACKWARD)
            unused += r.step.instrs[i].bytes / 4;
    assert_true(unused >= 2 * W * INNER + W + INNER);
    assert_int_equal(count_kind(&r, TSR_REDUCE_SCATTER), 1);
    recording_end(&r);
}

/* One evaluation gathers and keeps the root's; the next step reduces as before. */
static void test_evaluation(void **state)
{
    (void)state;
    struct recording r;
    run(&r, &(struct options){0});
    tsr_program_fini(&r.step);
    tsr_program_init(&r.step, tsr_engine_tables(r.e));
    ok(tsr_eval_run(r.e));
    assert_int_equal(count_kind(&r, TSR_ALL_GATHER), BLOCKS + 1);
    assert_int_equal(count_kind(&r, TSR_REDUCE_SCATTER), 0);
    tsr_program_fini(&r.step);
    tsr_program_init(&r.step, tsr_engine_tables(r.e));
    ok(tsr_step_run(r.e, 3));
    assert_int_equal(count_kind(&r, TSR_ALL_GATHER), 2 * BLOCKS); /* the root's is there */
    assert_int_equal(count_kind(&r, TSR_REDUCE_SCATTER), BLOCKS + 1);
    recording_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_steps_whole_shards),
        cmocka_unit_test(test_what_decays),
        cmocka_unit_test(test_limiter_bounds_memory),
        cmocka_unit_test(test_full_device),
        cmocka_unit_test(test_launch_queue),
        cmocka_unit_test(test_lazy_init_leaves_segments),
        cmocka_unit_test(test_unused_module),
        cmocka_unit_test(test_unused_parameters),
        cmocka_unit_test(test_evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
