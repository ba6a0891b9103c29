/* test_rules_accumulation.c: micro-batches (R176-R184), CPU offload (R189-R193) and custom
 * collectives (R195-R199).
 */
#include "tests/rules/rules_order.h"

enum { S = 53, S2 = 106, ALL = 3 * (8 + 96 + 12 + 96) + 128 + 8 + 128 };

static void start(struct rig *r, struct rig_setup setup, const struct tsr_wrap_options *options)
{
    rig_ready(r, setup, options, options);
}

static uint64_t level(struct rig *r, enum tsr_category category)
{
    return rig_level(r, r->now.n_instrs, category);
}

static void sync(struct rig *r, bool value)
{
    rig_ok(tsr_set_requires_gradient_sync(r->e, rig_module(r, ""), value, true));
}

/* R176, R178, R179: no reduction; the sum is reduced once; zero_grad leaves it alone. */
static void no_sync_keeps_unsharded_gradients(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = 2}, NULL);
    sync(&r, false);
    for (int i = 0; i < 2; i++) {
        rig_step(&r); /* begins with zero_grad */
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 0);
        assert_int_equal(level(&r, TSR_CAT_UNSHARDED_GRAD), 4 * ALL);
        assert_int_equal(level(&r, TSR_CAT_SHARDED_GRAD), 0);
    }
    sync(&r, true);
    rig_begin(&r);
    assert_int_equal(level(&r, TSR_CAT_UNSHARDED_GRAD), 4 * ALL);
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    rig_end(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 4);
    assert_int_equal(level(&r, TSR_CAT_UNSHARDED_GRAD), 0);
    assert_int_equal(level(&r, TSR_CAT_SHARDED_GRAD), 4 * (3 * S2 + 132));
    rig_close(&r);
}

/* R177: kept in the reduce dtype where that is another; R239: that many bytes. */
static void no_sync_in_the_reduce_dtype(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}};
    start(&r, (struct rig_setup){.shards = 2}, &o);
    sync(&r, false);
    rig_step(&r);
    assert_int_equal(level(&r, TSR_CAT_UNSHARDED_ACC_GRAD), 4 * ALL);
    assert_int_equal(level(&r, TSR_CAT_UNSHARDED_GRAD), 0);
    assert_int_equal(rig_count(&r, "upcast_unsharded_grad dtype=f32"), 15);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "accumulate_unsharded_grad"), 15);
    assert_int_equal(level(&r, TSR_CAT_UNSHARDED_ACC_GRAD), 4 * ALL);
    sync(&r, true);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "accumulate_unsharded_grad"), 15);
    assert_int_equal(rig_count(&r, "reduce grad_dtype=f32"), 4);
    assert_int_equal(level(&r, TSR_CAT_UNSHARDED_ACC_GRAD), 0);
    rig_close(&r);
}

/* R180: one module without sync; the rest as ever. */
static void no_sync_of_one_module(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = 2}, NULL);
    rig_ok(tsr_set_requires_gradient_sync(r.e, rig_module(&r, "layers.1"), false, true));
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "backward", "RS"), "RS 2, RS 0, RS root");
    assert_int_equal(level(&r, TSR_CAT_UNSHARDED_GRAD), 4 * (8 + 96 + 12 + 96));
    rig_close(&r);
}

/* R181: parameters kept after backward are not gathered in the next forward. */
static void kept_after_backward(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = 2}, NULL);
    rig_ok(tsr_set_reshard_after_backward(r.e, rig_module(&r, "layers.1"), false, true));
    rig_step(&r);
    assert_int_equal(rig_count(&r, "post_backward g=layers.1 reshard=false"), 1);
    assert_int_equal(level(&r, TSR_CAT_UNSHARDED_PARAM), 4 * 2 * S2);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "forward", "AG"), "AG root, AG 0, AG 2");
    assert_string_equal(rig_trace(&r, "backward", "AG"), "AG 2, AG 1, AG 0");
    rig_close(&r);
}

static void counts(enum tsr_accumulate accumulate, uint32_t replicas, int n_rs, int n_ar)
{
    struct rig r;
    struct tsr_step_config config = {.batch = 2, .seq = 4, .n_micro = 3, .accumulate = accumulate};
    start(&r, (struct rig_setup){.shards = 2, .replicas = replicas, .micro = 3}, NULL);
    rig_ok(tsr_step_configure(r.e, &config));
    rig_forget(&r);
    rig_ok(tsr_step_run(r.e, 0));
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), n_rs);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), n_ar);
    rig_close(&r);
}

