/* test_rules_prefetch.c: forward hooks and prefetching, as traces in the notation of section 3.16:
 * AG gather, W copy-out, F reshard, RS reduction (R112-R119, R122-R137).
 */
#include "tests/rules/rules_order.h"

static const struct rig_setup two = {.shards = 2};
static const struct tsr_wrap_options yes = {.reshard = TSR_RESHARD_TRUE};
static const struct tsr_wrap_options no = {.reshard = TSR_RESHARD_FALSE};
static const struct tsr_wrap_options half = {.reshard = TSR_RESHARD_INT, .reshard_int = 2};

/* R112: what is registered after forward, by the option. */
static void registered_after_forward(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 4}, &yes, NULL);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "reshard g=layers.1 state=forward res=sharded"), 1);
    rig_close(&r);
    rig_ready(&r, (struct rig_setup){.shards = 4}, &no, NULL);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "reshard g=layers.1 state=forward res=keep"), 1);
    assert_int_equal(rig_count(&r, "unshard g=layers.1 state=pre_backward res=already"), 2);
    rig_close(&r);
    rig_ready(&r, (struct rig_setup){.shards = 4}, &half, NULL);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "reshard g=layers.1 state=forward res=post_forward"), 1);
    rig_close(&r);
}

/* R113: a reshard by hand, whatever the option says; backward gathers again. */
static void manual_reshard(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, &no, NULL);
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_ok(tsr_reshard(r.e, rig_module(&r, "layers.1")));
    assert_int_equal(rig_count(&r, "reshard g=layers.1 state=idle res=sharded"), 1);
    rig_backward(&r, 0);
    rig_end(&r);
    assert_string_equal(rig_trace(&r, "backward", "AG"), "AG 1");
    rig_close(&r);
}

/* R114: no hooks without gradients. R116: the order is kept, and goes with the next last backward.
 */
static void no_grad_forward(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_begin(&r);
    rig_ok(tsr_step_forward(r.e, 0, NULL, true));
    assert_int_equal(rig_count(&r, "register_pre_backward"), 0);
    assert_int_equal(rig_count(&r, "register_post_backward n=0"), 4);
    assert_int_equal(rig_count(&r, "record_post_forward g=root index=3"), 1);
    rig_end(&r);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "record_post_forward g=layers.0 index=4"), 1);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "record_post_forward g=layers.0 index=0"), 1);
    rig_close(&r);
}

/* R114, R115: hooks go on what needs a gradient: a layer's hidden states in and out, not ids. */
static void hooks_on_gradients(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "register_post_backward g=root n=0"), 1);
    assert_int_equal(rig_count(&r, "register_post_backward n=1"), 3);
    assert_int_equal(rig_count(&r, "register_pre_backward n=1"), 4);
    assert_int_equal(rig_count(&r, "post_backward g=root by=final_callback"), 1);
    assert_int_equal(rig_count(&r, "post_backward by=autograd"), 3);
    rig_close(&r);
}

/* R117: a module that runs twice is gathered and recorded twice. */
static void module_runs_twice(void **state)
{
    (void)state;
    struct rig r;
    const char *const run[] = {"a", "b", "a"};
    struct tsr_tree_node leaf[] = {rig_leaf("a", TSR_TREE_LINEAR, 8, 8),
                                   rig_leaf("b", TSR_TREE_LINEAR, 8, 8)};
    struct tsr_tree_config config = {.root = {.name = "",
                                              .type = TSR_TREE_SEQ,
                                              .n_children = 2,
                                              .children = leaf,
                                              .n_run = 3,
                                              .run = run},
                                     .in_dim = 8,
                                     .loss_mse = true};
    rig_engine(&r, two);
    rig_ok(tsr_model_tree(r.e, &config));
    rig_shard(&r, "a", &yes);
    rig_shard(&r, "b", &yes);
    rig_shard(&r, "", NULL);
    rig_start(&r);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "forward", "AG F"), "AG a, F a, AG b, F b, AG a, F a");
    assert_int_equal(rig_count(&r, "record_post_forward g=a"), 2);
    assert_int_equal(rig_count(&r, "reduce g=a"), 1); /* one gradient, one reduction */
    rig_close(&r);
}

static void open_list(struct rig *r, const char *const *run, size_t n_run)
{
    rig_abc(r, two, run, n_run);
    struct tsr_module *list[] = {rig_module(r, "a"), rig_module(r, "c")};
    rig_ok(tsr_fully_shard(r->e, list, 2, NULL));
    rig_shard(r, "", NULL);
    rig_start(r);
}

