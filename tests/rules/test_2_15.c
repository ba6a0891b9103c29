/* test_rules_2_15.c: what PyTorch 2.15 does otherwise (the rules marked [2.15]), and that 2.11 does
 * not (R53, R54, R69, R70, R83, R120, R121, R138, R158, R174, R175, R194, R200-R202).
 */
#include "tests/rules/rules_order.h"

enum { S = 53, W = 4 };

static const struct rig_setup four = {.shards = W, .version = TSR_TORCH_2_15};
static const struct rig_setup old = {.shards = W};
static const struct tsr_wrap_options bf16 = {.mp = {.param = TSR_BF16}};

static void start(struct rig *r, struct rig_setup setup, const struct tsr_wrap_options *options)
{
    rig_ready(r, setup, options, options);
}

static const struct tsr_instr *scatter(struct rig *r, const char *group)
{
    return rig_at(r, RIG_FIND(r, 0, .kind = TSR_REDUCE_SCATTER, .group = group));
}

/* R53: the same ranks under two identities. */
static void one_mesh_object_per_process_group(void **state)
{
    (void)state;
    static const int a, b;
    struct tsr_param_mesh meshes[] = {{"**.up.*", &a, 2, 1, 2, 2}, {"**.down.*", &b, 2, 1, 2, 2}};
    struct tsr_wrap_options o = {.n_param_meshes = 2, .param_meshes = meshes};
    struct rig r;
    rig_open(&r, four);
    rig_refused(rig_try_shard(&r, "layers.0", &o), TSR_EVALUE, "layers.0.down.weight");
    rig_close(&r);
    meshes[1].identity = &a;
    rig_open(&r, four);
    rig_shard(&r, "layers.0", &o);
    rig_close(&r);
    rig_open(&r, old);
    assert_int_equal(rig_try_shard(&r, "layers.0", &o), TSR_EVALUE);
    rig_close(&r);
}

/* The up projections (108 elements, 54 padded per rank of two) on halves of the mesh. */
static void open_meshes(struct rig *r)
{
    static const struct tsr_param_mesh meshes[] = {{"**.up.*", NULL, 2, 1, 1, 0}};
    static const struct tsr_wrap_options o = {.n_param_meshes = 1, .param_meshes = meshes};
    rig_ready(r, four, &o, NULL);
}

/* R54: one group per mesh, in the order in which they were met. */
static void meshes_make_groups(void **state)
{
    (void)state;
    struct rig r;
    open_meshes(&r);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "all_gather g=layers.1"), 4); /* two groups, two passes */
    size_t first = rig_event(&r, "all_gather g=layers.1", 0);
    size_t second = rig_event(&r, "all_gather g=layers.1", 1);
    assert_true(rig_matches(r.events[first].text, "all_gather n_in=26 n_out=104"));
    assert_true(rig_matches(r.events[second].text, "all_gather n_in=54 n_out=108"));
    assert_int_equal(
        rig_count(&r, "reduce g=layers.1 params=[layers.1.up.weight,layers.1.up.bias]"), 1);
    assert_int_equal(
        rig_count(&r, "reduce g=layers.1 params=[layers.1.norm.weight,layers.1.down.weight]"), 1);
    rig_step(&r);
    rig_no_race(&r);
    rig_close(&r);
}

/* R69: without a reduce dtype, the dtype that the parameter has. */
static void reduce_in_the_original_dtype(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, &bf16);
    rig_step(&r);
    assert_int_equal(scatter(&r, "layers.1")->dtype, TSR_F32);
    assert_int_equal(scatter(&r, "layers.1")->bytes, 4 * W * S);
    rig_close(&r);
    start(&r, old, &bf16);
    rig_step(&r);
    assert_int_equal(scatter(&r, "layers.1")->dtype, TSR_BF16);
    rig_close(&r);
}

