/* test_rules_replicate.c: replicate on the FSDP machinery (R203-R206) and the bucketed one
 * (R206-R218).
 */
#include "tests/rules/rules_order.h"

enum { ALL = 3 * (8 + 96 + 12 + 96) + 128 + 8 + 128 };

static void start_replicate(struct rig *r, struct rig_setup setup)
{
    rig_open(r, setup);
    rig_replicate(r, "layers.0", NULL);
    rig_replicate(r, "layers.1", NULL);
    rig_replicate(r, "layers.2", NULL);
    rig_replicate(r, "", NULL);
    rig_start(r);
}

/* R203: an all-reduce per group and step, and nothing else on the wire. */
static void one_all_reduce_per_group(void **state)
{
    (void)state;
    struct rig r;
    start_replicate(&r, (struct rig_setup){.shards = 4});
    for (int i = 0; i < 2; i++) {
        rig_step(&r);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 4);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE, .stream = "all_reduce"), 4);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER), 0);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 0);
    }
    const struct tsr_instr *ar =
        rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE, .group = "layers.1"));
    assert_int_equal(ar->bytes, 4 * (8 + 96 + 12 + 96));
    assert_int_equal(ar->reduce_op, TSR_REDUCE_AVG);
    rig_no_race(&r);
    rig_close(&r);
}

/* R204: full copies beside the parameters from first use to post-backward. */
static void unsharded_between_forward_and_backward(void **state)
{
    (void)state;
    struct rig r;
    start_replicate(&r, (struct rig_setup){.shards = 4});
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_SHARDED_PARAM), 4 * ALL);
    for (int i = 0; i < 2; i++) {
        rig_begin(&r);
        assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_PARAM), 0);
        rig_forward(&r, 0);
        assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_PARAM), 4 * ALL);
        rig_backward(&r, 0);
        assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_PARAM), 0);
        rig_end(&r);
    }
    rig_close(&r);
}

/* R205: no reshard-after-forward; one mesh dimension. */
static void refused_for_replicate(void **state)
{
    (void)state;
    struct rig r;
    start_replicate(&r, (struct rig_setup){.shards = 2});
    assert_int_equal(tsr_set_reshard_after_forward(r.e, rig_module(&r, ""), true, false),
                     TSR_EASSERT);
    rig_close(&r);
    rig_open(&r, (struct rig_setup){.shards = 2, .replicas = 2});
    struct tsr_module *m = rig_module(&r, "");
    rig_refused(tsr_replicate(r.e, &m, 1, NULL), TSR_EVALUE, "replicate expects a 1D DeviceMesh");
    rig_close(&r);
}

/* ---- the bucketed one ------------------------------------------------------------------------ */

static void start_ddp(struct rig *r, struct rig_setup setup, const struct tsr_ddp_options *options)
{
    rig_open(r, setup);
    rig_ok(tsr_ddp(r->e, options));
    rig_start(r);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* "a b|c": buckets in index order. */
static void assert_buckets(struct rig *r, const char *want)
{
    char got[2048] = "";
    for (size_t i = 0; i < tsr_ddp_n_buckets(r->e); i++) {
        struct tsr_bucket_info b = tsr_ddp_bucket(r->e, i);
        for (size_t k = 0; k < b.n_params; k++) {
            size_t used = strlen(got);
            snprintf(got + used, sizeof got - used, "%s%s", k ? " " : i ? "|" : "", b.params[k]);
        }
    }
    assert_string_equal(got, want);
}

/* R206: rank 0's values, in one broadcast; the other replicate sends nothing at the start. */
static void initial_broadcast(void **state)
{
    (void)state;
    struct rig r;
    start_ddp(&r, (struct rig_setup){.shards = 4, .layers = 1}, NULL);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_BROADCAST), 1);
    assert_int_equal(rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_BROADCAST))->bytes,
                     4 * (8 + 96 + 12 + 96 + 128 + 8 + 128));
    rig_close(&r);
    start_replicate(&r, (struct rig_setup){.shards = 4});
    rig_step(&r);
    rig_close(&r);
    start_replicate(&r, (struct rig_setup){.shards = 4});
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_BROADCAST), 0);
    rig_close(&r);
}

