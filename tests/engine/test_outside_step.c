/* test_outside_step.c: what a run does besides its steps - building, loading, evaluating, saving -
 * by closed forms over what is allocated, on the device and on the host.
 *
 * f32 on 4 ranks unless said: a layer has 212 elements, the root 264, none padded; the largest
 * tensors have 128. There are 15 parameters, and AdamW keeps two states of each.
 */
#include "engine/graph/host_memory.h"
#include "tests/rules/rules_testing.h"

enum { LAYER = 4 * 212, ROOT = 4 * 264, TOTAL = 3 * LAYER + ROOT, LARGEST = 4 * 128, PARAMS = 15 };

static void start(struct rig *r, struct rig_setup setup, const struct tsr_wrap_options *o)
{
    if (!setup.shards)
        setup.shards = 4;
    rig_open(r, setup);
    rig_wrap(r, o, o);
    rig_start(r);
}

/* Most requested bytes of one or two categories at once since the last rig_forget(). */
static uint64_t most(struct rig *r, enum tsr_category a, enum tsr_category b)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i <= r->now.n_instrs; i++)
        bytes = tsr_max_u64(bytes, rig_level(r, i, a) + (a == b ? 0 : rig_level(r, i, b)));
    return bytes;
}

static uint64_t left(struct rig *r, enum tsr_category category)
{
    return rig_level(r, r->now.n_instrs, category);
}

static size_t count_kind(const struct rig *r, int kind)
{
    size_t n = 0;
    for (size_t i = 0; i < r->now.n_instrs; i++)
        n += r->now.instrs[i].kind == kind;
    return n;
}

/* The host's memory over everything that the rig has seen. */
static struct tsr_host_peak host_of(const struct rig *r)
{
    struct tsr_host_level level = {0};
    struct tsr_host_peak peak;
    rig_ok(tsr_host_replay(&level, &r->all, &peak));
    return peak;
}

/* ---- init ------------------------------------------------------------------------------------ */

static void meta_init_makes_shards_only(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, NULL);
    assert_true(most(&r, TSR_CAT_INIT, TSR_CAT_INIT) <= 4); /* scalars that come and go */
    assert_int_equal(left(&r, TSR_CAT_SHARDED_PARAM), TOTAL / 4);
    rig_close(&r);
}

/* The whole model, and the shards of the group that is cut first; then only shards. */
static void device_init_holds_the_model(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.init = TSR_INIT_DEVICE}, NULL);
    assert_int_equal(most(&r, TSR_CAT_INIT, TSR_CAT_SHARDED_PARAM), TOTAL + LAYER / 4);
    assert_int_equal(left(&r, TSR_CAT_INIT), 0);
    assert_int_equal(left(&r, TSR_CAT_SHARDED_PARAM), TOTAL / 4);
    assert_int_equal(host_of(&r).most.host, 0);
    rig_step(&r); /* it trains */
    assert_int_equal(count_kind(&r, TSR_ALL_GATHER), 4 + 3);
    rig_close(&r);
}

/* What nobody cuts is the module's own from the begin, however it came to the device. */
static void what_stays_whole_is_a_parameter(void **state)
{
    (void)state;
    static const enum tsr_init ways[] = {TSR_INIT_META, TSR_INIT_DEVICE, TSR_INIT_HOST};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct rig r;
        rig_open(&r, (struct rig_setup){.shards = 4, .init = ways[i]});
        rig_ok(tsr_ddp(r.e, NULL));
        rig_start(&r);
        assert_int_equal(left(&r, TSR_CAT_INIT), 0);
        assert_int_equal(left(&r, TSR_CAT_SHARDED_PARAM), TOTAL);
        rig_step(&r);
        assert_int_equal(left(&r, TSR_CAT_SHARDED_PARAM), TOTAL);
        rig_close(&r);
        if (ways[i] == TSR_INIT_META)
            continue;
        start(&r, (struct rig_setup){.init = ways[i]}, NULL); /* and what is cut is not */
        assert_true(most(&r, TSR_CAT_INIT, TSR_CAT_INIT) > LAYER);
        assert_int_equal(left(&r, TSR_CAT_INIT), 0);
        rig_close(&r);
    }
}

/* One group at a time comes to the device. */
static void host_init_brings_groups_over(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.init = TSR_INIT_HOST}, NULL);
    assert_int_equal(most(&r, TSR_CAT_INIT, TSR_CAT_INIT), ROOT);
    assert_int_equal(host_of(&r).most.host, TOTAL);
    assert_int_equal(host_of(&r).end.host, 0);
    rig_close(&r);
}

