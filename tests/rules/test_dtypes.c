/* test_rules_dtypes.c: which dtype is stored, gathered, computed with and reduced (R55-R68).
 *
 * Layer of width 8 on 4 ranks: norm 8, up 12 x 8 and 12, down 8 x 12: padded shards of 2, 24, 3
 * and 24 elements, S = 53.
 */
#include "tests/rules/rules_testing.h"

enum { S = 53, W = 4 };

static const struct rig_setup four = {.shards = W};

static void run(struct rig *r, struct rig_setup setup, struct tsr_mp_policy mp)
{
    struct tsr_wrap_options o = {.mp = mp};
    rig_ready(r, setup, &o, &o);
    rig_step(r);
}

static uint64_t total_of(struct rig *r, const char *category, const char *group)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->now.n_instrs; i++)
        if (rig_is(r, rig_at(r, i),
                   (struct rig_want){.kind = TSR_ALLOC, .category = category, .group = group}))
            bytes += rig_at(r, i)->bytes;
    return bytes;
}

static const struct tsr_instr *gather_of(struct rig *r, const char *group)
{
    return rig_at(r, RIG_FIND(r, 0, .kind = TSR_ALL_GATHER, .group = group));
}

static const struct tsr_instr *scatter_of(struct rig *r, const char *group)
{
    return rig_at(r, RIG_FIND(r, 0, .kind = TSR_REDUCE_SCATTER, .group = group));
}

/* R55: the dtype at lazy init counts, not the one at the wrapping call. */
static void original_dtype_is_that_of_lazy_init(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, four);
    rig_wrap(&r, NULL, NULL);
    rig_ok(tsr_param_set_dtype(r.e, "**", TSR_BF16));
    rig_start(&r);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_SHARDED_PARAM), 2 * (3 * S + 66));
    rig_step(&r);
    assert_int_equal(gather_of(&r, "layers.1")->bytes, 2 * W * S);
    assert_int_equal(rig_count(&r, "sharded_grad dtype=bf16"), 4);
    rig_close(&r);
}

/* R56, R57, R61: compute in bf16, keep f32, reduce in f32. */
static void param_and_reduce_dtype(void **state)
{
    (void)state;
    struct rig r;
    run(&r, four, (struct tsr_mp_policy){.param = TSR_BF16, .reduce = TSR_F32});
    assert_int_equal(gather_of(&r, "layers.1")->bytes, 2 * W * S);
    assert_int_equal(gather_of(&r, "layers.1")->dtype, TSR_BF16);
    assert_int_equal(scatter_of(&r, "layers.1")->bytes, 4 * W * S);
    assert_int_equal(scatter_of(&r, "layers.1")->dtype, TSR_F32);
    size_t wait = r.events[rig_event(&r, "wait_unshard g=layers.0 res=copy_out", 0)].at;
    size_t next = r.events[rig_event(&r, "wait_unshard g=layers.1 res=copy_out", 0)].at;
    uint64_t root = rig_level(&r, wait, TSR_CAT_UNSHARDED_PARAM);
    assert_int_equal(root, 2 * W * 66);
    assert_int_equal(rig_level(&r, next - 1, TSR_CAT_UNSHARDED_PARAM), root); /* 0 was freed */
    assert_int_equal(total_of(&r, "Sharded Grad", "layers.1"), 4 * S);
    /* two Adam states of the local elements, here those of rank 0, which has no padding */
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_OPT_STATE), 2 * 4 * (3 * S + 66));
    rig_close(&r);
}

/* R58: the dtype that they have already: no cast. */
static void same_dtype_is_no_cast(void **state)
{
    (void)state;
    struct rig r;
    struct rig_setup bf16 = {.shards = W, .dtype = TSR_BF16};
    run(&r, bf16, (struct tsr_mp_policy){.param = TSR_BF16});
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "all_gather_cast"), 0);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "All Gather Input"), 0);
    assert_int_equal(gather_of(&r, "layers.0")->bytes, 2 * W * S);
    rig_close(&r);
    run(&r, four, (struct tsr_mp_policy){.param = TSR_BF16});
    size_t flat = RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "All Gather Input");
    assert_int_equal(rig_at(&r, flat)->bytes, 2 * 66); /* the root's; one flat buffer a group */
    assert_string_equal(tsr_engine_tables(r.e)->streams[rig_at(&r, flat)->stream].name, "copy_in");
    rig_close(&r);
}