/* R206: up to 250 MiB travel in a flat buffer, of which two exist at a time. */
static void broadcasts_are_coalesced(void **state)
{
    (void)state;
    struct rig r;
    uint32_t flat[3] = {0};
    uint64_t carried = 0, bytes[3] = {0};
    size_t n = 0;
    char order[64] = "";
    /* matrices of 58 and 77 MB, 0.88 GB of parameters: three chunks */
    start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 6, .width = 1200000}, NULL);
    for (size_t i = RIG_FIND(&r, 0, .kind = TSR_BROADCAST) - 1; i < r.now.n_instrs; i++) {
        const struct tsr_instr *instr = &r.now.instrs[i];
        bool is_flat = instr->category == TSR_CAT_TEMP;
        char word[3] = {0, 0, 0};
        if (instr->kind == TSR_BROADCAST) {
            assert_true(n == 3 || instr->bytes >= UINT64_C(250) << 20);
            assert_int_equal(bytes[n - 1], instr->bytes);
            carried += instr->bytes;
            word[0] = 'b';
        } else if (instr->kind == TSR_ALLOC && is_flat) {
            assert_true(n < 3);
            flat[n] = instr->buffer;
            bytes[n++] = instr->bytes;
            word[0] = '+';
        } else if (instr->kind == TSR_FREE && is_flat) {
            word[0] = '-';
            word[1] = instr->buffer == flat[0] ? '0' : instr->buffer == flat[1] ? '1' : '2';
        }
        strcat(order, word);
    }
    assert_string_equal(order, "+b+b-0+b-1-2");
    assert_int_equal(carried, 4 * (UINT64_C(1200000) * (16 + 6 * (1 + 12 + 12) + 1 + 16) + 6 * 12));
    rig_close(&r);
}

/* R206: DistributedDataParallel broadcasts buffers before a forward, unless the one before it was
 * not synced; replicate() gives it none. */
static void buffers_are_broadcast(void **state)
{
    (void)state;
    struct rig r;
    for (int has = 0; has < 2; has++) {
        const struct tsr_ddp_options o = {.broadcast_buffers = has};
        rig_llama(&r, (struct rig_setup){.shards = 2, .micro = 3});
        rig_ok(tsr_ddp(r.e, &o));
        rig_start(&r);
        for (unsigned i = 0; i < 2; i++) {
            rig_begin(&r);
            for (uint32_t m = 0; m < 3; m++) {
                rig_ok(tsr_ddp_set_sync(r.e, m == 2));
                rig_forward(&r, m);
                rig_backward(&r, m);
            }
            rig_end(&r);
            assert_int_equal(RIG_COUNT(&r, .kind = TSR_BROADCAST), has);
        }
        rig_close(&r);
    }
}

/* R210: with find_unused the outputs are cloned in every forward, in a static graph until a
 * backward has run. */
static void outputs_are_cloned(void **state)
{
    (void)state;
    static const struct {
        struct tsr_ddp_options options;
        size_t clones[2]; /* in the first two steps, of two micro-batches */
    } cases[] = {{{.bucket_cap_mb = 1}, {0, 0}},
                 {{.find_unused = true}, {2, 2}},
                 {{.static_graph = true}, {1, 0}},
                 {{.static_graph = true, .find_unused = true}, {1, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r;
        start_ddp(&r, (struct rig_setup){.shards = 2, .micro = 2}, &cases[i].options);
        for (int step = 0; step < 2; step++) {
            size_t n = 0;
            rig_step(&r);
            for (size_t k = 0; k < r.now.n_instrs; k++)
                n += r.now.instrs[k].work && !strcmp(r.now.instrs[k].work->name, "clone");
            assert_int_equal(n, cases[i].clones[step]);
        }
        rig_close(&r);
    }
}

/* R208, R209: one bucket at first; then by the order in which gradients became ready. R207: with a
 * limit of 400 bytes out (512) closes alone, norm (32) and down (384) reach it together, ... */
static void buckets_are_rebuilt(void **state)
{
    (void)state;
    struct rig r;
    const struct tsr_ddp_options o = {.bucket_cap_mb = mib(400)};
    start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 1}, &o);
    rig_step(&r);
    assert_buckets(&r, "emb.weight layers.0.norm.weight layers.0.up.weight layers.0.up.bias "
                       "layers.0.down.weight norm.weight out.weight");
    rig_step(&r);
    static const char *const rebuilt =
        "out.weight|norm.weight layers.0.down.weight|layers.0.up.bias layers.0.up.weight|"
        "layers.0.norm.weight emb.weight";
    assert_buckets(&r, rebuilt);
    rig_step(&r);
    assert_buckets(&r, rebuilt); /* once */
    assert_int_equal(tsr_ddp_bucket(r.e, 1).bytes, 32 + 384);
    rig_close(&r);
}

