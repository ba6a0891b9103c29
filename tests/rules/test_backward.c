/* test_rules_backward.c: the backward hooks and the final callback (R139-R152), checkpointing
 * (R185-R188).
 */
#include "tests/rules/rules_order.h"

enum { S = 53 };

static const struct rig_setup two = {.shards = 2};

/* R139: of two outputs (an attention module and its weights) the second hook does nothing. */
static void second_output_repeats(void **state)
{
    (void)state;
    struct rig r;
    rig_llama(&r, (struct rig_setup){.shards = 2, .eager = true});
    rig_shard(&r, "model.layers.1.self_attn", NULL);
    rig_shard(&r, "", NULL);
    rig_start(&r);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "register_pre_backward g=model.layers.1.self_attn n=2"), 1);
    size_t first = rig_event(&r, "pre_backward g=model.layers.1.self_attn repeat=false", 0);
    size_t second = rig_event(&r, "pre_backward g=model.layers.1.self_attn repeat=true", 0);
    assert_true(first < second);
    /* the root's prefetch, and the first hook */
    assert_int_equal(rig_count(&r, "unshard g=model.layers.1.self_attn state=pre_backward"), 2);
    rig_close(&r);
}

/* R139: after its post-backward the pre-backward of another forward's graph runs again. */
static void other_graph_starts_again(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t both[] = {0, 1};
    rig_ready(&r, (struct rig_setup){.shards = 2, .micro = 2}, NULL, NULL);
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_forward(&r, 1);
    rig_ok(tsr_step_backward(r.e, both, 2));
    assert_int_equal(rig_count(&r, "pre_backward g=layers.1 repeat=false"), 2);
    assert_int_equal(rig_count(&r, "post_backward g=layers.1 by=autograd"), 2);
    assert_int_equal(rig_count(&r, "reduce g=layers.1"), 1);
    rig_close(&r);
}

/* R140, R141: a module's post-backward is between its own last kernel and the previous module's
 * pre-backward; the root, whose input is ids, waits for the end. */
static void post_backward_comes_after_the_gradients(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_step(&r);
    size_t post = rig_event(&r, "post_backward g=layers.1 by=autograd", 0);
    assert_true(rig_event(&r, "bwd m=layers.1.norm", 0) < post);
    assert_true(post < rig_event(&r, "pre_backward g=layers.0", 0));
    assert_true(rig_event(&r, "bwd m=emb", 0) < rig_event(&r, "final_callback", 0));
    assert_true(rig_event(&r, "final_callback", 0) <
                rig_event(&r, "post_backward g=root by=final_callback", 0));
    rig_close(&r);
    /* with a float input that needs no gradient the first layer waits, too; in state order */
    rig_ready(&r, (struct rig_setup){.shards = 2, .floats = true}, NULL, NULL);
    rig_ok(tsr_param_freeze(r.e, "inp.*"));
    rig_step(&r);
    assert_true(rig_event(&r, "post_backward g=root by=final_callback", 0) <
                rig_event(&r, "post_backward g=layers.0 by=final_callback", 0));
    assert_int_equal(rig_count(&r, "post_backward g=layers.1 by=autograd"), 1);
    rig_close(&r);
}

/* R143: the full parameters are gone before the input of the reduction is made. */
static void reshard_before_reduce(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, two, NULL, NULL);
    rig_step(&r);
    size_t input =
        RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "Reduce Scatter", .group = "layers.1");
    /* only the root's, padded over two ranks: (64 + 4 + 64) x 2 elements */
    assert_int_equal(rig_level(&r, input, TSR_CAT_UNSHARDED_PARAM), 4 * 2 * 132);
    rig_close(&r);
}

/* R144, R150: what has no gradient is left out, and frozen parameters delay nothing. */
static void unused_parameters_shrink_the_reduction(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 4});
    rig_ok(tsr_param_freeze(r.e, "layers.1.up.weight"));
    rig_wrap(&r, NULL, NULL);
    rig_start(&r);
    rig_step(&r);
    const struct tsr_instr *rs =
        rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_REDUCE_SCATTER, .group = "layers.1"));
    assert_int_equal(rs->bytes, 4 * 4 * (S - 24));
    const struct tsr_instr *ag =
        rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_GATHER, .group = "layers.1"));
    assert_int_equal(ag->bytes, 4 * 4 * S);
    assert_int_equal(rig_count(&r, "post_backward g=layers.1 by=autograd"), 1);
    rig_close(&r);
}