/* Shards that live on the host: over the device, pageable, then pinned in powers of two. */
static void offloaded_shards_are_pinned(void **state)
{
    (void)state;
    static const struct tsr_wrap_options pinned = {.offload = TSR_OFFLOAD_CPU_PINNED};
    struct rig r;
    start(&r, (struct rig_setup){.init = TSR_INIT_DEVICE}, &pinned);
    assert_int_equal(left(&r, TSR_CAT_SHARDED_PARAM), 0);
    /* 8, 96, 12 and 96 bytes of a layer; 128, 8 and 128 of the root */
    uint64_t blocks = 3 * (8 + 128 + 16 + 128) + 128 + 8 + 128;
    assert_int_equal(host_of(&r).end.pinned, blocks);
    assert_int_equal(host_of(&r).end.held, blocks);
    assert_int_equal(host_of(&r).end.host, 0);
    for (int i = 0; i < 3; i++)
        rig_step(&r);
    assert_int_equal(count_kind(&r, TSR_PIN), 0); /* the cache has them by now */
    assert_int_equal(host_of(&r).end.host, 2 * TOTAL / 4);
    /* What the process holds at a time is no more than both maxima together. */
    struct tsr_host_peak peak = host_of(&r);
    assert_int_equal(peak.end.host + peak.end.held, peak.process);
    assert_true(peak.process <= peak.most.host + peak.most.held);
    assert_true(peak.instr < r.all.n_instrs);
    rig_close(&r);
}

/* ---- load ------------------------------------------------------------------------------------ */

/* The optimizer's states come with the first step, or early when a run is resumed. */
static void optimizer_state_is_lazy_or_loaded(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, NULL);
    assert_int_equal(left(&r, TSR_CAT_OPT_STATE), 0);
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    assert_int_equal(left(&r, TSR_CAT_OPT_STATE), 0);
    rig_end(&r);
    assert_int_equal(left(&r, TSR_CAT_OPT_STATE), 2 * TOTAL / 4);
    rig_close(&r);
    start(&r, (struct rig_setup){0}, NULL);
    rig_forget(&r);
    rig_ok(tsr_load_run(r.e, TSR_LOAD_SHARDED, true));
    assert_int_equal(left(&r, TSR_CAT_OPT_STATE), 2 * TOTAL / 4);
    assert_int_equal(most(&r, TSR_CAT_SHARDED_GRAD, TSR_CAT_SHARDED_GRAD), TOTAL / 4);
    assert_int_equal(left(&r, TSR_CAT_SHARDED_GRAD), 0);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "OptState"), 0);
    rig_close(&r);
}

/* A shard at a time through pageable memory; nothing is sent. */
static void sharded_load_reads_shards(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, NULL);
    rig_forget(&r);
    rig_ok(tsr_load_run(r.e, TSR_LOAD_SHARDED, false));
    assert_int_equal(count_kind(&r, TSR_BROADCAST), 0);
    assert_int_equal(count_kind(&r, TSR_ALLOC), 0);
    assert_int_equal(count_kind(&r, TSR_COPY), PARAMS);
    assert_int_equal(host_of(&r).most.host, LARGEST / 4);
    rig_close(&r);
}

/* One full tensor at a time on every device; the file is on rank 0's host. */
static void full_load_broadcasts_tensors(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct rig r;
        start(&r, (struct rig_setup){.rank = rank}, NULL);
        rig_forget(&r);
        rig_ok(tsr_load_run(r.e, TSR_LOAD_FULL_RANK0, false));
        assert_int_equal(count_kind(&r, TSR_BROADCAST), PARAMS);
        assert_int_equal(most(&r, TSR_CAT_TEMP, TSR_CAT_TEMP), LARGEST);
        assert_int_equal(host_of(&r).most.host, rank == 0 ? TOTAL : 0);
        assert_int_equal(host_of(&r).end.host, 0);
        rig_forget(&r);
        rig_ok(tsr_load_run(r.e, TSR_LOAD_FULL_RANK0, true)); /* the states, too */
        assert_int_equal(count_kind(&r, TSR_BROADCAST), 3 * PARAMS);
        assert_int_equal(host_of(&r).most.host, rank == 0 ? 3 * TOTAL : 0);
        rig_close(&r);
    }
}