/* R182, R183: 3 micro-batches and 4 groups; sync off is all-reduce off, too. */
static void counts_of_three_micro_batches(void **state)
{
    (void)state;
    counts(TSR_ACCUM_REDUCE_EACH, 0, 12, 0);
    counts(TSR_ACCUM_NO_REDUCE, 0, 4, 0);
    counts(TSR_ACCUM_NO_REDUCE_NO_RESHARD, 0, 4, 0);
    counts(TSR_ACCUM_NO_REDUCE, 2, 4, 4);
    counts(TSR_ACCUM_NO_ALL_REDUCE, 2, 12, 4);
    counts(TSR_ACCUM_REDUCE_EACH, 2, 12, 12);
    struct rig r; /* R183: off by sync, on again by sync alone */
    start(&r, (struct rig_setup){.shards = 2, .replicas = 2}, NULL);
    rig_ok(tsr_set_requires_all_reduce(r.e, rig_module(&r, ""), false, true));
    sync(&r, true);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 4);
    rig_close(&r);
}

/* R184: forwards and backwards interleaved, the last backward finalises. */
static void one_forward_one_backward(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = 2, .micro = 3}, NULL);
    for (int i = 0; i < 2; i++) {
        rig_begin(&r);
        rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, ""), false));
        rig_forward(&r, 0);
        rig_forward(&r, 1);
        rig_backward(&r, 0);
        rig_forward(&r, 2);
        rig_backward(&r, 1);
        rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, ""), true));
        rig_backward(&r, 2);
        rig_end(&r);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 12);
        assert_int_equal(rig_count(&r, "sharded_grad"), 12);
        assert_int_equal(rig_count(&r, "finalize_backward"), 4);
        assert_int_equal(level(&r, TSR_CAT_REDUCE_SCATTER), 0);
        assert_int_equal(level(&r, TSR_CAT_UNSHARDED_PARAM), 0);
    }
    rig_no_race(&r);
    rig_close(&r);
}

/* ---- offload --------------------------------------------------------------------------------- */

static void run_offload(struct rig *r, enum tsr_offload offload, uint32_t micro)
{
    struct tsr_wrap_options o = {.offload = offload, .mp = {.param = TSR_BF16}};
    start(r, (struct rig_setup){.shards = 4, .micro = micro}, &o);
    rig_step(r);
}

/* R189, R190, R235: nothing of parameters or gradients is on the device between iterations, and the
 * optimizer is the host's. */
static void offload_leaves_the_device_empty(void **state)
{
    (void)state;
    for (int pinned = 0; pinned < 2; pinned++) {
        struct rig r;
        run_offload(&r, pinned ? TSR_OFFLOAD_CPU_PINNED : TSR_OFFLOAD_CPU, 1);
        assert_int_equal(level(&r, TSR_CAT_SHARDED_PARAM), 0);
        assert_int_equal(level(&r, TSR_CAT_SHARDED_GRAD), 0);
        assert_int_equal(level(&r, TSR_CAT_UNSHARDED_PARAM), 0);
        assert_int_equal(level(&r, TSR_CAT_UNSHARDED_GRAD), 0);
        assert_int_equal(level(&r, TSR_CAT_OPT_STATE), 0);
        uint8_t space = pinned ? TSR_SPACE_PINNED : TSR_SPACE_HOST;
        const struct tsr_instr *h2d =
            rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_COPY, .work = "h2d_shard"));
        const struct tsr_instr *d2h =
            rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_COPY, .work = "d2h_grad"));
        assert_int_equal(h2d->operands[0].space, space);
        assert_int_equal(d2h->operands[1].space, space);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .phase = "optimizer"), 0);
        assert_true(RIG_COUNT(&r, .kind = TSR_HOST_OP, .phase = "optimizer") > 0);
        for (size_t i = 0; i < r.now.n_instrs; i++)
            for (uint32_t k = 0; k < rig_at(&r, i)->n_operands; k++)
                if (rig_at(&r, i)->kind == TSR_HOST_OP)
                    assert_int_not_equal(rig_at(&r, i)->operands[k].space, TSR_SPACE_DEVICE);
        rig_no_race(&r);
        rig_close(&r);
    }
}