/* R70: bf16 and f32 gradients go together, in f32. R174: 2.11 refuses them. */
static void mixed_gradients_are_promoted(void **state)
{
    (void)state;
    struct rig r;
    /* of two modules that scale, one keeps its precision */
    for (int new = 0; new < 2; new ++) {
        struct tsr_tree_node leaf[] = {
            {.name = "a", .type = TSR_TREE_SCALE, .n_dims = 1, .dims = {8}},
            {.name = "b", .type = TSR_TREE_SCALE, .n_dims = 1, .dims = {8}}};
        static const char *const second[] = {"b.weight"};
        struct tsr_tree_config config = {
            .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 2, .children = leaf},
            .in_dim = 8,
            .loss_mse = true};
        struct tsr_wrap_options mixed = {
            .mp = {.param = TSR_BF16}, .n_full_precision = 1, .full_precision = second};
        rig_engine(&r, new ? four : old);
        rig_ok(tsr_model_tree(r.e, &config));
        rig_shard(&r, "", &mixed);
        rig_start(&r);
        rig_begin(&r);
        rig_forward(&r, 0);
        uint32_t micro = 0;
        tsr_status status = tsr_step_backward(r.e, &micro, 1);
        if (new) {
            rig_ok(status);
            assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 1);
            assert_int_equal(scatter(&r, NULL)->dtype, TSR_F32);
            assert_int_equal(scatter(&r, NULL)->bytes, 4 * (8 + 8));
        } else {
            rig_refused(status, TSR_EASSERT, "uniform gradient dtype but got");
        }
        rig_close(&r);
    }
}

/* R83: a tie that two groups tear apart. */
static void torn_ties_are_refused(void **state)
{
    (void)state;
    for (int new = 0; new < 2; new ++) {
        struct rig r;
        rig_open(&r, new ? four : old);
        rig_ok(tsr_param_tie(r.e, "layers.1.up.weight", "layers.0.up.weight"));
        rig_wrap(&r, NULL, NULL);
        rig_start(&r);
        rig_begin(&r);
        tsr_status status = tsr_step_forward(r.e, 0, NULL, false);
        if (new) {
            rig_refused(status, TSR_EVALUE, "layers.1.up.weight");
            assert_non_null(strstr(tsr_error_text(), "layers.0.up.weight"));
        } else {
            rig_ok(status);
        }
        rig_close(&r);
    }
}

static void open_list(struct rig *r, const char *const *run, size_t n_run,
                      const struct tsr_wrap_options *list_options)
{
    rig_abc(r, four, run, n_run);
    struct tsr_module *list[] = {rig_module(r, "a"), rig_module(r, "c")};
    rig_ok(tsr_fully_shard(r->e, list, 2, list_options));
    rig_shard(r, "", NULL);
    rig_start(r);
}

/* R120: the root's post-forward completes a list. */
static void unfinished_lists_are_completed(void **state)
{
    (void)state;
    static const char *const run[] = {"a", "b"};
    struct rig r;
    open_list(&r, run, 2, NULL);
    for (int i = 0; i < 2; i++) {
        rig_step(&r);
        size_t end = rig_event(&r, "root_post_forward g=root", 0);
        assert_true(rig_event(&r, "reshard g=a,_c state=forward res=sharded", 0) < end);
        assert_true(rig_event(&r, "record_post_forward g=a,_c", 0) < end);
        assert_int_equal(rig_count(&r, "register_pre_backward g=a,_c n=1"), 1);
        assert_int_equal(rig_count(&r, "reduce g=a,_c params=[a.weight]"), 1);
    }
    rig_close(&r);
}

/* R121: the input of each is cast. */
static void inputs_of_every_listed_module(void **state)
{
    (void)state;
    struct rig r;
    open_list(&r, NULL, 0, &bf16); /* a and c compute in bf16, b in f32: 2.11 would refuse c */
    rig_begin(&r);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_ERUNTIME, "b.weight");
    rig_close(&r);
    static const struct tsr_wrap_options out = {.mp = {.param = TSR_BF16, .output = TSR_F32}};
    open_list(&r, NULL, 0, &out);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .work = "cast", .phase = "forward"), 4);
    assert_int_equal(rig_count(&r, "register_post_backward g=a,_c"), 1);
    rig_close(&r);
}

