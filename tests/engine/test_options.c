/* test_options.c: what the engine can do that PyTorch does not (engine/fsdp/OPTIONS.md): which
 * instructions are there and which are not, and what is refused. That values stay the same:
 * tests/exec/test_exact_options.c.
 */
#include "tests/rules/rules_testing.h"

static void open_with(struct rig *r, const struct tsr_wrap_options *o, struct rig_setup setup)
{
    setup.optimizer = TSR_OPT_ADAMW_FUSED;
    rig_open(r, setup);
    rig_wrap(r, o, o);
}

static uint32_t reductions(const struct rig *r, uint8_t op)
{
    uint32_t n = 0;
    for (size_t i = 0; i < r->now.n_instrs; i++) {
        uint8_t kind = r->now.instrs[i].kind;
        n += (kind == TSR_REDUCE_SCATTER || kind == TSR_ALL_REDUCE) &&
             r->now.instrs[i].reduce_op == op;
    }
    return n;
}

/* The upper half of the optimizer's arguments. */
static float scale_of(const struct rig *r, uint32_t param)
{
    const struct tsr_instr *adamw =
        rig_at(r, RIG_FIND(r, 0, .kind = TSR_OP, .work = "fused_adamw"));
    uint32_t bits = (uint32_t)(adamw->work->args[param] >> 32);
    float scale = 1;
    if (bits)
        memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* Whatever the factor, nothing divides but the optimizer. */
static void sums(void **state)
{
    (void)state;
    const struct tsr_wrap_options o = {.folds = true};
    for (int k = 0; k < 3; k++) {
        struct rig r;
        open_with(&r, &o, (struct rig_setup){.shards = 4, .replicas = k == 1 ? 2 : 0});
        for (int i = 0; i < 3 && k == 2; i++)
            rig_ok(tsr_set_gradient_divide_factor(
                r.e, rig_module(&r, (const char *[]){"layers.0", "layers.1", "layers.2"}[i]), 32));
        rig_start(&r);
        rig_step(&r);
        assert_true(reductions(&r, TSR_REDUCE_SUM) >= 3);
        assert_int_equal(reductions(&r, TSR_REDUCE_AVG), 0);
        assert_int_equal(reductions(&r, TSR_REDUCE_PREMUL_SUM), 0);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .work = "div"), 0);
        uint32_t layers = 0, n;
        n = rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_OP, .work = "fused_adamw"))->work->n_args;
        for (uint32_t i = 0; i < n; i++)
            layers += scale_of(&r, i) == (k == 2 ? 1.0f / 32 : k == 1 ? 1.0f / 8 : 1.0f / 4);
        assert_true(k == 2 ? layers > 0 && layers < n : layers == n); /* the root keeps the mean */
        rig_close(&r);
    }
}

static void halves_are_divided(void **state)
{
    (void)state;
    const struct tsr_wrap_options o = {.folds = true, .mp = {.reduce = TSR_F16}};
    struct rig r;
    open_with(&r, &o, (struct rig_setup){.shards = 4});
    rig_start(&r);
    rig_step(&r);
    assert_true(RIG_COUNT(&r, .kind = TSR_OP, .work = "div") > 0);
    assert_true(scale_of(&r, 0) == 1);
    rig_close(&r);
}

static void factor_waits(void **state)
{
    (void)state;
    const struct tsr_wrap_options o = {.folds = true};
    struct rig r;
    open_with(&r, &o, (struct rig_setup){.shards = 4});
    rig_start(&r);
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    rig_refused(tsr_set_gradient_divide_factor(r.e, rig_module(&r, "layers.1"), 2), TSR_EVALUE,
                "zero_grad");
    rig_close(&r);
}

static void other_optimizers(void **state)
{
    (void)state;
    const struct tsr_wrap_options o = {.folds = true};
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 4, .optimizer = TSR_OPT_SGD});
    rig_wrap(&r, &o, &o);
    rig_start(&r);
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    rig_refused(tsr_step_optimizer(r.e), TSR_EUNSUPPORTED, "fused AdamW");
    rig_close(&r);
}

/* One rank alone; a gradient is reduced once more for each reason to. */
static void kept_gradients(void **state)
{
    (void)state;
    const struct tsr_wrap_options o = {.mirror = true,
                                       .mp = {.param = TSR_BF16, .reduce = TSR_F32}};
    const struct tsr_wrap_options rounds = {.mirror = true, .mp = {.reduce = TSR_BF16}};
    for (int k = 0; k < 4; k++) {
        struct rig r;
        open_with(&r, k == 1 ? &rounds : &o,
                  (struct rig_setup){.shards = 1, .micro = k == 2 ? 2 : 1});
        if (k == 3)
            rig_ok(tsr_set_gradient_divide_factor(r.e, rig_module(&r, "layers.1"), 2));
        rig_start(&r);
        rig_step(&r);
        size_t n = RIG_COUNT(&r, .kind = TSR_OP, .work = "chunk_cat");
        assert_int_equal(n, k == 0 ? 0 : k == 1 ? 4 : k == 2 ? 8 : 1);
        const struct tsr_instr *adamw =
            rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_OP, .work = "fused_adamw"));
        assert_int_equal(adamw->operands[0].dtype, k == 0 || k == 3 ? TSR_BF16 : TSR_F32);
        rig_step(&r);
        rig_close(&r);
    }
}

static void second_gradient(void **state)
{
    (void)state;
    const struct tsr_wrap_options o = {.mirror = true,
                                       .mp = {.param = TSR_BF16, .reduce = TSR_F32}};
    struct rig r;
    uint32_t micro = 0;
    open_with(&r, &o, (struct rig_setup){.shards = 1});
    rig_start(&r);
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    rig_forward(&r, 0);
    rig_refused(tsr_step_backward(r.e, &micro, 1), TSR_EUNSUPPORTED, "one micro-batch");
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),           cmocka_unit_test(halves_are_divided),
        cmocka_unit_test(factor_waits),   cmocka_unit_test(other_optimizers),
        cmocka_unit_test(kept_gradients), cmocka_unit_test(second_gradient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
