/* test_rules_streams.c: the waits of section 1.5 (W1-W15): without any of them some buffer would be
 * used by two streams at once. Each test runs a configuration for a few iterations and asks for a
 * race; the single waits are in the tests of their family.
 */
#include "tests/rules/rules_order.h"

static const struct tsr_wrap_options bf16 = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}};

static void run(struct rig_setup setup, const struct tsr_wrap_options *layers,
                const struct tsr_wrap_options *root)
{
    struct rig r;
    rig_ready(&r, setup, layers, root);
    for (int i = 0; i < 3; i++)
        rig_step(&r);
    rig_no_race(&r);
    rig_close(&r);
}

static void defaults_have_no_race(void **state)
{
    (void)state;
    run((struct rig_setup){.shards = 4}, NULL, NULL);
    run((struct rig_setup){.shards = 4, .layers = 6}, &bf16, &bf16);
    run((struct rig_setup){.shards = 3, .floats = true}, NULL, NULL);
}

static void reshard_forms_have_no_race(void **state)
{
    (void)state;
    const struct tsr_wrap_options keep = {.reshard = TSR_RESHARD_FALSE};
    const struct tsr_wrap_options drop = {.reshard = TSR_RESHARD_TRUE};
    const struct tsr_wrap_options two = {
        .reshard = TSR_RESHARD_INT, .reshard_int = 2, .mp = bf16.mp};
    run((struct rig_setup){.shards = 4}, &keep, &keep);
    run((struct rig_setup){.shards = 4}, &drop, &drop);
    run((struct rig_setup){.shards = 4}, &two, &two);
}

static void hsdp_has_no_race(void **state)
{
    (void)state;
    run((struct rig_setup){.shards = 2, .replicas = 2}, NULL, NULL);
    run((struct rig_setup){.shards = 2, .replicas = 2, .layers = 5}, &bf16, &bf16);
}

static void offload_has_no_race(void **state)
{
    (void)state;
    const struct tsr_wrap_options pinned = {.offload = TSR_OFFLOAD_CPU_PINNED, .mp = bf16.mp};
    const struct tsr_wrap_options plain = {.offload = TSR_OFFLOAD_CPU};
    run((struct rig_setup){.shards = 2}, &pinned, &pinned);
    run((struct rig_setup){.shards = 2}, &plain, &plain);
}

static void one_rank_has_no_race(void **state)
{
    (void)state;
    run((struct rig_setup){.shards = 1}, &bf16, &bf16);
}

/* Prefetch lists, asynchronous and manual unshards. */
static void prefetch_has_no_race(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 4, .layers = 4});
    rig_wrap(&r, &bf16, NULL);
    struct tsr_module *two[] = {rig_module(&r, "layers.1"), rig_module(&r, "layers.2")};
    rig_ok(tsr_set_forward_prefetch(r.e, rig_module(&r, "layers.0"), two, 2));
    rig_ok(tsr_set_backward_prefetch(r.e, rig_module(&r, "layers.3"), two, 2));
    rig_start(&r);
    rig_step(&r);
    rig_ok(tsr_unshard(r.e, rig_module(&r, "layers.2"), true));
    rig_step(&r);
    rig_ok(tsr_unshard(r.e, rig_module(&r, "layers.0"), false));
    rig_step(&r);
    rig_ok(tsr_set_unshard_async_op(r.e, rig_module(&r, ""), true));
    rig_step(&r);
    rig_step(&r);
    rig_no_race(&r);
    rig_close(&r);
}

/* Micro-batches without reduction, and with reduce-scatter only. */
static void accumulation_has_no_race(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2, .replicas = 2, .micro = 3}, &bf16, NULL);
    for (int i = 0; i < 3; i++) {
        rig_begin(&r);
        for (uint32_t m = 0; m < 3; m++) {
            rig_ok(tsr_set_requires_gradient_sync(r.e, rig_module(&r, ""), i != 0 || m == 2, true));
            rig_ok(tsr_set_requires_all_reduce(r.e, rig_module(&r, ""), m == 2, true));
            rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, ""), m == 2));
            rig_forward(&r, m);
            rig_backward(&r, m);
        }
        rig_end(&r);
    }
    rig_no_race(&r);
    rig_close(&r);
}

/* The checks themselves: a wait that is taken out is found. */
static void missing_waits_are_found(void **state)
{
    (void)state;
    struct rig r;
    int n_waits = 0, n_found = 0;
    rig_ready(&r, (struct rig_setup){.shards = 4}, &bf16, NULL);
    rig_step(&r);
    rig_step(&r);
    for (size_t i = 0; i < r.all.n_instrs; i++) {
        if (r.all.instrs[i].kind != TSR_WAIT)
            continue;
        r.all.instrs[i].kind = TSR_MARK;
        n_waits++;
        n_found += rig_race(&r) >= 0;
        r.all.instrs[i].kind = TSR_WAIT;
    }
    assert_int_equal(rig_race(&r), -1);
    assert_true(n_waits > 30);
    assert_true(2 * n_found > n_waits / 2); /* some are doubled by another chain */
    rig_close(&r);
}