/* R59: without a reduce dtype the gradient's own; the result is cast to the original one. */
static void reduce_in_the_compute_dtype(void **state)
{
    (void)state;
    struct rig r;
    run(&r, four, (struct tsr_mp_policy){.param = TSR_BF16});
    assert_int_equal(scatter_of(&r, "layers.1")->bytes, 2 * W * S);
    assert_int_equal(scatter_of(&r, "layers.1")->dtype, TSR_BF16);
    assert_int_equal(total_of(&r, "Sharded Grad", "layers.1"), 4 * S);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "grad_cast", .group = "layers.1"), 1);
    rig_close(&r);
}

/* R60: reduce = param counts as none, also when a conversion makes param a no-cast. */
static void reduce_equal_to_param(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16, .reduce = TSR_BF16}};
    rig_open(&r, four);
    rig_wrap(&r, &o, &o);
    rig_ok(tsr_param_set_dtype(r.e, "**", TSR_BF16));
    rig_start(&r);
    rig_step(&r);
    struct tsr_param_layout p = tsr_param_layout(r.e, 0);
    assert_int_equal(p.param_dtype, TSR_DTYPE_NONE);
    assert_int_equal(p.reduce_dtype, TSR_DTYPE_NONE);
    rig_close(&r);
    /* but a param dtype that is no cast does not hide a reduce dtype of another kind */
    run(&r, (struct rig_setup){.shards = W, .dtype = TSR_BF16},
        (struct tsr_mp_policy){.param = TSR_BF16, .reduce = TSR_F32});
    assert_int_equal(tsr_param_layout(r.e, 0).reduce_dtype, TSR_F32);
    assert_int_equal(scatter_of(&r, "layers.1")->dtype, TSR_F32);
    rig_close(&r);
}

/* R62: mixed original dtypes of trainable parameters. */
static void mixed_trainable_dtypes(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, four);
    rig_ok(tsr_param_set_dtype(r.e, "layers.1.up.bias", TSR_BF16));
    rig_wrap(&r, NULL, NULL);
    rig_start(&r);
    rig_begin(&r);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_EASSERT,
                "FSDP expects uniform original parameter dtype but got");
    assert_non_null(strstr(tsr_error_text(), "bf16"));
    assert_non_null(strstr(tsr_error_text(), "f32"));
    rig_close(&r);
}

/* R63: a frozen parameter may differ; the group travels as bytes then. */
static void mixed_frozen_dtypes(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = W, .floats = true});
    rig_ok(tsr_param_set_dtype(r.e, "layers.1.norm.weight", TSR_BF16));
    rig_ok(tsr_param_freeze(r.e, "layers.1.norm.weight"));
    rig_wrap(&r, NULL, NULL);
    rig_start(&r);
    rig_ok(tsr_unshard(r.e, rig_module(&r, "layers.1"), false));
    assert_int_equal(gather_of(&r, "layers.1")->dtype, TSR_U8);
    assert_int_equal(gather_of(&r, "layers.1")->bytes, W * (2 * 2 + 51 * 4));
    rig_close(&r);
}

/* R64, R145: only frozen parameters: no error, gathered, never reduced. */
static void frozen_group(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, four);
    rig_ok(tsr_param_freeze(r.e, "layers.1.**"));
    rig_wrap(&r, NULL, NULL);
    rig_start(&r);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .group = "layers.1"), 2);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 3);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER, .group = "layers.1"), 0);
    rig_close(&r);
}

static int casts(struct rig *r, const char *phase)
{
    int n = 0;
    for (size_t i = 0; i < r->now.n_instrs; i++) {
        const struct tsr_instr *x = rig_at(r, i);
        n += x->kind == TSR_OP && strcmp(tsr_phase_name(x->origin.phase), phase) == 0 &&
             strcmp(x->work->name, "cast") == 0;
    }
    return n;
}

