/* test_rules_memory.c: the closed forms of section 7.2, exactly, from what is allocated and freed
 * (R231-R240), and one event per action (R256).
 *
 * Everything is f32 on 4 ranks; a layer has W x S = 212 elements without padding, so one unit of
 * A, U, g and I is 848 bytes. The root has 264.
 */
#include "tests/rules/rules_testing.h"

enum { UNIT = 4 * 212, ROOT = 4 * 264, OUT_GRADS = 4 * (128 + 8) };

static const struct tsr_wrap_options yes = {.reshard = TSR_RESHARD_TRUE};
static const struct tsr_wrap_options no = {.reshard = TSR_RESHARD_FALSE};

static void start(struct rig *r, struct rig_setup setup, const struct tsr_wrap_options *o)
{
    setup.shards = 4;
    setup.layers = 6;
    rig_ready(r, setup, o, o);
}

static size_t at(struct rig *r, const char *event)
{
    return r->events[rig_event(r, event, 0)].at;
}

static uint64_t extra(struct rig *r, size_t instr)
{
    return rig_level(r, instr, TSR_CAT_ALL_GATHER) + rig_level(r, instr, TSR_CAT_UNSHARDED_PARAM) +
           rig_level(r, instr, TSR_CAT_UNSHARDED_GRAD) +
           rig_level(r, instr, TSR_CAT_REDUCE_SCATTER);
}

static uint64_t highest(struct rig *r, size_t from, size_t to)
{
    uint64_t most = 0;
    for (size_t i = from; i <= to; i++)
        most = tsr_max_u64(most, extra(r, i));
    return most;
}

/* R231: A(i-1) + A(i) + U(i); in 2.15 two units; 2 + m with m prefetched. */
static void forward_peak(void **state)
{
    (void)state;
    for (int m = 0; m <= 2; m++)
        for (int version = TSR_TORCH_2_11; version <= TSR_TORCH_2_15; version++) {
            struct rig r;
            char name[32];
            rig_open(&r, (struct rig_setup){
                             .shards = 4, .layers = 6, .version = (enum tsr_version)version});
            rig_wrap(&r, &yes, NULL);
            for (int i = 0; i < 6; i++) {
                struct tsr_module *next[2];
                size_t n = 0;
                for (int k = i + 1; k <= i + m && k < 6; k++) {
                    snprintf(name, sizeof name, "layers.%d", k);
                    next[n++] = rig_module(&r, name);
                }
                snprintf(name, sizeof name, "layers.%d", i);
                rig_ok(tsr_set_forward_prefetch(r.e, rig_module(&r, name), next, n));
            }
            rig_start(&r);
            rig_step(&r);
            uint64_t most =
                highest(&r, at(&r, "fwd m=layers.1.norm"), at(&r, "root_post_forward g=root"));
            /* 2.11: the copy-out is the peak: what is deferred, its own, and what is on its way */
            uint64_t units = version == TSR_TORCH_2_11 || m > 0 ? (m > 1 ? 4 : 3) : 2;
            assert_int_equal(most, ROOT + units * UNIT);
            assert_int_equal(extra(&r, at(&r, "fwd m=layers.4.down")), ROOT + (2 + (m > 0)) * UNIT);
            rig_close(&r);
        }
}

/* R231, the other options: all parameters stay; the last copy-out has two gather buffers. */
static void forward_peak_without_reshard(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, &no);
    rig_step(&r);
    assert_int_equal(highest(&r, at(&r, "fwd m=emb"), at(&r, "root_post_forward g=root")),
                     ROOT + (6 + 2) * UNIT);
    rig_close(&r);
}

/* R232: U(i) + A(i-1) + g(i) + I(i+1) at the end of module i's backward, and nowhere more. */
static void backward_peak(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, &yes);
    rig_step(&r);
    size_t end = at(&r, "post_backward g=layers.3");
    assert_int_equal(rig_level(&r, end, TSR_CAT_UNSHARDED_PARAM), ROOT + UNIT);
    assert_int_equal(rig_level(&r, end, TSR_CAT_ALL_GATHER), UNIT);
    assert_int_equal(rig_level(&r, end, TSR_CAT_UNSHARDED_GRAD), UNIT + OUT_GRADS);
    assert_int_equal(rig_level(&r, end, TSR_CAT_REDUCE_SCATTER), UNIT);
    assert_int_equal(highest(&r, at(&r, "bwd m=layers.4.norm"), at(&r, "bwd m=layers.1.norm")),
                     ROOT + OUT_GRADS + 4 * UNIT);
    /* sharded gradients of 5 and 4 so far: half of the unit that a rank of 4 has in two groups */
    assert_int_equal(rig_level(&r, end, TSR_CAT_SHARDED_GRAD), 2 * UNIT / 4);
    rig_close(&r);
    start(&r, (struct rig_setup){0}, &no);
    rig_step(&r);
    end = at(&r, "post_backward g=layers.3"); /* U of 0 to 3 and the root */
    assert_int_equal(extra(&r, end), ROOT + 4 * UNIT + UNIT + OUT_GRADS + UNIT);
    rig_close(&r);
}