/* ---- eval ------------------------------------------------------------------------------------ */

/* A forward that keeps nothing for backward. The root stays gathered, as after any forward. */
static void eval_keeps_nothing(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, NULL);
    rig_step(&r);
    uint64_t in_step = most(&r, TSR_CAT_ACTIVATION, TSR_CAT_ACTIVATION);
    rig_forget(&r);
    rig_ok(tsr_eval_run(r.e));
    assert_true(most(&r, TSR_CAT_ACTIVATION, TSR_CAT_ACTIVATION) < in_step);
    assert_int_equal(left(&r, TSR_CAT_ACTIVATION), 0);
    assert_int_equal(left(&r, TSR_CAT_INPUTS), 0);
    assert_int_equal(left(&r, TSR_CAT_UNSHARDED_PARAM), ROOT);
    assert_int_equal(left(&r, TSR_CAT_SHARDED_GRAD), TOTAL / 4); /* of the step */
    assert_int_equal(count_kind(&r, TSR_REDUCE_SCATTER), 0);
    for (size_t i = 0; i < r.now.n_instrs; i++)
        assert_int_equal(r.now.instrs[i].origin.phase, TSR_PHASE_EVAL);
    rig_step(&r);
    assert_int_equal(most(&r, TSR_CAT_ACTIVATION, TSR_CAT_ACTIVATION), in_step);
    rig_close(&r);
}

/* ---- save ------------------------------------------------------------------------------------ */

/* Shards go through pinned memory, which stays; nothing is gathered. */
static void sharded_save_pins_once(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, NULL);
    rig_step(&r);
    uint64_t inputs = host_of(&r).end.held;
    rig_forget(&r);
    rig_ok(tsr_save_run(r.e, TSR_SAVE_SHARDED));
    assert_int_equal(count_kind(&r, TSR_ALL_GATHER), 0);
    assert_int_equal(count_kind(&r, TSR_ALLOC), 0);
    /* all of it is under way at once: it is less than the writer copies ahead */
    uint64_t blocks = 3 * (3 * (8 + 128 + 16 + 128) + 128 + 8 + 128);
    assert_int_equal(host_of(&r).most.pinned, blocks);
    assert_in_range(host_of(&r).end.held, blocks, blocks + inputs);
    assert_int_equal(host_of(&r).end.pinned, 0);
    rig_forget(&r);
    rig_ok(tsr_save_run(r.e, TSR_SAVE_SHARDED));
    assert_int_equal(count_kind(&r, TSR_PIN), 0);
    rig_close(&r);
}

/* Large shards: what is under way is bounded, whatever the model's size. */
static void sharded_save_copies_ahead(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.width = 1 << 18, .layers = 4}, NULL);
    rig_step(&r);
    rig_forget(&r);
    rig_ok(tsr_save_run(r.e, TSR_SAVE_SHARDED));
    const uint64_t shard = 3 << 20, all = 3 * 4 * 2 * shard; /* up and down of a layer */
    uint64_t held = host_of(&r).most.pinned;
    assert_true(held >= 10000000);
    assert_true(held <= 2 * 10000000 + 4 * (4 << 20));
    assert_true(held < all);
    assert_true(host_of(&r).end.held <= 2 * 10000000 + 4 * (4 << 20)); /* blocks serve again */
    rig_close(&r);
}

/* Saves one behind the other, with a step between them: each has the blocks of the one before. */
static void asynchronous_saves_pin_once(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, NULL);
    rig_step(&r);
    uint64_t before = host_of(&r).end.pinned;
    rig_ok(tsr_save_run(r.e, TSR_SAVE_SHARDED_ASYNC));
    rig_step(&r);
    uint64_t copies = host_of(&r).end.pinned - before, held = host_of(&r).end.held;
    assert_int_equal(copies, 3 * (3 * (8 + 128 + 16 + 128) + 128 + 8 + 128));
    for (int i = 0; i < 2; i++) {
        rig_forget(&r);
        rig_ok(tsr_save_run(r.e, TSR_SAVE_SHARDED_ASYNC));
        assert_int_equal(count_kind(&r, TSR_PIN), 0);
        rig_step(&r);
        assert_int_equal(host_of(&r).end.pinned, before + copies);
        assert_int_equal(host_of(&r).end.held, held);
    }
    rig_ok(tsr_save_end(r.e));
    assert_int_equal(host_of(&r).end.pinned, before);
    rig_close(&r);
}

