/* test_rules_lazy_init.c: root, lazy initialisation and what the root does before a forward
 * (R71-R82, R84-R89, R252).
 */
#include "tests/rules/rules_order.h"

static const struct rig_setup two = {.shards = 2};

/* R71, R80: the first to run is the root; the others share its streams; both happen once. */
static void first_forward_makes_the_root(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    assert_int_equal(tsr_engine_tables(r.e)->n_streams, 1);
    rig_step(&r);
    assert_int_equal(
        rig_count(&r, "lazy_init g=root states=[root,layers.0,layers.1,layers.2] root_keeps=true"),
        1);
    assert_int_equal(tsr_engine_tables(r.e)->n_streams, 5);
    uint16_t stream = rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_GATHER))->stream;
    for (size_t i = 0; i < r.now.n_instrs; i++)
        if (rig_at(&r, i)->kind == TSR_ALL_GATHER)
            assert_int_equal(rig_at(&r, i)->stream, stream);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "lazy_init"), 0);
    assert_int_equal(rig_count(&r, "group_lazy_init"), 0);
    assert_int_equal(tsr_engine_tables(r.e)->n_streams, 5);
    rig_close(&r);
}

/* R72: a part that ran first is a root of its own; the whole model is refused then. */
static void part_first_is_refused(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2, .floats = true}, NULL, NULL);
    rig_begin(&r);
    rig_ok(tsr_step_forward(r.e, 0, rig_module(&r, "layers.1"), false));
    assert_int_equal(rig_count(&r, "lazy_init g=layers.1"), 1);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_ERUNTIME, "layers.1");
    rig_close(&r);
}

/* R73: a root of several modules. */
static void list_root_is_refused(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, two);
    struct tsr_module *list[] = {rig_module(&r, "emb"), rig_module(&r, "norm")};
    rig_ok(tsr_fully_shard(r.e, list, 2, NULL));
    rig_start(&r);
    rig_begin(&r);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_ERUNTIME,
                "requires a single root module but got");
    rig_close(&r);
}

static void run_root_option(const struct tsr_wrap_options *root, int set, const char *want)
{
    struct rig r;
    rig_open(&r, two);
    rig_wrap(&r, NULL, root);
    if (set >= 0)
        rig_ok(tsr_set_reshard_after_forward(r.e, rig_module(&r, ""), set != 0, false));
    rig_start(&r);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "forward", "F"), want);
    assert_int_equal(rig_count(&r, "unshard g=root res=issue"), strstr(want, "root") ? 2 : 1);
    rig_close(&r);
}

/* R74, R75, R76: None keeps the root (only the root), True and the setter do not. */
static void root_keeps_its_parameters(void **state)
{
    (void)state;
    const struct tsr_wrap_options yes = {.reshard = TSR_RESHARD_TRUE};
    run_root_option(NULL, -1, "F 0, F 1, F 2");
    run_root_option(&yes, -1, "F 0, F 1, F 2, F root");
    run_root_option(NULL, 1, "F 0, F 1, F 2, F root");
    run_root_option(NULL, 0, "F 0, F 1, F 2");
}

/* R77: every meta parameter of the first group that has one is named. */
static void meta_parameters_are_named(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, two);
    tsr_model_set_meta(r.e, true);
    rig_wrap(&r, NULL, NULL);
    rig_start(&r);
    rig_begin(&r);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_ERUNTIME,
                "materialized from meta device");
    assert_non_null(strstr(tsr_error_text(), "emb.weight"));
    assert_non_null(strstr(tsr_error_text(), "norm.weight"));
    assert_non_null(strstr(tsr_error_text(), "out.weight"));
    rig_close(&r);
}

/* R79: names. */
static void groups_are_named_after_their_modules(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, two);
    struct tsr_module *list[] = {rig_module(&r, "norm"), rig_module(&r, "out")};
    rig_ok(tsr_fully_shard(r.e, list, 2, NULL));
    rig_shard(&r, "", NULL);
    assert_string_equal(tsr_group_info(r.e, 0).name, "");
    assert_string_equal(tsr_group_info(r.e, 1).name, "norm, out");
    rig_close(&r);
}

/* R81: an unshard before everything runs on the current stream, makes nobody the root, and needs no
 * wait of streams that do not exist yet. */
static void unshard_before_forward(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_forget(&r);
    rig_ok(tsr_unshard(r.e, rig_module(&r, "layers.1"), false));
    assert_int_equal(
        RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .stream = "default", .group = "layers.1"), 1);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_WAIT), 1); /* W4 */
    assert_int_equal(rig_count(&r, "lazy_init"), 0);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "lazy_init g=root"), 1);
    assert_int_equal(rig_count(&r, "unshard g=layers.1 res=already"), 1);
    assert_string_equal(rig_trace(&r, "forward", "AG"), "AG root, AG 0, AG 2");
    rig_close(&r);
}