/* R138: of two groups the second one prefetches, all of the module before. */
static void second_group_prefetches(void **state)
{
    (void)state;
    struct rig r;
    open_meshes(&r);
    rig_step(&r);
    assert_int_equal(rig_count(&r, "backward_prefetch g=layers.2"), 1);
    size_t at = rig_event(&r, "backward_prefetch g=layers.2 target=layers.1", 0);
    size_t second = rig_event(&r, "wait_unshard g=layers.2 state=pre_backward", 1);
    assert_true(second < at);
    size_t own = rig_event(&r, "pre_backward g=layers.1", 0);
    assert_true(rig_event(&r, "prefetch g=layers.1 pass=backward", 1) < own);
    assert_int_equal(rig_count(&r, "all_gather g=layers.1"), 4);
    rig_close(&r);
}

/* R158: at most K inputs stay; the collectives are the same. */
static void more_reduce_inputs(void **state)
{
    (void)state;
    uint64_t hash[3];
    for (int k = 1; k <= 3; k++) {
        struct rig r;
        struct rig_setup s = four;
        s.layers = 6;
        rig_open(&r, s);
        rig_wrap(&r, NULL, NULL);
        rig_ok(tsr_set_reduce_scatter_max_input_buffers(r.e, rig_module(&r, ""), k, true));
        rig_start(&r);
        rig_step(&r);
        uint64_t most = 0;
        size_t post0 = r.events[rig_event(&r, "post_backward g=layers.0", 0)].at;
        for (size_t i = 0; i < post0; i++)
            most = tsr_max_u64(most, rig_level(&r, i, TSR_CAT_REDUCE_SCATTER));
        assert_int_equal(most, k * 4 * W * S);
        assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_REDUCE_SCATTER), 0);
        hash[k - 1] = TSR_HASH_INIT;
        for (size_t i = 0; i < r.now.n_instrs; i++)
            if (rig_at(&r, i)->kind == TSR_REDUCE_SCATTER)
                hash[k - 1] = tsr_hash_u64(hash[k - 1], rig_at(&r, i)->bytes);
        assert_int_equal(hash[k - 1], hash[0]);
        rig_no_race(&r);
        rig_refused(tsr_set_reduce_scatter_max_input_buffers(r.e, rig_module(&r, ""), 0, true),
                    TSR_EVALUE, "0");
        rig_close(&r);
    }
}

/* Groups of one state each add an input: only the last of them waits for what is over the cap. */
static void inputs_of_many_groups(void **state)
{
    (void)state;
    enum { LAYERS = 8, GROUPS = 2 * LAYERS + 3, CAP = 2 * LAYERS };
    static const struct tsr_param_mesh meshes[] = {
        {"**.up.*", NULL, 2, 1, 1, 0}, {"out.*", NULL, 2, 1, 1, 0}, {"emb.*", NULL, 2, 2, 1, 0}};
    static const struct tsr_wrap_options o = {.n_param_meshes = 3, .param_meshes = meshes};
    struct rig_setup s = four;
    struct rig r;
    s.layers = LAYERS;
    rig_open(&r, s);
    rig_wrap(&r, &o, &o);
    rig_ok(tsr_set_reduce_scatter_max_input_buffers(r.e, rig_module(&r, ""), CAP, true));
    rig_start(&r);
    rig_step(&r);
    size_t n = 0, most = 0;
    for (size_t i = 0; i < r.now.n_instrs; i++) {
        const struct tsr_instr *instr = rig_at(&r, i);
        if (instr->category == TSR_CAT_REDUCE_SCATTER && instr->kind == TSR_ALLOC)
            most = ++n > most ? n : most;
        n -= instr->category == TSR_CAT_REDUCE_SCATTER && instr->kind == TSR_FREE;
    }
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), GROUPS);
    assert_int_equal(n, 0);
    assert_int_equal(most, CAP + 2); /* of the root's three groups two did not wait */
    rig_step(&r);
    rig_no_race(&r);
    rig_close(&r);
}