/* R207: at the limit exactly, the parameter that reaches it is the last. */
static void limit_is_reached_not_passed(void **state)
{
    (void)state;
    struct rig r;
    const struct tsr_ddp_options at = {.bucket_cap_mb = mib(416), .find_unused = true};
    const struct tsr_ddp_options above = {.bucket_cap_mb = mib(417), .find_unused = true};
    start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 1}, &at);
    rig_step(&r);
    /* definition order: emb 512 | norm 32 + up 384 = 416 | bias 48 + down 384 | norm 32 + out */
    assert_buckets(&r, "norm.weight out.weight|layers.0.up.bias layers.0.down.weight|"
                       "layers.0.norm.weight layers.0.up.weight|emb.weight");
    rig_close(&r);
    start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 1}, &above);
    rig_step(&r);
    assert_buckets(&r, "layers.0.down.weight norm.weight out.weight|layers.0.norm.weight "
                       "layers.0.up.weight layers.0.up.bias|emb.weight");
    rig_close(&r);
}

/* R208: static graphs are rebuilt one backward later. R210: with find_unused, never. */
static void when_buckets_are_rebuilt(void **state)
{
    (void)state;
    struct rig r;
    const struct tsr_ddp_options fixed = {.bucket_cap_mb = mib(400), .static_graph = true};
    const struct tsr_ddp_options unused = {.bucket_cap_mb = mib(400), .find_unused = true};
    start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 1}, &fixed);
    for (int i = 0; i < 3; i++) {
        rig_step(&r);
        assert_int_equal(tsr_ddp_n_buckets(r.e), i < 2 ? 1 : 4);
    }
    rig_close(&r);
    start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 1}, &unused);
    for (int i = 0; i < 3; i++) {
        rig_step(&r);
        /* in reverse of the definition order, inside a bucket forwards */
        assert_string_equal(tsr_ddp_bucket(r.e, 0).params[0], "norm.weight");
        assert_string_equal(tsr_ddp_bucket(r.e, tsr_ddp_n_buckets(r.e) - 1).params[0],
                            "emb.weight");
    }
    rig_close(&r);
}

/* R211, R212: buckets start in index order, each behind its last gradient, summed after every copy
 * into it was scaled; the optimizer waits for all. */
static void buckets_start_in_order(void **state)
{
    (void)state;
    struct rig r;
    const struct tsr_ddp_options o = {.bucket_cap_mb = mib(400)};
    start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 1}, &o);
    rig_step(&r);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 4);
    size_t opt = RIG_FIND(&r, 0, .kind = TSR_OP, .phase = "optimizer");
    for (int i = 0; i < 4; i++) {
        size_t ar = RIG_FIND(&r, i, .kind = TSR_ALL_REDUCE);
        assert_int_equal(rig_at(&r, ar)->bytes, tsr_ddp_bucket(r.e, (size_t)i).bytes);
        assert_int_equal(rig_at(&r, ar)->reduce_op, TSR_REDUCE_SUM);
        assert_true(rig_ordered(&r, ar, opt));
    }
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "grad_to_bucket"), 7);
    assert_true(RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE) <
                RIG_FIND(&r, 6, .kind = TSR_COPY, .work = "grad_to_bucket")); /* they overlap */
    rig_no_race(&r);
    rig_close(&r);
}

static void open_unused(struct rig *r, const struct tsr_ddp_options *options)
{
    static const char *const run[] = {"a", "c"};
    rig_abc(r, (struct rig_setup){.shards = 2}, run, 2);
    rig_ok(tsr_ddp(r->e, options));
    rig_start(r);
}

/* R213: unused everywhere: in its bucket, but without a gradient for the optimizer. */
static void unused_parameters(void **state)
{
    (void)state;
    struct rig r;
    const struct tsr_ddp_options o = {.find_unused = true};
    open_unused(&r, &o);
    for (int i = 0; i < 2; i++) {
        rig_step(&r);
        assert_int_equal(tsr_ddp_bucket(r.e, 0).numel, 3 * 64);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "bucket_to_grad"), 2);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 2); /* bucket, map of the used */
    }
    rig_close(&r);
}

