/* test_rules_grouping.c: which parameters form a group, and what a wrapping call leaves behind
 * (R1-R24, R220, R251).
 */
#include "tests/rules/rules_testing.h"

static size_t group_index(struct rig *r, const char *name)
{
    for (size_t i = 0; i < tsr_n_groups(r->e); i++)
        if (strcmp(tsr_group_info(r->e, i).name, name) == 0)
            return i;
    fail_msg("no group '%s'", name);
    return 0;
}

/* "a b c": the parameters of a group in the order of the flat buffer. */
static void assert_params(struct rig *r, const char *group, const char *want)
{
    struct tsr_group_info info = tsr_group_info(r->e, group_index(r, group));
    char got[1024] = "";
    for (size_t i = 0; i < info.n_params; i++) {
        size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%s%s", i ? " " : "", info.params[i]);
    }
    assert_string_equal(got, want);
}

static const char *group_of(struct rig *r, const char *param)
{
    for (size_t i = 0; i < tsr_n_param_layouts(r->e); i++) {
        struct tsr_param_layout p = tsr_param_layout(r->e, i);
        if (strcmp(p.fqn, param) == 0)
            return p.group;
    }
    fail_msg("no parameter '%s'", param);
    return NULL;
}

/* R1, R24: what descendants took is not taken again; each call has a group of its own. */
static void calls_take_what_is_left(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2});
    rig_wrap(&r, NULL, NULL);
    assert_int_equal(tsr_n_groups(r.e), 4);
    assert_params(&r, "layers.1",
                  "layers.1.norm.weight layers.1.up.weight layers.1.up.bias layers.1.down.weight");
    assert_params(&r, "", "emb.weight norm.weight out.weight");
    rig_close(&r);
}

static void run_child(struct tsr_engine *e, struct tsr_module *m, void *impl, struct tsr_tensor *in,
                      struct tsr_tensor **out)
{
    (void)impl;
    *out = tsr_call(e, tsr_module_child(m, 0), in);
}

/* R2: a module's own parameters come after its children's, in registration order. */
static void order_is_post_order(void **state)
{
    (void)state;
    struct rig r;
    uint64_t shape[] = {4, 4};
    rig_engine(&r, (struct rig_setup){.shards = 2});
    struct tsr_module *root = tsr_module_add(r.e, NULL, "", run_child, NULL);
    assert_non_null(tsr_param_add(r.e, root, "p", 1, shape, TSR_F32));
    struct tsr_module *child = tsr_module_add(r.e, root, "l", run_child, NULL);
    assert_non_null(tsr_param_add(r.e, child, "weight", 2, shape, TSR_F32));
    assert_non_null(tsr_param_add(r.e, child, "bias", 1, shape, TSR_F32));
    assert_non_null(tsr_param_add(r.e, root, "q", 1, shape, TSR_F32));
    rig_shard(&r, "", NULL);
    assert_params(&r, "", "l.weight l.bias p q");
    rig_close(&r);
}

/* R3, R4: a tied parameter is in the group once; its other places are known. */
static void tied_parameters_count_once(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2});
    rig_ok(tsr_param_tie(r.e, "out.weight", "emb.weight"));
    rig_wrap(&r, NULL, NULL);
    assert_params(&r, "", "emb.weight norm.weight");
    struct tsr_param_layout p = tsr_param_layout(r.e, 0);
    assert_string_equal(p.fqn, "emb.weight");
    assert_int_equal(p.n_aliases, 1);
    assert_string_equal(p.aliases[0], "out.weight");
    rig_start(&r);
    rig_step(&r); /* both places compute with the gathered parameter: nothing is refused */
    rig_step(&r);
    assert_int_equal(rig_count(&r, "reduce g=root params=[emb.weight,norm.weight]"), 1);
    rig_close(&r);
}