/* R175: zeros of parameters that were not used; the buffer has its full size. */
static void unused_parameters_enter(void **state)
{
    (void)state;
    static const char *const run[] = {"a", "b"};
    struct rig r;
    open_list(&r, run, 2, NULL);
    rig_ok(tsr_set_reduce_scatter_unused_params(r.e, rig_module(&r, ""), true, true));
    rig_step(&r);
    assert_int_equal(rig_count(&r, "reduce g=a,_c params=[a.weight,c.weight]"), 1);
    assert_int_equal(scatter(&r, "a, c")->bytes, 4 * 2 * 64);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_FILL, .group = "a, c"), 1);
    rig_close(&r);
}

static void on_grad(struct tsr_engine *e, struct tsr_param *param, void *user)
{
    (void)e;
    (void)param;
    ++*(int *)user;
}

/* R194: a hook that reads a gradient makes its copy to the host blocking. */
static void hooks_block_the_copy(void **state)
{
    (void)state;
    for (int new = 0; new < 2; new ++) {
        struct tsr_wrap_options o = {.offload = TSR_OFFLOAD_CPU_PINNED};
        struct rig r;
        int n = 0;
        rig_open(&r, new ? four : old);
        rig_wrap(&r, &o, &o);
        rig_ok(tsr_register_post_accumulate_grad_hook(r.e, "layers.1.up.*", on_grad, &n));
        rig_start(&r);
        rig_step(&r);
        assert_int_equal(n, 2);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_HOST_READ), new ? 2 : 0);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_HOST_WAIT), new ? 13 : 15);
        rig_close(&r);
    }
}

/* Q3: what a hook has seen on one dimension is kept until the next reduction; 2.11 drops it at
 * once, which is said. */
static void hooked_output_is_kept(void **state)
{
    (void)state;
    for (int new = 0; new < 2; new ++) {
        struct tsr_wrap_options o = {.mp = {.param = TSR_BF16, .reduce = TSR_BF16}};
        struct rig r;
        rig_open(&r, new ? four : old);
        rig_wrap(&r, &o, &o);
        rig_ok(tsr_set_all_reduce_hook(r.e, rig_module(&r, "layers.1"), NULL, NULL, false));
        rig_start(&r);
        assert_null(tsr_inherited_race(r.e, TSR_RACE_HOOKED_OUTPUT));
        rig_step(&r);
        size_t output = RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "Reduce Scatter Output",
                                 .group = "layers.1");
        size_t next = RIG_FIND(&r, 0, .kind = TSR_REDUCE_SCATTER, .group = "layers.0");
        size_t freed = rig_freed(&r, rig_at(&r, output)->buffer, output);
        assert_true(output < next);
        assert_int_equal(freed > next, new);
        assert_int_equal(tsr_inherited_race(r.e, TSR_RACE_HOOKED_OUTPUT) == NULL, new);
        assert_null(tsr_inherited_race(r.e, TSR_RACE_STALE_EVENT));
        rig_close(&r);
    }
}

/* Q18: of a list one module was recomputed alone, and its forward never ends: 2.11's next forward
 * does not wait for the optimizer. */