/* ---- random configurations ------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *seed, uint64_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % n;
}

static void random_options(uint64_t *seed, uint32_t shards, struct tsr_wrap_options *o)
{
    static const tsr_dtype dtypes[] = {TSR_DTYPE_NONE, TSR_BF16, TSR_F16, TSR_F32};
    *o = (struct tsr_wrap_options){.reshard = (enum tsr_reshard_kind)next_random(seed, 4),
                                   .reshard_int = shards % 2 ? 1 : 2,
                                   .offload = (enum tsr_offload)next_random(seed, 3)};
    o->mp.param = dtypes[next_random(seed, 2)];
    o->mp.reduce = dtypes[next_random(seed, 4)];
}

static void random_lists(struct rig *r, uint64_t *seed)
{
    for (unsigned i = 0; i < rig_layers(r); i++) {
        char name[32], other[32];
        struct tsr_module *list[2];
        snprintf(name, sizeof name, "layers.%u", i);
        for (int k = 0; k < 2; k++) {
            snprintf(other, sizeof other, "layers.%u", (unsigned)next_random(seed, rig_layers(r)));
            list[k] = rig_module(r, other);
        }
        rig_ok(tsr_set_forward_prefetch(r->e, rig_module(r, name), list, next_random(seed, 3)));
        rig_ok(tsr_set_backward_prefetch(r->e, rig_module(r, name), list, next_random(seed, 3)));
    }
}

/* One setting of the methods before a micro-batch. */
static void random_calls(struct rig *r, uint64_t *seed, bool last)
{
    struct tsr_module *root = rig_module(r, ""), *m = rig_module(r, "layers.1");
    rig_ok(tsr_set_requires_gradient_sync(r->e, root, last || next_random(seed, 2), true));
    rig_ok(tsr_set_requires_all_reduce(r->e, root, last || next_random(seed, 2), true));
    rig_ok(tsr_set_reshard_after_backward(r->e, m, next_random(seed, 2), true));
    rig_ok(tsr_set_is_last_backward(r->e, root, last || next_random(seed, 2)));
    rig_ok(tsr_set_unshard_async_op(r->e, root, next_random(seed, 4) == 0));
    if (next_random(seed, 4) == 0)
        rig_ok(tsr_unshard(r->e, m, next_random(seed, 2)));
    if (next_random(seed, 4) == 0)
        rig_ok(tsr_set_post_optim_event(r->e, root));
}

/* Whatever is combined, no buffer is used without an order, and none is left at the end. */
static void random_configurations_have_no_race(void **state)
{
    (void)state;
    for (uint64_t first = 1; first <= 300; first++) {
        uint64_t seed = first;
        struct rig r;
        struct tsr_wrap_options layers, root;
        struct rig_setup setup = {.shards = (uint32_t)next_random(&seed, 4) + 1,
                                  .replicas = (uint32_t)next_random(&seed, 3),
                                  .layers = (unsigned)next_random(&seed, 4) + 2,
                                  .micro = (unsigned)next_random(&seed, 3) + 1,
                                  .version = (enum tsr_version)next_random(&seed, 2)};
        print_message("seed %" PRIu64 "\n", first);
        random_options(&seed, setup.shards, &layers);
        random_options(&seed, setup.shards, &root);
        root.mp = layers.mp;
        if (setup.shards == 1)
            layers.reshard_int = root.reshard_int = 1;
        rig_open(&r, setup);
        rig_wrap(&r, &layers, &root);
        /* A gather that nobody uses reads an offloaded shard while the host may step already: so
         * does PyTorch's, which waits for nothing else (section 1.5). */
        bool offloads = layers.offload != TSR_OFFLOAD_NONE || root.offload != TSR_OFFLOAD_NONE;
        if (!offloads)
            random_lists(&r, &seed);
        rig_start(&r);
        for (int i = 0; i < 3; i++) {
            rig_begin(&r);
            for (uint32_t m = 0; m < setup.micro; m++) {
                random_calls(&r, &seed, m + 1 == setup.micro);
                rig_forward(&r, m);
                rig_backward(&r, m);
            }
            rig_end(&r);
            assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_ALL_GATHER), 0);
            assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_REDUCE_SCATTER), 0);
            assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_ACTIVATION), 0);
        }
        rig_no_race(&r);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_have_no_race),
        cmocka_unit_test(reshard_forms_have_no_race),
        cmocka_unit_test(hsdp_has_no_race),
        cmocka_unit_test(offload_has_no_race),
        cmocka_unit_test(one_rank_has_no_race),
        cmocka_unit_test(prefetch_has_no_race),
        cmocka_unit_test(accumulation_has_no_race),
        cmocka_unit_test(missing_waits_are_found),
        cmocka_unit_test(random_configurations_have_no_race),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