/* R5, R6: of a list, only the roots count; they share one group. */
static void lists_make_one_group(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2});
    struct tsr_module *list[] = {rig_module(&r, "layers.0.up"), rig_module(&r, "layers.0"),
                                 rig_module(&r, "norm")};
    rig_ok(tsr_fully_shard(r.e, list, 3, NULL));
    assert_int_equal(tsr_n_groups(r.e), 1);
    assert_int_equal(tsr_group_info(r.e, 0).n_modules, 2);
    assert_string_equal(tsr_group_info(r.e, 0).name, "layers.0, norm");
    assert_params(&r, "layers.0, norm",
                  "layers.0.norm.weight layers.0.up.weight layers.0.up.bias layers.0.down.weight "
                  "norm.weight");
    assert_false(tsr_module_is_wrapped(list[0]));
    rig_close(&r);
}

/* R7, R8: a call with nothing to manage still has hooks; its unshard does nothing. */
static void no_parameters_no_group(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2, .layers = 1});
    const char *parts[] = {"emb", "layers.0", "norm", "out", ""};
    for (size_t i = 0; i < 5; i++)
        rig_shard(&r, parts[i], NULL);
    assert_int_equal(tsr_group_info(r.e, group_index(&r, "")).n_params, 0);
    rig_start(&r);
    size_t before = r.all.n_instrs;
    rig_ok(tsr_unshard(r.e, rig_module(&r, ""), true));
    rig_ok(tsr_wait_unshard_handle(r.e, rig_module(&r, "")));
    assert_int_equal(r.all.n_instrs, before);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "root_pre_forward g=root"), 1);
    assert_int_equal(rig_count(&r, "unshard g=root"), 0);
    assert_int_equal(rig_count(&r, "reduce"), 4);
    rig_close(&r);
}

/* R9: neither API enters the other's subtree. */
static void apis_skip_each_other(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2});
    rig_replicate(&r, "layers.0", NULL);
    rig_shard(&r, "layers", NULL);
    assert_string_equal(group_of(&r, "layers.0.up.weight"), "layers.0");
    assert_string_equal(group_of(&r, "layers.1.up.weight"), "layers");
    rig_replicate(&r, "", NULL);
    assert_params(&r, "", "emb.weight norm.weight out.weight");
    assert_int_equal(tsr_group_info(r.e, group_index(&r, "layers")).n_params, 8);
    rig_close(&r);
}

/* R10: ignored parameters have no group, no reduction, and keep a gradient of full size. */
static void ignored_parameters_stay_out(void **state)
{
    (void)state;
    struct rig r;
    const char *const names[] = {"layers.1.up.*"};
    struct tsr_wrap_options o = {.n_ignored = 1, .ignored = names};
    rig_open(&r, (struct rig_setup){.shards = 2});
    rig_wrap(&r, &o, NULL);
    assert_null(group_of(&r, "layers.1.up.weight"));
    assert_params(&r, "layers.1", "layers.1.norm.weight layers.1.down.weight");
    rig_start(&r);
    rig_step(&r);
    assert_int_equal(
        rig_count(&r, "reduce g=layers.1 params=[layers.1.norm.weight,layers.1.down.weight]"), 1);
    /* all of up.weight's 12 x 8 elements, and its bias, are updated here: 4 kernels use grads */
    size_t opt = RIG_FIND(&r, 0, .kind = TSR_OP, .phase = "optimizer");
    int full = 0;
    for (uint32_t k = 0; k < rig_at(&r, opt)->n_operands; k++)
        full += rig_at(&r, opt)->operands[k].bytes == 12 * 8 * 4;
    assert_int_equal(full, 1);
    rig_close(&r);
}

/* R12, R13: refused, naming the module. */
static void second_call_is_refused(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2});
    rig_shard(&r, "layers.2", NULL);
    rig_refused(rig_try_shard(&r, "layers.2", NULL), TSR_EASSERT, "layers.2");
    assert_non_null(strstr(tsr_error_text(), "already been applied"));
    struct tsr_module *m = rig_module(&r, "layers.2");
    rig_refused(tsr_replicate(r.e, &m, 1, NULL), TSR_ERUNTIME, "layers.2");
    rig_close(&r);
}

