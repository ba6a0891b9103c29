/* test_rules_unshard.c: all-gather, copy-out and the life of their buffers (R90-R110, R255).
 *
 * Layers of S = 53 padded elements on 4 ranks (53 x 4 x 4 bytes gathered), root of 66.
 */
#include "tests/rules/rules_order.h"

enum { S = 53, W = 4 };

static const struct rig_setup four = {.shards = W};

static void start(struct rig *r, struct rig_setup setup, const struct tsr_wrap_options *layers,
                  const struct tsr_wrap_options *root)
{
    rig_ready(r, setup, layers, root);
}

static size_t at(struct rig *r, const char *event, int nth)
{
    return r->events[rig_event(r, event, nth)].at;
}

static uint64_t gathered(struct rig *r, size_t instr)
{
    return rig_level(r, instr, TSR_CAT_ALL_GATHER);
}

static const char *stream_of(struct rig *r, size_t instr)
{
    return tsr_engine_tables(r->e)->streams[rig_at(r, instr)->stream].name;
}

/* R90, R91: nothing is issued for what is there or on its way. */
static void no_second_gather(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL, NULL);
    rig_step(&r);
    struct tsr_module *m = rig_module(&r, "layers.1");
    rig_forget(&r);
    rig_ok(tsr_unshard(r.e, m, true));
    rig_ok(tsr_unshard(r.e, m, true));
    assert_int_equal(rig_count(&r, "unshard g=layers.1 res=pending"), 1);
    rig_ok(tsr_wait_unshard_handle(r.e, m));
    rig_ok(tsr_unshard(r.e, m, false));
    assert_int_equal(rig_count(&r, "unshard g=layers.1 res=already"), 1);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER), 1);
    rig_close(&r);
}

/* R92, R93: in place, W x S elements, packed in group order. */
static void packing(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = W, .rank = 2}, NULL, NULL);
    rig_step(&r);
    const struct tsr_instr *ag =
        rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_GATHER, .group = "layers.1"));
    assert_int_equal(ag->bytes, W * S * 4);
    assert_int_equal(ag->n_operands, 2);
    assert_int_equal(ag->operands[0].buffer, ag->operands[1].buffer);
    assert_int_equal(ag->operands[0].offset, 2 * S * 4);
    assert_int_equal(ag->operands[0].bytes, S * 4);
    assert_int_equal(ag->operands[1].bytes, W * S * 4);
    const struct tsr_instr *copy = rig_at(
        &r, RIG_FIND(&r, 0, .kind = TSR_COPY, .work = "all_gather_copy_in", .group = "layers.1"));
    static const uint64_t order[] = {2 * 4, 24 * 4, 3 * 4, 24 * 4}; /* norm, up, bias, down */
    assert_int_equal(copy->n_operands, 5);
    for (int i = 0; i < 4; i++)
        assert_int_equal(copy->operands[i].bytes, order[i]);
    assert_int_equal(copy->operands[4].buffer, ag->operands[0].buffer);
    assert_int_equal(copy->operands[4].offset, 2 * S * 4);
    rig_close(&r);
}

/* R94, R96, R97: own streams in forward and backward; W3 and W4 order the three steps. */
static void streams_of_a_gather(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL, NULL);
    rig_step(&r);
    for (int pass = 0; pass < 2; pass++) {
        size_t copy =
            RIG_FIND(&r, pass, .kind = TSR_COPY, .work = "all_gather_copy_in", .group = "layers.1");
        size_t ag = RIG_FIND(&r, pass, .kind = TSR_ALL_GATHER, .group = "layers.1");
        size_t out = RIG_FIND(&r, pass, .kind = TSR_OP, .work = "split_with_sizes_copy",
                              .group = "layers.1");
        assert_string_equal(stream_of(&r, copy), "copy_in");
        assert_string_equal(stream_of(&r, ag), "all_gather");
        assert_string_equal(stream_of(&r, out), "default");
        assert_true(rig_ordered(&r, copy, ag));
        assert_true(rig_ordered(&r, ag, out));
        assert_false(rig_ordered(&r, ag, copy + 1)); /* the streams do run apart */
    }
    rig_close(&r);
}

/* R95, R102, R199: async, and by hand, on the current stream; the buffer goes at once. */
static void async_and_manual_gathers(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL, NULL);
    rig_step(&r);
    rig_ok(tsr_set_unshard_async_op(r.e, rig_module(&r, ""), true));
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .stream = "default"), 7);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER), 7);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .stream = "copy_in"), 0);
    assert_int_equal(rig_count(&r, "wait_unshard defers=true"), 0);
    assert_int_equal(rig_count(&r, "wait_work stream=default"), 7);
    for (int i = 0; i < 3; i++) {
        size_t wait = rig_event(&r, "wait_unshard state=forward res=copy_out", i);
        size_t fwd = rig_event(&r, "register_post_backward", i);
        assert_true(wait < fwd);
        assert_int_equal(gathered(&r, r.events[fwd].at), 0);
    }
    rig_ok(tsr_set_unshard_async_op(r.e, rig_module(&r, ""), false));
    rig_forget(&r);
    rig_ok(tsr_unshard(r.e, rig_module(&r, "layers.0"), false));
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .stream = "default"), 1);
    assert_int_equal(gathered(&r, r.now.n_instrs), 0);
    rig_close(&r);
}