static void partly_recomputed_list(void **state)
{
    (void)state;
    for (int new = 0; new < 2; new ++) {
        struct rig r;
        rig_open(&r, new ? four : old);
        struct tsr_module *list[] = {rig_module(&r, "layers.0.up"), rig_module(&r, "layers.1.up")};
        const struct tsr_wrap_options o = {.reshard = TSR_RESHARD_TRUE};
        rig_ok(tsr_fully_shard(r.e, list, 2, &o));
        rig_shard(&r, "layers.0", NULL);
        rig_ok(tsr_checkpoint(r.e, rig_module(&r, "layers.1"), true, true));
        rig_start(&r);
        rig_step(&r);
        assert_null(tsr_inherited_race(r.e, TSR_RACE_STUCK_ROOT));
        rig_step(&r);
        assert_int_equal(tsr_inherited_race(r.e, TSR_RACE_STUCK_ROOT) == NULL, new);
        assert_int_equal(rig_race(&r) < 0, new);
        assert_int_equal(rig_count(&r, "root_pre_forward g=layers.0"), new);
        rig_close(&r);
    }
}

/* R200: reduce-scatter on a communicator of its own, one for all groups of the same ranks. */
static void separate_communicator(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL);
    int before = tsr_engine_tables(r.e)->n_comms;
    rig_ok(tsr_set_separate_reduce_scatter_group(r.e, rig_module(&r, ""), true, true));
    const struct tsr_tables *t = tsr_engine_tables(r.e);
    assert_int_equal(t->n_comms, before + 1);
    rig_step(&r);
    const struct tsr_comm *rs = &t->comms[scatter(&r, "layers.1")->comm];
    const struct tsr_comm *ag =
        &t->comms[rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_GATHER))->comm];
    assert_true(rs != ag);
    assert_int_not_equal(rs->queue, ag->queue);
    assert_int_equal(rs->size, ag->size);
    assert_int_equal(rs->stride, ag->stride);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 4);
    rig_close(&r);
}

/* R201: after an error in the middle of a backward the next iteration is as if nothing was. */
static void reset_after_an_error(void **state)
{
    (void)state;
    struct rig r, clean;
    uint32_t micro = 0;
    char want[1024];
    static const struct tsr_wrap_options yes = {.reshard = TSR_RESHARD_TRUE};
    start(&clean, four, &yes);
    rig_step(&clean);
    rig_step(&clean);
    start(&r, four, &yes);
    rig_step(&r);
    rig_ok(tsr_set_unshard_in_backward(r.e, rig_module(&r, "layers.1"), false));
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_refused(tsr_step_backward(r.e, &micro, 1), TSR_ERUNTIME, "storage of size 0");
    rig_refused(tsr_reset_iter_state(r.e, rig_module(&r, "layers.1")), TSR_ERUNTIME, "layers.1");
    rig_ok(tsr_reset_iter_state(r.e, rig_module(&r, "")));
    rig_ok(tsr_set_unshard_in_backward(r.e, rig_module(&r, "layers.1"), true));
    for (int c = TSR_CAT_ALL_GATHER; c <= TSR_CAT_SHARDED_GRAD; c++)
        assert_int_equal(rig_level(&r, r.now.n_instrs, (enum tsr_category)c), 0);
    rig_step(&r);
    snprintf(want, sizeof want, "%s", rig_trace(&clean, NULL, "AG W F RS"));
    assert_string_equal(rig_trace(&r, NULL, "AG W F RS"), want);
    assert_int_equal(rig_count(&r, "record_post_forward g=layers.0 index=0"), 1);
    assert_int_equal(rig_count(&r, "sharded_grad accumulate=[]"), 4);
    rig_no_race(&r);
    rig_close(&clean);
    rig_close(&r);
}

/* After an error in the second micro-batch nothing is left of the first one: partial sums of a
 * hybrid mesh, or gradients that stayed unsharded in the dtype of the reduction. */