/* R145, R151: a layer that does not run: no collective of its, the others as ever. */
static void unused_modules(void **state)
{
    (void)state;
    struct rig r;
    const char *const run[] = {"a", "c"};
    rig_abc(&r, two, run, 2);
    rig_shard(&r, "a", NULL);
    rig_shard(&r, "b", NULL);
    rig_shard(&r, "c", NULL);
    rig_shard(&r, "", NULL);
    rig_start(&r);
    rig_step(&r);
    assert_string_equal(rig_trace(&r, NULL, "AG RS"), "AG a, AG c, AG c, AG a, RS c, RS a");
    assert_int_equal(rig_count(&r, "post_backward g=b by=final_callback"), 1);
    rig_close(&r);
}

/* R146: one callback per backward. */
static void one_final_callback(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2, .micro = 2}, NULL, NULL);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "queue_final_callback g=root"), 2);
    assert_int_equal(rig_count(&r, "queue_final_callback"), 2);
    assert_int_equal(rig_count(&r, "final_callback"), 2);
    assert_int_equal(rig_count(&r, "final_callback_end"), 2);
    rig_close(&r);
}

static int waits_after(struct rig *r, const char *event, int nth)
{
    int n = 0;
    size_t end = rig_event(r, "final_callback_end", nth);
    for (size_t i = rig_event(r, event, nth); i < end; i++)
        n += rig_matches(r->events[i].text, "wait_event stream=default");
    return n;
}

/* R147: not the last: no waits, the order stays, the last input stays. R148: the last one waits. */
static void last_backward_finalizes(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2, .micro = 2}, NULL, NULL);
    rig_begin(&r);
    rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, ""), false));
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    assert_int_equal(rig_count(&r, "finalize_backward"), 0);
    /* after the root's own reduction, which waits for the one before it (W9) */
    assert_int_equal(waits_after(&r, "sharded_grad g=root", 0), 0);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_REDUCE_SCATTER), 4 * 2 * 132);
    rig_ok(tsr_set_is_last_backward(r.e, rig_module(&r, ""), true));
    rig_forward(&r, 1);
    assert_int_equal(rig_count(&r, "record_post_forward g=layers.0 index=4"), 1);
    rig_backward(&r, 1);
    assert_int_equal(rig_count(&r, "finalize_backward"), 4);
    assert_int_equal(waits_after(&r, "sharded_grad g=root", 1), 4 + 1); /* W10 each, W14 */
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_REDUCE_SCATTER), 0);
    rig_end(&r);
    size_t opt = RIG_FIND(&r, 0, .kind = TSR_OP, .phase = "optimizer");
    for (int i = 0; i < RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER); i++)
        assert_true(rig_ordered(&r, RIG_FIND(&r, i, .kind = TSR_REDUCE_SCATTER), opt));
    rig_no_race(&r);
    rig_close(&r);
}

struct grad_hook {
    int n;
    char last[64];
};

static void on_grad(struct tsr_engine *e, struct tsr_param *param, void *user)
{
    struct grad_hook *h = user;
    struct tsr_param_info info = tsr_param_info(param, tsr_module_root(e));
    h->n++;
    snprintf(h->last, sizeof h->last, "%s", info.fqn);
}

/* R152: once per parameter and reduction, after the gradient is there. */
static void gradient_hooks(void **state)
{
    (void)state;
    struct rig r;
    struct grad_hook h = {0};
    rig_ready(&r, (struct rig_setup){.shards = 2, .micro = 2}, NULL, NULL);
    rig_ok(tsr_register_post_accumulate_grad_hook(r.e, "layers.1.up.*", on_grad, &h));
    rig_begin(&r);
    rig_forward(&r, 0);
    assert_int_equal(h.n, 0);
    rig_backward(&r, 0);
    assert_int_equal(h.n, 2); /* weight and bias */
    assert_string_equal(h.last, "layers.1.up.bias");
    rig_ok(tsr_set_requires_gradient_sync(r.e, rig_module(&r, ""), false, true));
    rig_forward(&r, 1);
    rig_backward(&r, 1);
    assert_int_equal(h.n, 2); /* nothing was reduced */
    rig_close(&r);
}