/* R191: the original dtype crosses the bus, on the copy-in stream, and is cast there. */
static void h2d_moves_the_original_dtype(void **state)
{
    (void)state;
    struct rig r;
    run_offload(&r, TSR_OFFLOAD_CPU_PINNED, 1);
    static const uint64_t bytes[] = {4 * 2, 4 * 24, 4 * 3, 4 * 24};
    for (int i = 0; i < 4; i++) {
        size_t h2d = RIG_FIND(&r, i, .kind = TSR_COPY, .work = "h2d_shard", .group = "layers.1",
                              .stream = "copy_in");
        assert_int_equal(rig_at(&r, h2d)->bytes, bytes[i]);
        size_t cast = RIG_FIND(&r, i, .kind = TSR_COPY, .work = "all_gather_cast",
                               .group = "layers.1", .stream = "copy_in");
        assert_int_equal(rig_at(&r, cast)->bytes, bytes[i] / 2);
    }
    rig_close(&r);
}

/* R192: fresh and pinned: the host goes on and waits at the end (W13); else it waits at once. */
static void d2h_blocks_or_not(void **state)
{
    (void)state;
    struct rig r;
    run_offload(&r, TSR_OFFLOAD_CPU_PINNED, 1);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_HOST_READ), 0);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_HOST_WAIT), 15);
    size_t wait = RIG_FIND(&r, 0, .kind = TSR_HOST_WAIT);
    assert_true(wait > r.events[rig_event(&r, "finalize_backward g=root", 0)].at - 1);
    for (int i = 0; i < 15; i++)
        assert_true(
            rig_ordered(&r, RIG_FIND(&r, i, .kind = TSR_COPY, .work = "d2h_grad"),
                        RIG_FIND(&r, 0, .kind = TSR_HOST_OP, .work = "foreach_mul_weight_decay")));
    rig_close(&r);
    run_offload(&r, TSR_OFFLOAD_CPU_PINNED, 2); /* the second finds a gradient */
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_HOST_READ), 15);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_HOST_WAIT), 15);
    rig_close(&r);
    run_offload(&r, TSR_OFFLOAD_CPU, 1);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_HOST_READ), 15);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_HOST_WAIT), 0);
    rig_close(&r);
}

/* R193: the second gradient is added on the host, element for element of what this rank owns. */
static void offloaded_gradients_add_up(void **state)
{
    (void)state;
    struct rig r, without;
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16}};
    run_offload(&r, TSR_OFFLOAD_CPU_PINNED, 2);
    start(&without, (struct rig_setup){.shards = 4, .micro = 2}, &o);
    rig_step(&without);
    int n_adds = 0;
    for (size_t i = 0; i < r.now.n_instrs; i++)
        n_adds += rig_at(&r, i)->kind == TSR_HOST_OP &&
                  strcmp(rig_at(&r, i)->work->name, "host_add") == 0;
    assert_int_equal(n_adds, 15);
    char want[1024];
    snprintf(want, sizeof want, "%s", rig_trace(&without, NULL, "AG W F RS"));
    assert_string_equal(rig_trace(&r, NULL, "AG W F RS"), want);
    rig_close(&without);
    rig_close(&r);
}

/* ---- custom collectives ---------------------------------------------------------------------- */

struct custom {
    uint64_t numel[16];
    tsr_dtype dtype[16];
    size_t n, n_runs;
    struct tsr_custom_call call;
};

static void told(struct tsr_engine *e, uint64_t numel, tsr_dtype dtype, void *user)
{
    struct custom *c = user;
    (void)e;
    if (c->n < 16) {
        c->numel[c->n] = numel;
        c->dtype[c->n] = dtype;
    }
    c->n++;
}

static void run_it(struct tsr_engine *e, struct tsr_tensor *out, struct tsr_tensor *in,
                   const struct tsr_custom_call *call, void *user)
{
    struct custom *c = user;
    c->n_runs++;
    c->call = *call;
    tsr_emit_device_copy(e, out, 0, in, 0, 8);
}

