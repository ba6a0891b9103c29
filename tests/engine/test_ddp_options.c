/* test_ddp_options.c: constructor options and comm hooks of the bucketed replicate (sections 5.3,
 * 5.4; R212, R217, R219).
 */
#include "engine/ddp/reducer.h"
#include "tests/rules/rules_order.h"

enum { LAYER = 8 + 96 + 12 + 96, ALL = LAYER + 128 + 8 + 128 }; /* elements, one layer */

static void start(struct rig *r, const struct tsr_ddp_options *o)
{
    rig_open(r, (struct rig_setup){.shards = 2, .layers = 1});
    rig_ok(tsr_ddp(r->e, o));
    rig_start(r);
}

static void refused(const struct tsr_ddp_options *o, tsr_status want, const char *words)
{
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2, .layers = 1});
    rig_refused(tsr_ddp(r.e, o), want, words);
    rig_close(&r);
}

/* R217 */
static void device_id(void **state)
{
    (void)state;
    static const struct {
        const char *id;
        size_t n;
    } good[] = {{NULL, 0}, {"cpu", 0}, {"0", 1}, {"cuda", 1}, {"cuda:3", 1}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct rig r;
        start(&r, &(struct tsr_ddp_options){.device_id = good[i].id});
        assert_int_equal(r.e->reducer->n_device_ids, good[i].n);
        rig_close(&r);
    }
    refused(&(struct tsr_ddp_options){.device_id = "first"}, TSR_ERUNTIME,
            "Expected device_id to be int or torch.device");
    refused(&(struct tsr_ddp_options){.device_id = "cuda:"}, TSR_ERUNTIME, "cuda:");
    refused(&(struct tsr_ddp_options){.device_id = ""}, TSR_ERUNTIME, "device_id");
}

/* The list gives the limit of each bucket, from the first backward on. */
static void list_of_caps(void **state)
{
    (void)state;
    struct rig r;
    const double caps[2] = {400.0 / 1048576, 800.0 / 1048576};
    start(&r, &(struct tsr_ddp_options){.bucket_cap_mb_list = caps, .n_caps = 2});
    rig_step(&r);
    /* definition order: emb 512 | norm 32 + up 384 + bias 48 + down 384 = 848 | norm 32 + out 512
     */
    assert_int_equal(tsr_ddp_n_buckets(r.e), 3);
    assert_int_equal(tsr_ddp_bucket(r.e, 0).bytes, 4 * (8 + 128));
    assert_int_equal(tsr_ddp_bucket(r.e, 1).bytes, 4 * LAYER);
    assert_int_equal(tsr_ddp_bucket(r.e, 2).bytes, 4 * 128);
    rig_close(&r);
    refused(&(struct tsr_ddp_options){.bucket_cap_mb_list = caps}, TSR_EVALUE,
            "bucket_cap_mb_list");
    refused(&(struct tsr_ddp_options){.bucket_cap_mb_list = (double[]){-1}, .n_caps = 1},
            TSR_EVALUE, "found -1");
}

static void add_op(struct tsr_engine *e, struct tsr_tensor *bucket, void *user)
{
    tsr_emit_user_op(e, bucket, user, 1);
    tsr_emit_all_reduce(e, bucket, 0);
}

/* A hook replaces the all-reduce of every bucket; at most one. */
static void comm_hooks(void **state)
{
    (void)state;
    struct rig r;
    for (int hook = TSR_DDP_HOOK_ALLREDUCE; hook <= TSR_DDP_HOOK_USER; hook++) {
        bool user = hook == TSR_DDP_HOOK_USER,
             half = hook == TSR_DDP_HOOK_FP16_COMPRESS || hook == TSR_DDP_HOOK_BF16_COMPRESS;
        start(&r, &(struct tsr_ddp_options){.bucket_cap_mb = 100});
        rig_ok(tsr_ddp_register_comm_hook(r.e, (enum tsr_ddp_hook)hook, user ? add_op : NULL,
                                          "my_hook"));
        rig_refused(tsr_ddp_register_comm_hook(r.e, TSR_DDP_HOOK_ALLREDUCE, NULL, NULL),
                    TSR_ERUNTIME, "only be called once");
        rig_step(&r);
        const struct tsr_instr *ar = rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE));
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 1);
        assert_int_equal(ar->bytes, (half ? 2 : 4) * ALL);
        assert_int_equal(ar->dtype, hook == TSR_DDP_HOOK_FP16_COMPRESS   ? TSR_F16
                                    : hook == TSR_DDP_HOOK_BF16_COMPRESS ? TSR_BF16
                                                                         : TSR_F32);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .work = "div_by_world"), !user);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "decompress"), half);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .work = "my_hook", .stream = "all_reduce"),
                         user);
        rig_no_race(&r);
        rig_close(&r);
    }
}

/* R219, and what the delayed parameters do: one buffer, reduced after the hook's parameter. */
static void delayed_all_reduce(void **state)
{
    (void)state;
    struct rig r;
    const char *const delayed[] = {"layers.0.down.weight", "layers.0.up.*"};
    refused(&(struct tsr_ddp_options){.delayed = delayed, .n_delayed = 2}, TSR_EVALUE,
            "need to be set at the same time");
    refused(&(struct tsr_ddp_options){.delayed_after = "emb.weight"}, TSR_EVALUE,
            "need to be set at the same time");
    refused(&(struct tsr_ddp_options){.delayed = delayed,
                                      .n_delayed = 2,
                                      .delayed_after = "nothing.weight"},
            TSR_EVALUE, "nothing.weight");
    start(&r, &(struct tsr_ddp_options){
                  .delayed = delayed, .n_delayed = 2, .delayed_after = "layers.0.norm.weight"});
    for (int i = 0; i < 2; i++) {
        rig_step(&r);
        size_t big = RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE);
        assert_int_equal(rig_at(&r, big)->bytes, 4 * (96 + 12 + 96));
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 2);
        assert_int_equal(rig_at(&r, RIG_FIND(&r, 1, .kind = TSR_ALL_REDUCE))->bytes,
                         4 * (8 + 128 + 8 + 128));
        /* zeroed once an iteration, before anything accumulates into it */
        assert_true(RIG_FIND(&r, 0, .kind = TSR_FILL, .phase = "forward") < big);
        rig_no_race(&r);
    }
    rig_close(&r);
}

static void everything_delayed(void **state)
{
    (void)state;
    struct rig r;
    const char *const all[] = {"**"};
    start(&r,
          &(struct tsr_ddp_options){.delayed = all, .n_delayed = 1, .delayed_after = "emb.weight"});
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 1);
    assert_int_equal(rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE))->bytes, 4 * ALL);
    assert_int_equal(tsr_ddp_n_buckets(r.e), 0);
    rig_step(&r); /* no bucket behind it: its own event is all that orders it */
    rig_no_race(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_id),          cmocka_unit_test(list_of_caps),
        cmocka_unit_test(comm_hooks),         cmocka_unit_test(delayed_all_reduce),
        cmocka_unit_test(everything_delayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