/* R98, R100, R255: module i's buffer lives through the copy-out of i+1, and no longer; at most two
 * exist. R99: both gather streams wait for its copy-out first. */
static void forward_buffers_are_deferred(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL, NULL);
    rig_step(&r);
    rig_step(&r);
    size_t first =
        RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "All Gather", .group = "layers.0");
    size_t copy0 =
        RIG_FIND(&r, 0, .kind = TSR_OP, .work = "split_with_sizes_copy", .group = "layers.0");
    size_t copy1 =
        RIG_FIND(&r, 0, .kind = TSR_OP, .work = "split_with_sizes_copy", .group = "layers.1");
    size_t freed = rig_freed(&r, rig_at(&r, first)->buffer, first);
    size_t computes = at(&r, "fwd m=layers.1.norm", 0);
    assert_true(copy1 < freed && freed < computes);
    assert_true(rig_ordered(
        &r, copy0,
        RIG_FIND(&r, 0, .kind = TSR_COPY, .work = "all_gather_copy_in", .group = "layers.2")));
    assert_true(
        rig_ordered(&r, copy0, RIG_FIND(&r, 0, .kind = TSR_ALL_GATHER, .group = "layers.2")));
    for (size_t i = 0; i < r.now.n_instrs; i++)
        if (rig_at(&r, i)->origin.phase == TSR_PHASE_FORWARD)
            assert_true(gathered(&r, i) <= W * 4 * (66 + S));
    assert_int_equal(gathered(&r, computes), W * 4 * S);
    assert_int_equal(rig_count(&r, "wait_unshard g=layers.1 frees=layers.0 defers=true"), 1);
    rig_close(&r);
}

/* R101: in backward it goes right after its copy-out, before the next one is asked for. */
static void backward_buffers_go_at_once(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL, NULL);
    rig_step(&r);
    size_t wait = rig_event(&r, "wait_unshard g=layers.1 state=pre_backward res=copy_out", 0);
    assert_true(rig_matches(r.events[wait].text, "wait_unshard defers=false frees=null"));
    size_t next = rig_event(&r, "backward_prefetch g=layers.1", 0);
    assert_int_equal(gathered(&r, r.events[next].at), 0);
    size_t copy =
        RIG_FIND(&r, 1, .kind = TSR_OP, .work = "split_with_sizes_copy", .group = "layers.1");
    size_t in =
        RIG_FIND(&r, 1, .kind = TSR_COPY, .work = "all_gather_copy_in", .group = "layers.0");
    assert_true(rig_ordered(&r, copy, in)); /* W7 */
    rig_close(&r);
}

/* R103, R104: the last one goes when the root's post-forward returns, with or without gradients. */
static void last_buffer_goes_with_the_forward(void **state)
{
    (void)state;
    for (int no_grad = 0; no_grad < 2; no_grad++) {
        struct rig r;
        start(&r, four, NULL, NULL);
        rig_begin(&r);
        rig_ok(tsr_step_forward(r.e, 0, NULL, no_grad));
        size_t end = rig_event(&r, "root_post_forward g=root", 0);
        assert_int_equal(gathered(&r, at(&r, "post_forward g=root", 0)), W * 4 * S);
        assert_int_equal(gathered(&r, r.events[end].at), W * 4 * S); /* a variable holds it */
        assert_int_equal(gathered(&r, r.events[end].at + 1), 0);
        /* W8: two waits just before */
        assert_true(rig_matches(r.events[end - 2].text, "wait_event stream=copy_in"));
        assert_true(rig_matches(r.events[end - 1].text, "wait_event stream=all_gather"));
        rig_close(&r);
    }
}

/* R105, R253: the handle stays: a gradient that was kept before a reshard is summed up with the one
 * that comes after the next unshard. R234: its storage is gone in between. */
static void unsharded_handle_is_stable(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = W, .micro = 2}, NULL, NULL);
    rig_begin(&r);
    rig_ok(tsr_set_requires_gradient_sync(r.e, rig_module(&r, ""), false, true));
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_PARAM), 0);
    const uint64_t elements = 3 * (8 + 96 + 12 + 96) + 128 + 8 + 128;
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_GRAD), 4 * elements);
    rig_ok(tsr_set_requires_gradient_sync(r.e, rig_module(&r, ""), true, true));
    rig_forward(&r, 1);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_GRAD), 4 * elements);
    rig_backward(&r, 1);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_GRAD), 0);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 4);
    rig_close(&r);
}