/* R118: a list is entered with its first module and left with its last. */
static void lists_enter_first_leave_last(void **state)
{
    (void)state;
    struct rig r;
    open_list(&r, NULL, 0);
    rig_step(&r);
    size_t in = rig_event(&r, "pre_forward g=a,_c", 0),
           out = rig_event(&r, "post_forward g=a,_c", 0);
    assert_int_equal(rig_count(&r, "pre_forward g=a,_c"), 1);
    assert_int_equal(rig_count(&r, "post_forward g=a,_c"), 1);
    assert_true(in < rig_event(&r, "fwd m=a", 0));
    assert_true(out > rig_event(&r, "fwd m=c", 0));
    rig_close(&r);
}

/* R119: one that never runs keeps the whole list from its post-forward; it starts anew next time.
 */
static void lists_that_do_not_finish(void **state)
{
    (void)state;
    struct rig r;
    const char *const run[] = {"a", "b"};
    open_list(&r, run, 2);
    for (int i = 0; i < 2; i++) {
        rig_step(&r);
        assert_int_equal(rig_count(&r, "pre_forward g=a,_c"), 1);
        assert_int_equal(rig_count(&r, "post_forward g=a,_c"), 0);
        assert_int_equal(rig_count(&r, "pre_backward g=a,_c"), 0);
        assert_int_equal(rig_count(&r, "reduce g=a,_c params=[a.weight]"), 1);
    }
    rig_close(&r);
}

/* R123: registering a method. */
static void forward_methods(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_ok(tsr_register_forward_method(r.e, rig_module(&r, "layers.0.up"), "no_such_method"));
    rig_refused(tsr_register_forward_method(r.e, rig_module(&r, "layers.0"), "no_such_method"),
                TSR_EVALUE, "does not have a method no_such_method");
    rig_close(&r);
}

static void set_list(struct rig *r, bool forward, const char *of, const char *const *names,
                     size_t n)
{
    struct tsr_module *list[4];
    for (size_t i = 0; i < n; i++)
        list[i] = rig_module(r, names[i]);
    if (forward)
        rig_ok(tsr_set_forward_prefetch(r->e, rig_module(r, of), list, n));
    else
        rig_ok(tsr_set_backward_prefetch(r->e, rig_module(r, of), list, n));
}

/* R124, R125: after the module's own copy-out, in list order. */
static void forward_lists(void **state)
{
    (void)state;
    static const char *const next[] = {"layers.0", "layers.1", "layers.2", "layers.3"};
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2, .layers = 4}, NULL, NULL);
    for (int i = 0; i < 3; i++)
        set_list(&r, true, next[i], next + i + 1, 1);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "forward", "AG W F"),
                        "AG root, W root, AG 0, W 0, AG 1, F 0, W 1, AG 2, F 1, W 2, AG 3, F 2, "
                        "W 3, F 3");
    set_list(&r, true, "layers.0", next + 1, 2);
    set_list(&r, true, "layers.1", next + 2, 2);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "forward", "AG F"),
                        "AG root, AG 0, AG 1, AG 2, F 0, AG 3, F 1, F 2, F 3");
    static const char *const swapped[] = {"layers.2", "layers.1"};
    set_list(&r, true, "layers.0", swapped, 2);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "forward", "AG"), "AG root, AG 0, AG 2, AG 1, AG 3");
    rig_no_race(&r);
    rig_close(&r);
}

/* R126, R127, R132, R133: the default backward, from the first iteration on. */
static void default_backward(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        rig_step(&r);
        assert_string_equal(rig_trace(&r, "backward", "AG W F RS"),
                            "AG 2, W 2, AG 1, F 2, RS 2, W 1, AG 0, F 1, RS 1, W 0, F 0, RS 0, "
                            "F root, RS root");
    }
    assert_int_equal(rig_count(&r, "backward_prefetch g=root index=3 target=layers.2"), 1);
    assert_int_equal(rig_count(&r, "backward_prefetch g=layers.0 index=0 target=null"), 1);
    rig_close(&r);
}

static int counts(const struct tsr_wrap_options *layers, const struct tsr_wrap_options *root)
{
    struct rig r;
    int n = 0;
    rig_ready(&r, (struct rig_setup){.shards = 4, .layers = 5}, layers, root);
    rig_step(&r);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 6);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .phase = "forward"), 6);
    n = RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .phase = "backward");
    rig_close(&r);
    return n;
}