/* R82: a list state stands once per module; its second post-backward does nothing. */
static void list_state_stands_per_module(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, two);
    struct tsr_module *list[] = {rig_module(&r, "norm"), rig_module(&r, "out")};
    rig_ok(tsr_fully_shard(r.e, list, 2, NULL));
    rig_shard(&r, "", NULL);
    rig_start(&r);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "lazy_init states=[root,norm,_out,norm,_out]"), 1);
    assert_int_equal(rig_count(&r, "post_backward g=norm,_out"), 2);
    assert_int_equal(rig_count(&r, "finalize_backward g=norm,_out"), 2);
    assert_int_equal(rig_count(&r, "reduce g=norm,_out"), 1);
    rig_close(&r);
}

/* R84 (W1): the gathers of an iteration come after the optimizer step before it. */
static void gathers_wait_for_the_optimizer(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_step(&r);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "wait_stream stream=copy_in on=default"), 1);
    assert_int_equal(rig_count(&r, "wait_stream stream=all_gather on=default"), 1);
    size_t root = rig_event(&r, "root_pre_forward g=root", 0);
    assert_true(rig_matches(r.events[root + 1].text, "wait_stream stream=copy_in on=default"));
    assert_true(rig_matches(r.events[root + 2].text, "wait_stream stream=all_gather on=default"));
    /* the first kernel on compute is before the copy-in */
    size_t input = RIG_FIND(&r, 0, .kind = TSR_COPY, .phase = "inputs");
    size_t copy = RIG_FIND(&r, 0, .kind = TSR_COPY, .work = "all_gather_copy_in");
    assert_true(rig_ordered(&r, input, copy));
    rig_no_race(&r);
    rig_close(&r);
}

/* R85, R86, R252: an event of the user takes the place of the stream's tail, once. */
static void post_optim_event_is_used_once(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_step(&r);
    rig_begin(&r);
    rig_ok(tsr_set_post_optim_event(r.e, rig_module(&r, "")));
    size_t input = RIG_FIND(&r, 0, .kind = TSR_COPY, .phase = "inputs");
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    rig_end(&r);
    assert_int_equal(rig_count(&r, "wait_stream on=default stream=copy_in"), 0);
    assert_int_equal(rig_count(&r, "wait_stream on=default stream=all_gather"), 0);
    size_t root = rig_event(&r, "root_pre_forward g=root", 0);
    assert_true(rig_matches(r.events[root + 1].text, "wait_event stream=copy_in"));
    assert_true(rig_matches(r.events[root + 2].text, "wait_event stream=all_gather"));
    assert_true(
        rig_ordered(&r, input, RIG_FIND(&r, 0, .kind = TSR_COPY, .work = "all_gather_copy_in")));
    rig_step(&r);
    assert_int_equal(rig_count(&r, "wait_stream stream=copy_in on=default"), 1);
    rig_close(&r);
}

/* R252: set on a child before lazy init: the child's own context is thrown away. */
static void child_context_is_discarded(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, "layers.0"), false));
    rig_step(&r);
    assert_int_equal(rig_count(&r, "final_callback last=true"), 1);
    rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, "layers.0"), false));
    rig_step(&r); /* now it is the root's */
    assert_int_equal(rig_count(&r, "final_callback last=false"), 1);
    rig_close(&r);
}

/* R87: inputs come over once, at the root; nothing is moved below it. */
static void inputs_move_once(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "h2d_input"), 2); /* ids, labels */
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "h2d_input", .stream = "default"), 2);
    rig_close(&r);
}

/* R88, R89: any state can be the root of an iteration, and only one is. */
static void inner_module_is_iteration_root(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2, .floats = true}, NULL, NULL);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "root_pre_forward"), 1);
    assert_int_equal(rig_count(&r, "root_post_forward g=root"), 1);
    rig_begin(&r);
    rig_ok(tsr_step_forward(r.e, 0, rig_module(&r, "layers.1"), false));
    rig_backward(&r, 0);
    assert_int_equal(rig_count(&r, "root_pre_forward g=layers.1"), 1);
    assert_int_equal(rig_count(&r, "root_pre_forward"), 1);
    assert_string_equal(rig_trace(&r, NULL, "AG RS"), "AG 1, AG 1, RS 1");
    rig_end(&r);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "root_pre_forward g=root"), 1);
    rig_no_race(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_forward_makes_the_root),
        cmocka_unit_test(part_first_is_refused),
        cmocka_unit_test(list_root_is_refused),
        cmocka_unit_test(root_keeps_its_parameters),
        cmocka_unit_test(meta_parameters_are_named),
        cmocka_unit_test(groups_are_named_after_their_modules),
        cmocka_unit_test(unshard_before_forward),
        cmocka_unit_test(list_state_stands_per_module),
        cmocka_unit_test(gathers_wait_for_the_optimizer),
        cmocka_unit_test(post_optim_event_is_used_once),
        cmocka_unit_test(child_context_is_discarded),
        cmocka_unit_test(inputs_move_once),
        cmocka_unit_test(inner_module_is_iteration_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