static void reset_of_a_second_micro(bool hybrid)
{
    struct rig r;
    uint32_t second = 1;
    struct rig_setup setup = four;
    const struct tsr_wrap_options half = {.reshard = TSR_RESHARD_TRUE,
                                          .mp = {.param = TSR_BF16, .reduce = TSR_F32}};
    setup.micro = 2;
    setup.replicas = hybrid ? 2 : 0;
    start(&r, setup, &half);
    struct tsr_module *root = rig_module(&r, "");
    rig_begin(&r);
    rig_ok(hybrid ? tsr_set_requires_all_reduce(r.e, root, false, true)
                  : tsr_set_requires_gradient_sync(r.e, root, false, true));
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    enum tsr_category kept = hybrid ? TSR_CAT_PARTIAL_REDUCE_OUTPUT : TSR_CAT_UNSHARDED_ACC_GRAD;
    assert_true(rig_level(&r, r.now.n_instrs, kept) > 0);
    rig_ok(tsr_set_unshard_in_backward(r.e, rig_module(&r, "layers.1"), false));
    rig_forward(&r, 1);
    rig_refused(tsr_step_backward(r.e, &second, 1), TSR_ERUNTIME, "storage of size 0");
    rig_ok(tsr_reset_iter_state(r.e, root));
    for (int c = TSR_CAT_ALL_GATHER; c <= TSR_CAT_SHARDED_GRAD; c++)
        assert_int_equal(rig_level(&r, r.now.n_instrs, (enum tsr_category)c), 0);
    rig_close(&r);
}

static void reset_drops_what_micro_batches_keep(void **state)
{
    (void)state;
    reset_of_a_second_micro(true);
    reset_of_a_second_micro(false);
}

/* R202: the root's gradients wait for finalize_backward(); the mode cannot change in between. */
static void manual_finalization(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_module *root;
    start(&r, four, NULL);
    root = rig_module(&r, "");
    rig_step(&r);
    rig_refused(tsr_finalize_backward(r.e, root), TSR_ERUNTIME, "manual mode");
    rig_refused(tsr_set_manual_backward_finalization(r.e, rig_module(&r, "layers.0"), true),
                TSR_ERUNTIME, "not the root");
    rig_ok(tsr_set_manual_backward_finalization(r.e, root, true));
    rig_begin(&r);
    rig_forward(&r, 0);
    rig_backward(&r, 0);
    assert_int_equal(rig_count(&r, "reduce g=root"), 0);
    assert_int_equal(rig_count(&r, "finalize_backward"), 0);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_GRAD), 4 * (128 + 8 + 128));
    rig_refused(tsr_set_manual_backward_finalization(r.e, root, false), TSR_ERUNTIME,
                "cannot change");
    rig_ok(tsr_finalize_backward(r.e, root));
    assert_int_equal(rig_count(&r, "reduce g=root"), 1);
    assert_int_equal(rig_count(&r, "finalize_backward"), 4);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_UNSHARDED_GRAD), 0);
    rig_end(&r);
    rig_ok(tsr_set_manual_backward_finalization(r.e, root, false));
    rig_step(&r);
    assert_int_equal(rig_count(&r, "reduce g=root"), 1);
    rig_no_race(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_mesh_object_per_process_group),
        cmocka_unit_test(meshes_make_groups),
        cmocka_unit_test(reduce_in_the_original_dtype),
        cmocka_unit_test(mixed_gradients_are_promoted),
        cmocka_unit_test(torn_ties_are_refused),
        cmocka_unit_test(unfinished_lists_are_completed),
        cmocka_unit_test(inputs_of_every_listed_module),
        cmocka_unit_test(second_group_prefetches),
        cmocka_unit_test(more_reduce_inputs),
        cmocka_unit_test(inputs_of_many_groups),
        cmocka_unit_test(unused_parameters_enter),
        cmocka_unit_test(hooks_block_the_copy),
        cmocka_unit_test(hooked_output_is_kept),
        cmocka_unit_test(partly_recomputed_list),
        cmocka_unit_test(separate_communicator),
        cmocka_unit_test(reset_after_an_error),
        cmocka_unit_test(reset_drops_what_micro_batches_keep),
        cmocka_unit_test(manual_finalization),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