/* R65: a float input is cast when both are set; ids never. R66: outputs likewise. */
static void inputs_and_outputs(void **state)
{
    (void)state;
    struct rig r;
    struct rig_setup floats = {.shards = W, .floats = true};
    struct rig_setup bf16 = {.shards = W, .floats = true, .dtype = TSR_BF16};
    run(&r, floats, (struct tsr_mp_policy){.param = TSR_BF16});
    assert_int_equal(casts(&r, "forward"), 1); /* at the root; layers get bf16 */
    rig_close(&r);
    run(&r, four, (struct tsr_mp_policy){.param = TSR_BF16});
    assert_int_equal(casts(&r, "forward"), 0);
    rig_close(&r);
    run(&r, floats, (struct tsr_mp_policy){0});
    assert_int_equal(casts(&r, "forward"), 0);
    rig_close(&r);
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16, .output = TSR_F32}};
    rig_ready(&r, floats, &o, NULL);
    rig_step(&r);
    assert_int_equal(casts(&r, "forward"), 3 + 3); /* into and out of each layer */
    rig_close(&r);
    o = (struct tsr_wrap_options){.mp = {.param = TSR_BF16, .no_cast_inputs = true}};
    rig_ready(&r, bf16, &o, &o);
    rig_begin(&r);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_ERUNTIME,
                "have the same dtype, but got");
    rig_close(&r);
}

/* R66: the pre-backward hook sits on the output before its cast: the cast's backward comes first.
 */
static void output_cast_is_outside_the_hook(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16, .output = TSR_F32}};
    rig_ready(&r, four, &o, NULL);
    rig_step(&r);
    size_t hook = r.events[rig_event(&r, "pre_backward g=layers.2", 0)].at;
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < hook; i++)
        if (rig_at(&r, i)->kind == TSR_OP && rig_at(&r, i)->origin.phase == TSR_PHASE_BACKWARD &&
            strstr(rig_at(&r, i)->work->name, "cast"))
            last = i;
    assert_true(last != SIZE_MAX);
    assert_int_equal(rig_at(&r, last)->dtype, TSR_BF16); /* f32 gradient to the layer's bf16 */
    rig_close(&r);
}

/* R68: a nested module has its own policy. */
static void policies_do_not_nest(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16, .output = TSR_F32}};
    rig_open(&r, four);
    rig_shard(&r, "layers.1", &o);
    rig_shard(&r, "layers.2", NULL);
    rig_shard(&r, "", NULL);
    rig_start(&r);
    rig_step(&r);
    assert_int_equal(gather_of(&r, "layers.1")->dtype, TSR_BF16);
    assert_int_equal(gather_of(&r, "layers.2")->dtype, TSR_F32);
    assert_int_equal(gather_of(&r, "root")->dtype, TSR_F32);
    assert_int_equal(casts(&r, "forward"), 2); /* into and out of layers.1 */
    rig_close(&r);
}

/* R174: gradients of different dtypes in one group. */
static void mixed_gradient_dtypes(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2, .micro = 2});
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}};
    rig_wrap(&r, &o, &o);
    rig_ok(tsr_param_freeze(r.e, "layers.1.up.weight"));
    rig_start(&r);
    rig_begin(&r);
    rig_ok(tsr_set_requires_gradient_sync(r.e, rig_module(&r, ""), false, true));
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    rig_ok(tsr_set_requires_gradient_sync(r.e, rig_module(&r, ""), true, true));
    rig_forward(&r, 1);
    rig_backward(&r, 1); /* all were kept in f32: uniform */
    rig_end(&r);
    assert_int_equal(rig_count(&r, "reduce grad_dtype=f32 reduce_dtype=f32"), 4);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(original_dtype_is_that_of_lazy_init),
        cmocka_unit_test(param_and_reduce_dtype),
        cmocka_unit_test(same_dtype_is_no_cast),
        cmocka_unit_test(reduce_in_the_compute_dtype),
        cmocka_unit_test(reduce_equal_to_param),
        cmocka_unit_test(mixed_trainable_dtypes),
        cmocka_unit_test(mixed_frozen_dtypes),
        cmocka_unit_test(frozen_group),
        cmocka_unit_test(inputs_and_outputs),
        cmocka_unit_test(output_cast_is_outside_the_hook),
        cmocka_unit_test(policies_do_not_nest),
        cmocka_unit_test(mixed_gradient_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