/* R134: L = 5 layers: L, L + 1, L + 1, 0 gathers in backward; always L + 1 reductions. */
static void backward_counts(void **state)
{
    (void)state;
    assert_int_equal(counts(NULL, NULL), 5);
    assert_int_equal(counts(&yes, &yes), 6);
    assert_int_equal(counts(&half, &half), 6);
    assert_int_equal(counts(&no, &no), 0);
}

/* R128, R129, R130: a list takes the place of the default, for that module, until it is empty. */
static void backward_lists(void **state)
{
    (void)state;
    static const char *const names[] = {"layers.3", "layers.2", "layers.1", "layers.0"};
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2, .layers = 4}, &yes, NULL);
    set_list(&r, false, "layers.3", names + 1, 2);
    set_list(&r, false, "layers.2", names + 2, 2);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "backward", "AG POST"),
                        "AG 3, AG 2, AG 1, POST 3, AG 0, POST 2, POST 1, POST 0, POST root");
    assert_int_equal(rig_count(&r, "backward_prefetch g=layers.3"), 0);
    assert_int_equal(rig_count(&r, "backward_prefetch g=layers.1"), 1);
    set_list(&r, false, "layers.3", NULL, 0);
    set_list(&r, false, "layers.2", NULL, 0);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "backward", "AG"), "AG 3, AG 2, AG 1, AG 0");
    rig_no_race(&r);
    rig_close(&r);
}

/* R131, R149: gathered, never used: waited for and dropped at the end. */
static void wrong_prefetch(void **state)
{
    (void)state;
    static const char *const skipped[] = {"layers.0"};
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2, .floats = true}, &yes, NULL);
    rig_step(&r);
    set_list(&r, false, "layers.1", skipped, 1);
    rig_begin(&r);
    rig_ok(tsr_step_forward(r.e, 0, rig_module(&r, "layers.1"), false));
    rig_backward(&r, 0);
    assert_int_equal(rig_count(&r, "prefetch g=layers.0 pass=backward"), 1);
    size_t done = rig_event(&r, "finalize_backward g=layers.0 pending_unshard=true", 0);
    assert_true(rig_matches(r.events[done + 1].text, "wait_event stream=default")); /* W15 */
    assert_int_equal(rig_count(&r, "reduce g=layers.0"), 0);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_ALL_GATHER), 0);
    rig_end(&r);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "unshard g=layers.0 state=forward res=issue"), 1);
    rig_no_race(&r);
    rig_close(&r);
}

/* Q19: a backward without a forward before it gathers into memory that a dropped gather may still
 * write. What is kept, gathers on the compute stream and the host's wait have no such race. */
static void gather_after_a_stray_one(void **state)
{
    (void)state;
    static const char *const skipped[] = {"layers.0"};
    enum { PLAIN, NOT_LAST, ASYNC, OFFLOADED, FORWARD_BETWEEN, N };
    for (int how = 0; how < N; how++) {
        struct tsr_wrap_options o = yes;
        struct rig r;
        o.offload = how == OFFLOADED ? TSR_OFFLOAD_CPU_PINNED : TSR_OFFLOAD_NONE;
        rig_ready(&r, (struct rig_setup){.shards = 2, .micro = 2, .floats = true}, &o, NULL);
        rig_step(&r);
        set_list(&r, false, "layers.1", skipped, 1);
        if (how == ASYNC)
            rig_ok(tsr_set_unshard_async_op(r.e, rig_module(&r, ""), true));
        rig_begin(&r);
        rig_ok(tsr_step_forward(r.e, 0, rig_module(&r, "layers.1"), false));
        if (how != FORWARD_BETWEEN)
            rig_ok(tsr_step_forward(r.e, 1, rig_module(&r, "layers.1"), false));
        rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, "layers.1"), how != NOT_LAST));
        rig_backward(&r, 0);
        if (how == FORWARD_BETWEEN)
            rig_ok(tsr_step_forward(r.e, 1, rig_module(&r, "layers.1"), false));
        assert_null(tsr_inherited_race(r.e, TSR_RACE_STRAY_GATHER));
        rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, "layers.1"), true));
        rig_backward(&r, 1);
        rig_end(&r);
        bool races = tsr_inherited_race(r.e, TSR_RACE_STRAY_GATHER) != NULL;
        assert_int_equal(races, how == PLAIN);
        rig_close(&r);
    }
}