/* R195, R196: what is asked for: W x S once; W x S', then S'. */
static void custom_collectives(void **state)
{
    (void)state;
    struct rig r;
    struct custom ag = {0}, rs = {0};
    struct tsr_custom_comm gather = {.name = "mine", .run = run_it, .allocate = told, .user = &ag},
                           scatter = {.name = "mine", .run = run_it, .allocate = told, .user = &rs};
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}};
    rig_open(&r, (struct rig_setup){.shards = 4, .rank = 2});
    rig_wrap(&r, &o, &o);
    rig_ok(tsr_param_freeze(r.e, "layers.1.up.bias"));
    rig_ok(tsr_set_custom_all_gather(r.e, rig_module(&r, "layers.1"), &gather));
    rig_ok(tsr_set_custom_reduce_scatter(r.e, rig_module(&r, "layers.1"), &scatter));
    rig_start(&r);
    rig_step(&r);
    assert_int_equal(ag.n, 2);
    assert_int_equal(ag.n_runs, 2);
    assert_int_equal(ag.numel[0], 4 * S);
    assert_int_equal(ag.dtype[0], TSR_BF16);
    assert_int_equal(ag.call.size, 4);
    assert_int_equal(ag.call.index, 2);
    assert_int_equal(rs.n, 2);
    assert_int_equal(rs.numel[0], 4 * (S - 3));
    assert_int_equal(rs.numel[1], S - 3);
    assert_int_equal(rs.dtype[0], TSR_F32);
    assert_int_equal(rs.call.reduce_op, TSR_REDUCE_AVG);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .group = "layers.1"), 0);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER, .group = "layers.1"), 0);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "device_copy", .stream = "all_gather"),
                     2);
    assert_int_equal(
        RIG_COUNT(&r, .kind = TSR_COPY, .work = "device_copy", .stream = "reduce_scatter"), 1);
    rig_close(&r);
}

/* R197: not together with a custom collective; set afterwards, the custom one simply counts. */
static void process_group_allocation(void **state)
{
    (void)state;
    struct rig r;
    struct custom c = {0};
    struct tsr_custom_comm comm = {.name = "mine", .run = run_it, .allocate = told, .user = &c};
    start(&r, (struct rig_setup){.shards = 2}, NULL);
    rig_ok(tsr_set_custom_all_gather(r.e, rig_module(&r, "layers.0"), &comm));
    rig_refused(tsr_set_allocate_from_process_group(r.e, rig_module(&r, "layers.0"), true),
                TSR_EASSERT, "all gather comm is custom");
    rig_ok(tsr_set_custom_reduce_scatter(r.e, rig_module(&r, "layers.1"), &comm));
    rig_refused(tsr_set_allocate_from_process_group(r.e, rig_module(&r, "layers.1"), true),
                TSR_EASSERT, "reduce scatter comm is custom");
    rig_ok(tsr_set_allocate_from_process_group(r.e, rig_module(&r, "layers.2"), true));
    rig_ok(tsr_set_custom_all_gather(r.e, rig_module(&r, "layers.2"), &comm));
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .group = "layers.2"), 0);
    rig_close(&r);
}

/* R198: roots that share a context issue on the same streams. */
static void shared_context(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        struct rig r;
        rig_open(&r, (struct rig_setup){.shards = 2, .layers = 2});
        struct tsr_module *list[] = {rig_module(&r, "layers.0"), rig_module(&r, "layers.1")};
        rig_shard(&r, "layers.0", NULL);
        rig_shard(&r, "layers.1", NULL);
        if (shared)
            rig_ok(tsr_share_comm_ctx(r.e, list, 2));
        rig_start(&r);
        rig_step(&r);
        rig_step(&r);
        uint16_t a =
            rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_REDUCE_SCATTER, .group = "layers.0"))->stream;
        uint16_t b =
            rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_REDUCE_SCATTER, .group = "layers.1"))->stream;
        assert_int_equal(a == b, shared);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_sync_keeps_unsharded_gradients),
        cmocka_unit_test(no_sync_in_the_reduce_dtype),
        cmocka_unit_test(no_sync_of_one_module),
        cmocka_unit_test(kept_after_backward),
        cmocka_unit_test(counts_of_three_micro_batches),
        cmocka_unit_test(one_forward_one_backward),
        cmocka_unit_test(offload_leaves_the_device_empty),
        cmocka_unit_test(h2d_moves_the_original_dtype),
        cmocka_unit_test(d2h_blocks_or_not),
        cmocka_unit_test(offloaded_gradients_add_up),
        cmocka_unit_test(custom_collectives),
        cmocka_unit_test(process_group_allocation),
        cmocka_unit_test(shared_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