/* R233, R234: between iterations only parameters and optimizer states are left. */
static void what_stays(void **state)
{
    (void)state;
    struct rig r;
    const uint64_t shards = 4 * (6 * 53 + 66);
    start(&r, (struct rig_setup){0}, NULL);
    rig_step(&r);
    rig_begin(&r);
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        uint64_t left = rig_level(&r, r.now.n_instrs, (enum tsr_category)c);
        if (c == TSR_CAT_SHARDED_PARAM)
            assert_int_equal(left, shards);
        else if (c == TSR_CAT_OPT_STATE)
            assert_int_equal(left, 2 * shards);
        else if (c != TSR_CAT_INPUTS && c != TSR_CAT_WORKSPACE)
            assert_int_equal(left, 0);
    }
    rig_close(&r);
}

/* R236: blocks are multiples of 512 bytes, and no larger than they need to be here. R237: gather
 * outputs and reduction inputs have categories of their own. */
static void blocks_and_categories(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){0}, NULL);
    rig_step(&r);
    for (size_t i = 0; i < r.now.n_instrs; i++)
        if (rig_at(&r, i)->kind == TSR_ALLOC && rig_at(&r, i)->bytes < 100000)
            assert_int_equal(rig_at(&r, i)->block_bytes, tsr_round_up(rig_at(&r, i)->bytes, 512));
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "All Gather"), 7 + 6);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "Reduce Scatter"), 7);
    for (int i = 0; i < 7; i++) {
        const struct tsr_instr *rs = rig_at(&r, RIG_FIND(&r, i, .kind = TSR_REDUCE_SCATTER));
        const struct tsr_instr *in =
            rig_at(&r, RIG_FIND(&r, i, .kind = TSR_ALLOC, .category = "Reduce Scatter"));
        assert_int_equal(rs->operands[0].buffer, in->buffer);
    }
    rig_close(&r);
}

/* R238: the replay of a program is what the allocator counted. */
static void replay_agrees_with_the_allocator(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.floats = true}, NULL);
    rig_step(&r);
    rig_step(&r);
    assert_int_equal(r.peak.end_allocated, tsr_engine_memory(r.e).allocated);
    assert_true(r.peak.allocated <= tsr_engine_memory(r.e).peak_allocated);
    assert_true(r.peak.allocated * 10 >= tsr_engine_memory(r.e).peak_allocated * 9);
    rig_close(&r);
}

/* R239, R240: what accumulation keeps. */
static void accumulation_keeps(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.micro = 2}, NULL);
    rig_ok(tsr_set_requires_gradient_sync(r.e, rig_module(&r, ""), false, true));
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_GRAD), 6 * UNIT + ROOT);
    rig_close(&r);
    start(&r, (struct rig_setup){.micro = 2, .replicas = 2}, NULL);
    rig_ok(tsr_set_requires_all_reduce(r.e, rig_module(&r, ""), false, true));
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_PARTIAL_REDUCE_OUTPUT),
                     (6 * UNIT + ROOT) / 4);
    rig_close(&r);
}

/* R256: one event per action, with the group's name. */
static void one_event_per_action(void **state)
{
    (void)state;
    static const struct {
        const char *event;
        int layers, root; /* times in one iteration */
    } actions[] = {{"pre_forward", 1, 1},   {"all_gather", 2, 1},   {"wait_unshard", 2, 2},
                   {"post_forward", 1, 1},  {"pre_backward", 1, 1}, {"post_backward", 1, 1},
                   {"reduce", 1, 1},        {"sharded_grad", 1, 1}, {"root_pre_forward", 0, 1},
                   {"final_callback", 0, 1}};
    struct rig r;
    char query[64];
    start(&r, (struct rig_setup){0}, NULL);
    rig_step(&r);
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        snprintf(query, sizeof query, "%s g=root", actions[i].event);
        assert_int_equal(rig_count(&r, query), actions[i].root);
        for (int k = 0; k < 6; k++) {
            snprintf(query, sizeof query, "%s g=layers.%d", actions[i].event, k);
            assert_int_equal(rig_count(&r, query), actions[i].layers);
        }
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_peak),          cmocka_unit_test(forward_peak_without_reshard),
        cmocka_unit_test(backward_peak),         cmocka_unit_test(what_stays),
        cmocka_unit_test(blocks_and_categories), cmocka_unit_test(replay_agrees_with_the_allocator),
        cmocka_unit_test(accumulation_keeps),    cmocka_unit_test(one_event_per_action),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