/* R135: lists of modules that are wrapped only. */
static void lists_want_wrapped_modules(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    struct tsr_module *list[] = {rig_module(&r, "layers.1"), rig_module(&r, "layers.1.up")};
    rig_refused(tsr_set_forward_prefetch(r.e, rig_module(&r, ""), list, 2), TSR_EVALUE,
                "Expects FSDPModule but got");
    rig_refused(tsr_set_backward_prefetch(r.e, rig_module(&r, ""), list, 2), TSR_EVALUE,
                "layers.1.up");
    rig_close(&r);
}

/* R136: no gathers in backward, not even prefetched; the reduction stays. The embedding's backward
 * does not read its weight. */
static void no_unshard_in_backward(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, two);
    rig_shard(&r, "emb", &yes);
    rig_shard(&r, "layers.0", &yes);
    rig_shard(&r, "", NULL);
    rig_ok(tsr_set_unshard_in_backward(r.e, rig_module(&r, "emb"), false));
    rig_start(&r);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, "backward", "AG"), "AG 0");
    assert_int_equal(rig_count(&r, "unshard g=emb state=pre_backward res=skipped"), 2);
    assert_int_equal(rig_count(&r, "reduce g=emb"), 1);
    rig_close(&r);
}

/* R137, R142: two forwards, one backward: the order runs out; each group is reduced once. */
static void two_forwards_one_backward(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t both[] = {0, 1};
    rig_ready(&r, (struct rig_setup){.shards = 2, .micro = 2}, NULL, NULL);
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_forward(&r, 1);
    rig_ok(tsr_step_backward(r.e, both, 2));
    rig_end(&r);
    assert_string_equal(rig_trace(&r, "backward", "AG RS"),
                        "AG 2, AG 1, AG 0, AG 2, AG 1, RS 2, AG 0, RS 1, RS 0, RS root");
    rig_close(&r);
    /* a second backward of another forward, after the last backward of this one */
    rig_ready(&r, (struct rig_setup){.shards = 2, .micro = 2}, NULL, NULL);
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_forward(&r, 1);
    rig_backward(&r, 1);
    rig_backward(&r, 0);
    rig_end(&r);
    assert_int_equal(rig_count(&r, "backward_prefetch index=null target=null"), 4);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 8);
    rig_no_race(&r);
    rig_close(&r);
}

/* Section 3.4: without a module that contains both, each is its own root, and the first would
 * gather what no forward has set up. Once it has run, as in backward, it can be prefetched. */
static void prefetch_of_another_root(void **state)
{
    (void)state;
    static const char *const next[] = {"layers.1"}, *const before[] = {"layers.0"};
    for (int shards = 2; shards >= 1; shards--) {
        struct rig r;
        rig_open(&r, (struct rig_setup){.shards = (uint32_t)shards});
        for (unsigned i = 0; i < 2; i++)
            rig_shard(&r, i ? "layers.1" : "layers.0", NULL);
        rig_start(&r);
        set_list(&r, false, "layers.1", before, 1);
        rig_step(&r);
        assert_int_equal(rig_count(&r, "prefetch g=layers.0 pass=backward"), 1);
        rig_close(&r);
        rig_open(&r, (struct rig_setup){.shards = (uint32_t)shards});
        for (unsigned i = 0; i < 2; i++)
            rig_shard(&r, i ? "layers.1" : "layers.0", NULL);
        rig_start(&r);
        set_list(&r, true, "layers.0", next, 1);
        rig_begin(&r);
        tsr_status status = tsr_step_forward(r.e, 0, NULL, false);
        if (shards == 1) /* nothing is gathered */
            rig_ok(status);
        else
            rig_refused(status, TSR_EATTRIBUTE, "no attribute 'all_gather_copy_in_stream'");
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registered_after_forward),
        cmocka_unit_test(manual_reshard),
        cmocka_unit_test(no_grad_forward),
        cmocka_unit_test(hooks_on_gradients),
        cmocka_unit_test(module_runs_twice),
        cmocka_unit_test(lists_enter_first_leave_last),
        cmocka_unit_test(lists_that_do_not_finish),
        cmocka_unit_test(forward_methods),
        cmocka_unit_test(forward_lists),
        cmocka_unit_test(default_backward),
        cmocka_unit_test(backward_counts),
        cmocka_unit_test(backward_lists),
        cmocka_unit_test(wrong_prefetch),
        cmocka_unit_test(gather_after_a_stray_one),
        cmocka_unit_test(lists_want_wrapped_modules),
        cmocka_unit_test(prefetch_of_another_root),
        cmocka_unit_test(no_unshard_in_backward),
        cmocka_unit_test(two_forwards_one_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