/* R18: dim 0 replicates, dim 1 shards: of rank 5 of 2 x 4, shards are 4-7, replicas 1 and 5. */
static void mesh_dimensions(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 4, .replicas = 2, .rank = 5}, NULL, NULL);
    rig_step(&r);
    const struct tsr_tables *t = tsr_engine_tables(r.e);
    const struct tsr_comm *rs =
        &t->comms[rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_REDUCE_SCATTER))->comm];
    const struct tsr_comm *ar =
        &t->comms[rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE))->comm];
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(tsr_comm_member(rs, 5, i), 4 + i);
    assert_int_equal(ar->size, 2);
    assert_int_equal(tsr_comm_member(ar, 5, 0), 1);
    assert_int_equal(tsr_comm_member(ar, 5, 1), 5);
    rig_close(&r);
}

/* R19, R23: parameters are made on the device, meta ones not; construction has no collective. */
static void construction_is_local(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2}, NULL, NULL);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "Sharded Param"), 3 * 4 + 3);
    for (size_t i = 0; i < r.now.n_instrs; i++)
        assert_true(rig_at(&r, i)->kind < TSR_ALL_GATHER || rig_at(&r, i)->kind > TSR_COMM_CREATE);
    rig_close(&r);
    rig_open(&r, (struct rig_setup){.shards = 2});
    tsr_model_set_meta(r.e, true);
    rig_wrap(&r, NULL, NULL);
    rig_start(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC), 0);
    rig_close(&r);
}

/* R22: the children of a wrapped module are not wrapped. */
static void only_the_module_itself(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2});
    rig_shard(&r, "layers.0", NULL);
    assert_true(tsr_module_is_wrapped(rig_module(&r, "layers.0")));
    assert_false(tsr_module_is_wrapped(rig_module(&r, "layers.0.up")));
    assert_false(tsr_module_is_wrapped(rig_module(&r, "layers.1")));
    rig_refused(tsr_unshard(r.e, rig_module(&r, "layers.0.up"), false), TSR_EATTRIBUTE,
                "layers.0.up");
    rig_close(&r);
}

/* R220: names of parameters are those of the model without wrapping. */
static void names_do_not_change(void **state)
{
    (void)state;
    struct rig plain, wrapped;
    rig_open(&plain, (struct rig_setup){.shards = 2});
    rig_open(&wrapped, (struct rig_setup){.shards = 2});
    rig_wrap(&wrapped, NULL, NULL);
    size_t n = tsr_n_param_layouts(plain.e);
    assert_int_equal(n, 3 * 4 + 3);
    assert_int_equal(tsr_n_param_layouts(wrapped.e), n);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(tsr_param_layout(plain.e, i).fqn, tsr_param_layout(wrapped.e, i).fqn);
    rig_close(&plain);
    rig_close(&wrapped);
}

/* R251: buffers (Llama's rotary angles) stay as they are and enter no collective. */
static void buffers_stay(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_wrap_options o = {.mp = {.param = TSR_BF16}};
    rig_llama(&r, (struct rig_setup){.shards = 2});
    rig_shard(&r, "model.layers.0", &o);
    rig_shard(&r, "", &o);
    rig_start(&r);
    size_t made = RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "Buffer");
    uint32_t buffer = rig_at(&r, made)->buffer;
    uint64_t bytes = rig_at(&r, made)->bytes;
    assert_true(bytes > 0);
    rig_step(&r);
    rig_step(&r);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_BUFFER), bytes);
    for (size_t i = 0; i < r.all.n_instrs; i++)
        for (uint32_t k = 0; k < r.all.instrs[i].n_operands; k++)
            if (r.all.instrs[i].operands[k].buffer == buffer)
                assert_true(r.all.instrs[i].kind == TSR_OP || r.all.instrs[i].kind == TSR_FILL);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_take_what_is_left),
        cmocka_unit_test(order_is_post_order),
        cmocka_unit_test(tied_parameters_count_once),
        cmocka_unit_test(lists_make_one_group),
        cmocka_unit_test(no_parameters_no_group),
        cmocka_unit_test(apis_skip_each_other),
        cmocka_unit_test(ignored_parameters_stay_out),
        cmocka_unit_test(second_call_is_refused),
        cmocka_unit_test(mesh_dimensions),
        cmocka_unit_test(construction_is_local),
        cmocka_unit_test(only_the_module_itself),
        cmocka_unit_test(names_do_not_change),
        cmocka_unit_test(buffers_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
