/* test_rules_state.c: what stays in place over a run (R222-R226), extra forward methods (R122),
 * clipping (R230), ignored modules of the bucketed replicate (R215).
 */
#include "engine/ops/ops.h"
#include "tests/rules/rules_order.h"

static const struct rig_setup two = {.shards = 2};

/* R223, R224, R226: the shards that the optimizer writes and the gathers read are the ones that
 * were made at the start: what was loaded into them counts, and a state taken once stays true. */
static void shards_stay_in_place(void **state)
{
    (void)state;
    struct rig r;
    uint32_t shard[4];
    rig_ready(&r, two, NULL, NULL);
    size_t n = 0;
    for (size_t i = 0; i < r.now.n_instrs && n < 4; i++) /* of layers.0, behind emb */
        if (rig_is(&r, rig_at(&r, i),
                   (struct rig_want){.kind = TSR_ALLOC, .category = "Sharded Param"}) &&
            rig_at(&r, i)->bytes != 4 * 64)
            shard[n++] = rig_at(&r, i)->buffer;
    assert_int_equal(n, 4);
    for (int step = 0; step < 3; step++) {
        rig_step(&r);
        rig_ok(tsr_state_dict(r.e, rig_module(&r, "")));
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "Sharded Param"), 0);
        const struct tsr_instr *in =
            rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_COPY, .work = "all_gather_copy_in",
                                .group = "layers.0"));
        for (int i = 0; i < 4; i++)
            assert_int_equal(in->operands[i].buffer, shard[i]);
        int written = 0;
        for (size_t i = 0; i < r.now.n_instrs; i++)
            for (uint32_t k = 0; k < rig_at(&r, i)->n_operands; k++)
                written += rig_at(&r, i)->origin.phase == TSR_PHASE_OPTIMIZER &&
                           rig_at(&r, i)->operands[k].buffer == shard[0] &&
                           (rig_at(&r, i)->operands[k].access & TSR_WRITE);
        assert_true(written > 0);
    }
    rig_close(&r);
}

/* R221: saving makes the groups sharded, and sends nothing. */
static void saving_shards_the_groups(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_step(&r);
    rig_ok(tsr_unshard(r.e, rig_module(&r, "layers.1"), false));
    rig_forget(&r);
    assert_true(rig_level(&r, 0, TSR_CAT_UNSHARDED_PARAM) > 0);
    rig_ok(tsr_state_dict(r.e, rig_module(&r, "")));
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_PARAM), 0);
    for (size_t i = 0; i < r.now.n_instrs; i++)
        assert_int_equal(rig_at(&r, i)->kind, TSR_FREE);
    rig_close(&r);
}

static void use_weight(struct tsr_engine *e, struct tsr_module *m, void *impl,
                       struct tsr_tensor *in, struct tsr_tensor **out)
{
    (void)impl;
    *out = tsr_op_linear(e, in, tsr_module_param(m, 0), NULL);
}

static void call_both(struct tsr_engine *e, struct tsr_module *m, void *impl, struct tsr_tensor *in,
                      struct tsr_tensor **out)
{
    (void)impl;
    struct tsr_tensor *h = tsr_call_method(e, tsr_module_child(m, 0), "encode", in);
    *out = tsr_call(e, tsr_module_child(m, 0), h);
    tsr_release(e, h);
}

/* R122: a method that was registered gathers and frees like forward; one that was not does not. */
static void registered_methods(void **state)
{
    (void)state;
    const struct tsr_wrap_options yes = {.reshard = TSR_RESHARD_TRUE};
    const uint64_t shape[] = {8, 8};
    for (int registered = 0; registered < 2; registered++) {
        struct rig r;
        rig_engine(&r, two);
        struct tsr_module *root = tsr_module_add(r.e, NULL, "", call_both, NULL);
        struct tsr_module *m = tsr_module_add(r.e, root, "m", use_weight, NULL);
        assert_non_null(tsr_param_add(r.e, m, "weight", 2, shape, TSR_F32));
        rig_ok(tsr_module_add_method(r.e, m, "encode", use_weight));
        tsr_model_set_float_input(r.e, 8);
        rig_shard(&r, "m", &yes);
        rig_shard(&r, "", NULL);
        if (registered)
            rig_ok(tsr_register_forward_method(r.e, m, "encode"));
        rig_start(&r);
        rig_begin(&r);
        tsr_status status = tsr_step_forward(r.e, 0, NULL, false);
        if (registered) {
            rig_ok(status);
            assert_string_equal(rig_trace(&r, "forward", "AG W F"),
                                "AG m, W m, F m, AG m, W m, F m");
        } else {
            rig_refused(status, TSR_ERUNTIME, "got mixed torch.Tensor and DTensor");
        }
        rig_close(&r);
    }
}

static void clip(uint32_t replicas)
{
    struct rig r;
    struct tsr_step_config config = {.batch = 2, .seq = 4, .n_micro = 1, .clip = true};
    rig_ready(&r, (struct rig_setup){.shards = 2, .replicas = replicas}, NULL, NULL);
    rig_ok(tsr_step_configure(r.e, &config));
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE, .phase = "clip"), 1);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE, .phase = "clip", .comm = "shard"), 1);
    const struct tsr_instr *ar =
        rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE, .phase = "clip"));
    assert_int_equal(ar->reduce_op, TSR_REDUCE_SUM);
    assert_int_equal(ar->bytes, 4 * 15); /* a norm per parameter */
    rig_no_race(&r);
    rig_close(&r);
}

/* R230: norms are summed over the ranks that hold different pieces, and only those. */
static void clipping_reduces_once(void **state)
{
    (void)state;
    clip(0);
    clip(2);
}

/* R215: gradients of ignored modules stay this rank's. */
static void ignored_modules_of_ddp(void **state)
{
    (void)state;
    static const char *const ignored[] = {"layers.1"};
    struct rig r;
    struct tsr_ddp_options o = {.n_ignored = 1, .ignored = ignored};
    rig_open(&r, two);
    rig_ok(tsr_ddp(r.e, &o));
    rig_start(&r);
    rig_step(&r);
    for (size_t b = 0; b < tsr_ddp_n_buckets(r.e); b++)
        for (size_t k = 0; k < tsr_ddp_bucket(r.e, b).n_params; k++)
            assert_null(strstr(tsr_ddp_bucket(r.e, b).params[k], "layers.1"));
    assert_int_equal(tsr_ddp_bucket(r.e, 0).numel, 2 * 212 + 264);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "grad_to_bucket"), 11);
    /* they are there for the optimizer: 15 gradients */
    assert_int_equal(rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_OP, .phase = "optimizer"))->n_operands,
                     15);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_stay_in_place),   cmocka_unit_test(saving_shards_the_groups),
        cmocka_unit_test(registered_methods),     cmocka_unit_test(clipping_reduces_once),
        cmocka_unit_test(ignored_modules_of_ddp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