static void run_checkpointed(struct rig *r, bool outside, const char *module)
{
    rig_open(r, two);
    if (module) {
        rig_ok(tsr_checkpoint(r->e, rig_module(r, "layers.0"), outside, true));
        rig_ok(tsr_checkpoint(r->e, rig_module(r, "layers.1"), outside, true));
    }
    rig_wrap(r, NULL, NULL);
    rig_start(r);
    rig_step(r);
}

/* R185, R188: recomputing gathers and reshards nothing more; the order is that without. */
static void recomputation_keeps_the_order(void **state)
{
    (void)state;
    for (int outside = 0; outside < 2; outside++) {
        struct rig plain, r;
        run_checkpointed(&plain, false, NULL);
        run_checkpointed(&r, outside, "");
        char want[1024];
        snprintf(want, sizeof want, "%s", rig_trace(&plain, NULL, "AG W F RS"));
        assert_string_equal(rig_trace(&r, NULL, "AG W F RS"), want);
        assert_int_equal(rig_count(&r, "fwd m=layers.1.up recompute=true"), 1);
        assert_int_equal(rig_count(&r, "pre_forward g=layers.1 recompute=true"), outside);
        rig_no_race(&r);
        rig_close(&plain);
        rig_close(&r);
    }
}

/* R186: a wrapped module inside a recomputed one unshards under FORWARD, reshards nothing and is
 * not recorded again. R187: neither two forwards nor this nesting is refused. */
static void nested_recomputation(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t both[] = {0, 1};
    rig_open(&r, (struct rig_setup){.shards = 2, .micro = 2});
    rig_ok(tsr_checkpoint(r.e, rig_module(&r, "layers.1"), true, true));
    rig_shard(&r, "layers.1.up", NULL);
    rig_shard(&r, "layers.1.down", NULL);
    rig_wrap(&r, NULL, NULL);
    rig_start(&r);
    rig_begin(&r);
    rig_forward(&r, 0);
    int n_recorded = rig_count(&r, "record_post_forward");
    assert_int_equal(n_recorded, 6);
    rig_forward(&r, 1);
    rig_ok(tsr_step_backward(r.e, both, 2));
    rig_end(&r);
    assert_int_equal(rig_count(&r, "record_post_forward"), 2 * n_recorded);
    assert_int_equal(rig_count(&r, "pre_forward g=layers.1.up recompute=false"), 3);
    /* the other micro-batch: its state is in pre-backward until the end */
    assert_int_equal(rig_count(&r, "pre_forward g=layers.1.up recompute=true"), 1);
    size_t again = rig_event(&r, "pre_forward g=layers.1.up", 2);
    size_t unshard = again;
    while (!rig_matches(r.events[unshard].text, "unshard g=layers.1.up"))
        unshard++;
    assert_true(rig_matches(r.events[unshard].text, "unshard state=forward"));
    size_t post = rig_event(&r, "post_forward g=layers.1.up", 2);
    for (size_t i = again; i < post + 2; i++)
        assert_false(rig_matches(r.events[i].text, "reshard g=layers.1.up"));
    assert_int_equal(rig_count(&r, "reduce"), 6);
    rig_no_race(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_output_repeats),
        cmocka_unit_test(other_graph_starts_again),
        cmocka_unit_test(post_backward_comes_after_the_gradients),
        cmocka_unit_test(reshard_before_reduce),
        cmocka_unit_test(unused_parameters_shrink_the_reduction),
        cmocka_unit_test(unused_modules),
        cmocka_unit_test(one_final_callback),
        cmocka_unit_test(last_backward_finalizes),
        cmocka_unit_test(gradient_hooks),
        cmocka_unit_test(recomputation_keeps_the_order),
        cmocka_unit_test(nested_recomputation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