/* Every rank gathers every tensor; rank 0 alone keeps them, on its host. */
static void full_save_fills_rank_0s_host(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct rig r;
        start(&r, (struct rig_setup){.rank = rank}, NULL);
        rig_step(&r);
        rig_forget(&r);
        rig_ok(tsr_save_run(r.e, TSR_SAVE_FULL_RANK0));
        assert_int_equal(count_kind(&r, TSR_ALL_GATHER), 3 * PARAMS);
        assert_int_equal(most(&r, TSR_CAT_ALL_GATHER, TSR_CAT_ALL_GATHER_INPUT), LARGEST);
        assert_int_equal(host_of(&r).most.host, rank == 0 ? 3 * TOTAL : 0);
        assert_int_equal(host_of(&r).end.host, 0);
        rig_close(&r);
    }
}

/* Without an offload every device holds the model and the states three times over. */
static void full_save_on_the_device_holds_all(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct rig r;
        start(&r, (struct rig_setup){.rank = rank}, NULL);
        rig_step(&r);
        rig_forget(&r);
        rig_ok(tsr_save_run(r.e, TSR_SAVE_FULL_DEVICE));
        assert_int_equal(most(&r, TSR_CAT_ALL_GATHER, TSR_CAT_ALL_GATHER), 3 * TOTAL);
        assert_int_equal(left(&r, TSR_CAT_ALL_GATHER), 0);
        assert_int_equal(host_of(&r).most.host, rank == 0 ? LARGEST : 0);
        rig_close(&r);
    }
}

/* Saving makes the groups sharded first. */
static void save_reshards(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, NULL);
    rig_ok(tsr_eval_run(r.e));
    rig_forget(&r);
    assert_int_equal(rig_level(&r, 0, TSR_CAT_UNSHARDED_PARAM), ROOT);
    rig_ok(tsr_save_run(r.e, TSR_SAVE_SHARDED));
    assert_int_equal(left(&r, TSR_CAT_UNSHARDED_PARAM), 0);
    rig_close(&r);
}

/* 5 ranks: 12 rows are 3 each for four ranks and none for the last, whose part is padded. */
static void uneven_shards_are_padded(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = 5, .rank = 4}, NULL);
    rig_step(&r);
    rig_forget(&r);
    rig_ok(tsr_save_run(r.e, TSR_SAVE_FULL_RANK0));
    size_t n = 0;
    for (size_t i = 0; i < r.now.n_instrs; i++) {
        const struct tsr_instr *instr = rig_at(&r, i);
        if (instr->kind != TSR_ALL_GATHER)
            continue;
        assert_int_equal(instr->operands[0].bytes * 5, instr->bytes);
        n += instr->bytes == 4 * 15; /* the bias of `up` */
    }
    assert_int_equal(n, 3 * 3); /* also of its states, though this rank has none */
    assert_true(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "All Gather Input") > 0);
    rig_close(&r);
}

/* ---- what does not work ---------------------------------------------------------------------- */

static void parameters_come_first(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 4});
    rig_wrap(&r, NULL, NULL);
    rig_refused(tsr_load_run(r.e, TSR_LOAD_SHARDED, true), TSR_EVALUE, "before a load");
    rig_refused(tsr_eval_run(r.e), TSR_EVALUE, "before a eval");
    rig_refused(tsr_save_run(r.e, TSR_SAVE_SHARDED), TSR_EVALUE, "before a save");
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meta_init_makes_shards_only),
        cmocka_unit_test(device_init_holds_the_model),
        cmocka_unit_test(what_stays_whole_is_a_parameter),
        cmocka_unit_test(host_init_brings_groups_over),
        cmocka_unit_test(offloaded_shards_are_pinned),
        cmocka_unit_test(optimizer_state_is_lazy_or_loaded),
        cmocka_unit_test(sharded_load_reads_shards),
        cmocka_unit_test(full_load_broadcasts_tensors),
        cmocka_unit_test(eval_keeps_nothing),
        cmocka_unit_test(sharded_save_pins_once),
        cmocka_unit_test(sharded_save_copies_ahead),
        cmocka_unit_test(asynchronous_saves_pin_once),
        cmocka_unit_test(full_save_fills_rank_0s_host),
        cmocka_unit_test(full_save_on_the_device_holds_all),
        cmocka_unit_test(save_reshards),
        cmocka_unit_test(uneven_shards_are_padded),
        cmocka_unit_test(parameters_come_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