/* R214: without find_unused the next forward is refused. */
static void unused_parameter_is_an_error(void **state)
{
    (void)state;
    struct rig r;
    open_unused(&r, NULL);
    rig_step(&r);
    rig_begin(&r);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_ERUNTIME,
                "finished reduction in the prior iteration");
    assert_non_null(strstr(tsr_error_text(), "b.weight"));
    rig_close(&r);
}

/* R208, R214: what a static graph does not use counts as ready. Its bucket is reduced like all, so
 * that ranks stay equal, and it comes last when buckets are rebuilt. */
static void unused_in_a_static_graph(void **state)
{
    (void)state;
    static const char *const buckets[] = {
        "a.weight b.weight c.weight", "a.weight b.weight c.weight", "c.weight|a.weight|b.weight"};
    for (int kind = 0; kind < 8; kind++) {
        bool view = kind & 1, skip = kind & 2;
        struct rig r;
        const struct tsr_ddp_options o = {.bucket_cap_mb = mib(256),
                                          .static_graph = true,
                                          .find_unused = kind & 4, /* changes nothing */
                                          .gradient_as_bucket_view = view,
                                          .skip_all_reduce_unused = skip};
        open_unused(&r, &o);
        for (int i = 0; i < 3; i++) {
            /* the bucket and the map of the used; the bucket; three buckets, or two */
            const size_t reduced[] = {2, 1, skip ? 2 : 3};
            rig_step(&r);
            assert_buckets(&r, buckets[i]);
            assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), reduced[i]);
            assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "grad_to_bucket"), 3);
            assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "bucket_to_grad"),
                             view ? 0 : 2);
            rig_no_race(&r);
        }
        rig_close(&r);
    }
}

/* R216: no-sync backwards send nothing, and the sum goes once. */
static void no_sync(void **state)
{
    (void)state;
    struct rig r;
    start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 1, .micro = 2}, NULL);
    for (int i = 0; i < 2; i++) {
        rig_begin(&r);
        rig_ok(tsr_ddp_set_sync(r.e, false));
        rig_forward(&r, 0);
        rig_backward(&r, 0);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 0);
        assert_int_equal(tsr_ddp_n_buckets(r.e), 0);
        rig_ok(tsr_ddp_set_sync(r.e, true));
        rig_forward(&r, 1);
        rig_backward(&r, 1);
        rig_end(&r);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 1);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "grad_to_bucket"), 7);
    }
    rig_close(&r);
}

/* R218: gradients are pieces of the buckets: no copy back, no memory of their own. */
static void gradients_as_views(void **state)
{
    (void)state;
    for (int view = 0; view < 2; view++) {
        struct rig r;
        const struct tsr_ddp_options o = {.gradient_as_bucket_view = view};
        start_ddp(&r, (struct rig_setup){.shards = 2, .layers = 1}, &o);
        rig_step(&r);
        rig_step(&r);
        const uint64_t grads = 4 * (8 + 96 + 12 + 96 + 128 + 8 + 128);
        uint64_t own = rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_GRAD) +
                       rig_level(&r, r.now.n_instrs, TSR_CAT_SHARDED_GRAD);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "bucket_to_grad"), view ? 0 : 7);
        assert_int_equal(own, view ? 0 : grads);
        rig_no_race(&r);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_all_reduce_per_group),
        cmocka_unit_test(unsharded_between_forward_and_backward),
        cmocka_unit_test(refused_for_replicate),
        cmocka_unit_test(initial_broadcast),
        cmocka_unit_test(broadcasts_are_coalesced),
        cmocka_unit_test(buffers_are_broadcast),
        cmocka_unit_test(outputs_are_cloned),
        cmocka_unit_test(buckets_are_rebuilt),
        cmocka_unit_test(limit_is_reached_not_passed),
        cmocka_unit_test(when_buckets_are_rebuilt),
        cmocka_unit_test(buckets_start_in_order),
        cmocka_unit_test(unused_parameters),
        cmocka_unit_test(unused_parameter_is_an_error),
        cmocka_unit_test(unused_in_a_static_graph),
        cmocka_unit_test(no_sync),
        cmocka_unit_test(gradients_as_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