/* R106, R254: one rank: a copy of its own, no collective, no gather buffer. */
static void one_rank(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = 1}, NULL, NULL);
    rig_step(&r);
    for (int kind = TSR_ALL_GATHER; kind <= TSR_RECV; kind++)
        assert_int_equal(RIG_COUNT(&r, .kind = kind), 0);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "All Gather"), 0);
    assert_int_equal(rig_level(&r, at(&r, "fwd m=layers.1.norm", 0), TSR_CAT_UNSHARDED_PARAM),
                     4 * (8 + 96 + 12 + 96 + 128 + 8 + 128));
    rig_close(&r);
}

/* R107: freezing between iterations shows at the next unshard. */
static void requires_grad_follows(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL, NULL);
    rig_step(&r);
    rig_ok(tsr_param_freeze(r.e, "layers.1.up.*"));
    rig_step(&r);
    assert_int_equal(
        rig_count(&r, "reduce g=layers.1 params=[layers.1.norm.weight,layers.1.down.weight]"), 1);
    rig_close(&r);
}

/* R108: a handle may be waited for twice, or not at all. */
static void handles(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL, NULL);
    rig_step(&r);
    struct tsr_module *m = rig_module(&r, "layers.0");
    rig_forget(&r);
    rig_ok(tsr_unshard(r.e, m, true));
    rig_ok(tsr_wait_unshard_handle(r.e, m));
    size_t n = r.now.n_instrs;
    rig_ok(tsr_wait_unshard_handle(r.e, m));
    assert_int_equal(r.now.n_instrs, n);
    rig_step(&r);
    rig_forget(&r);
    rig_ok(tsr_unshard(r.e, m, true));
    assert_int_equal(rig_count(&r, "wait_unshard"), 0);
    rig_begin(&r);
    rig_forward(&r, 0);
    assert_int_equal(rig_count(&r, "unshard g=layers.0 res=pending"), 1);
    assert_int_equal(rig_count(&r, "wait_unshard g=layers.0 state=forward res=copy_out"), 1);
    rig_backward(&r, 0);
    rig_end(&r);
    rig_no_race(&r);
    rig_close(&r);
}

/* R109, R110: the smaller group: W2 behind the slice's copy, and the slice goes after its use. */
static void small_group_gather(void **state)
{
    (void)state;
    const struct tsr_wrap_options two = {.reshard = TSR_RESHARD_INT, .reshard_int = 2};
    struct rig r;
    start(&r, four, &two, NULL);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .comm = "post_forward_2"), 3);
    size_t slice =
        RIG_FIND(&r, 3, .kind = TSR_COPY, .work = "post_forward_slice", .group = "layers.1");
    size_t in =
        RIG_FIND(&r, 1, .kind = TSR_COPY, .work = "all_gather_copy_in", .group = "layers.1");
    size_t ag = RIG_FIND(&r, 1, .kind = TSR_ALL_GATHER, .group = "layers.1");
    assert_true(rig_ordered(&r, slice, in));
    assert_int_equal(rig_at(&r, ag)->bytes, W * S * 4);
    size_t unshard = rig_event(&r, "unshard g=layers.1 state=pre_backward res=issue", 0);
    assert_true(rig_matches(r.events[unshard + 1].text, "wait_event stream=copy_in"));
    assert_true(rig_matches(r.events[unshard + 2].text, "wait_event stream=all_gather"));
    /* all three keep slices after the forward: half of 4 x 53 elements each */
    assert_int_equal(rig_level(&r, at(&r, "root_post_forward", 0), TSR_CAT_POST_FORWARD_SHARD),
                     3 * 2 * S * 4);
    size_t copy =
        RIG_FIND(&r, 1, .kind = TSR_OP, .work = "split_with_sizes_copy", .group = "layers.1");
    size_t grad = at(&r, "backward_prefetch g=layers.1", 0);
    assert_int_equal(rig_level(&r, copy, TSR_CAT_POST_FORWARD_SHARD), 2 * 2 * S * 4);
    assert_int_equal(rig_level(&r, grad, TSR_CAT_POST_FORWARD_SHARD), 2 * S * 4);
    rig_no_race(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_second_gather),
        cmocka_unit_test(packing),
        cmocka_unit_test(streams_of_a_gather),
        cmocka_unit_test(async_and_manual_gathers),
        cmocka_unit_test(forward_buffers_are_deferred),
        cmocka_unit_test(backward_buffers_go_at_once),
        cmocka_unit_test(last_buffer_goes_with_the_forward),
        cmocka_unit_test(unsharded_handle_is_stable),
        cmocka_unit_test(one_rank),
        cmocka_unit_test(requires_grad_follows),
        cmocka_unit_test(handles),
        cmocka_unit_test(small_group_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
