/* test_held.c: parameters that were gathered, or cast, are held no longer than they are said to be
 * (engine/fsdp/OPTIONS.md for direct_gather), and nothing is held behind its use: a release that is
 * left out shows as bytes.
 */
#include "tests/rules/rules_order.h"

enum { LAYERS = 5, LAYER_BYTES = 4 * (8 + 96 + 12 + 96) };

static uint64_t most_held(struct rig *r, const char *phase)
{
    uint64_t most = 0;
    for (size_t i = 0; i < r->now.n_instrs; i++)
        if (!strcmp(tsr_phase_name(r->now.instrs[i].origin.phase), phase))
            most = tsr_max_u64(most, rig_level(r, i + 1, TSR_CAT_UNSHARDED_PARAM));
    return most;
}

static uint64_t held_at_the_end(struct rig *r)
{
    return rig_level(r, r->now.n_instrs, TSR_CAT_UNSHARDED_PARAM);
}

static void start(struct rig *r, const struct tsr_wrap_options *layers,
                  const struct tsr_wrap_options *root)
{
    rig_open(r, (struct rig_setup){.shards = 4, .layers = LAYERS});
    rig_wrap(r, layers, root);
    rig_start(r);
    rig_step(r);
    rig_step(r);
}

/* Three groups in forward, two and a retired one in backward; behind it nothing. The root's group
 * (emb, norm, out) stays in forward. */
static void direct_gather(void **state)
{
    (void)state;
    struct rig r;
    const uint64_t root = 4 * (128 + 8 + 128);
    const struct tsr_wrap_options direct = {.direct = true};
    start(&r, &direct, &direct);
    assert_in_range(most_held(&r, "forward"), 2 * LAYER_BYTES, 3 * LAYER_BYTES + root);
    assert_in_range(most_held(&r, "backward"), 2 * LAYER_BYTES, 3 * LAYER_BYTES + root);
    assert_int_equal(held_at_the_end(&r), 0);
    rig_close(&r);
}

/* What is cut to half of the ranks is given back whole: one layer, and the one that is gathered. */
static void reshard_to_two(void **state)
{
    (void)state;
    struct rig r;
    const uint64_t root = 4 * (128 + 8 + 128);
    const struct tsr_wrap_options two = {.reshard = TSR_RESHARD_INT, .reshard_int = 2};
    start(&r, &two, NULL);
    assert_in_range(most_held(&r, "forward"), LAYER_BYTES, 2 * LAYER_BYTES + root);
    assert_int_equal(held_at_the_end(&r), 0);
    rig_close(&r);
}

static uint64_t held(struct rig *r)
{
    uint64_t all = 0;
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        all += rig_level(r, r->now.n_instrs, (enum tsr_category)c);
    return all;
}

static void no_more_after_a_step(struct rig *r)
{
    rig_step(r);
    rig_step(r);
    uint64_t before = held(r);
    rig_step(r);
    assert_int_equal(held(r), before);
    rig_close(r);
}

/* Parameters in the dtype of the computation are gone with the backward, and cast anew. */
static void mixed_ddp(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2, .layers = 1});
    rig_ok(tsr_ddp(r.e, &(struct tsr_ddp_options){.mp.param = TSR_BF16}));
    rig_start(&r);
    rig_step(&r);
    assert_true(most_held(&r, "backward") > 0);
    assert_int_equal(held_at_the_end(&r), 0);
    no_more_after_a_step(&r);
}

static void hook(struct tsr_engine *e, struct tsr_tensor *buffer, void *user)
{
    (void)user;
    tsr_emit_user_op(e, buffer, "hook", 1);
}

/* Bytes of the buckets that there are. */
static uint64_t bucket_bytes(struct rig *r)
{
    uint64_t all = 0;
    for (size_t i = 0; i < tsr_ddp_n_buckets(r->e); i++)
        all += tsr_ddp_bucket(r->e, i).bytes;
    return all;
}

/* Buckets that were rebuilt are all that is left of those before. In mixed precision what was
 * reduced, in f32, stays beside those in bf16; construction leaves no copy of a parameter. */
static void rebuilt_buckets(void **state)
{
    static const tsr_dtype dtypes[] = {TSR_DTYPE_NONE, TSR_BF16};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rig r;
        rig_open(&r, (struct rig_setup){.shards = 2, .layers = 1});
        rig_ok(tsr_ddp(r.e, &(struct tsr_ddp_options){.mp = {dtypes[i], TSR_F32}}));
        rig_start(&r);
        rig_step(&r);
        assert_int_equal(r.level[TSR_CAT_UNSHARDED_PARAM], 0);
        rig_step(&r);
        rig_step(&r);
        uint64_t left = rig_level(&r, r.now.n_instrs, TSR_CAT_REDUCE_SCATTER);
        assert_int_equal(left, (i == 0 ? 1 : 3) * bucket_bytes(&r));
        assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_TEMP), 0);
        rig_close(&r);
    }
}

/* What a hook is lent is given back. */
static void hooks(void **state)
{
    (void)state;
    struct rig r;
    static const enum tsr_ddp_hook kinds[] = {TSR_DDP_HOOK_USER, TSR_DDP_HOOK_FP16_COMPRESS};
    rig_open(&r, (struct rig_setup){.shards = 2});
    rig_wrap(&r, NULL, NULL);
    rig_ok(tsr_set_all_reduce_hook(r.e, rig_module(&r, "layers.1"), hook, NULL, true));
    rig_start(&r);
    no_more_after_a_step(&r);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        rig_open(&r, (struct rig_setup){.shards = 2, .layers = 1});
        rig_ok(tsr_ddp(r.e, NULL));
        rig_ok(tsr_ddp_register_comm_hook(r.e, kinds[i], i == 0 ? hook : NULL, NULL));
        rig_start(&r);
        no_more_after_a_step(&r);
    }
}

/* A forward without gradients leaves no loss, and nothing that a backward would read. */
static void no_grad_forward(void **state)
{
    (void)state;
    struct rig r;
    rig_ready(&r, (struct rig_setup){.shards = 2}, NULL, NULL);
    rig_begin(&r);
    rig_ok(tsr_step_forward(r.e, 0, NULL, true));
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_ACTIVATION), 0);
    rig_close(&r);
}

/* A recomputation stops at the last save of a norm that is the last of its list: what the norm has
 * made by then goes. */
static void stopped_list(void **state)
{
    (void)state;
    const struct tsr_tree_node in_block[] = {rig_leaf("up", TSR_TREE_LINEAR, 8, 8),
                                             rig_leaf("norm", TSR_TREE_RMSNORM, 8, 0)};
    const struct tsr_tree_node top[] = {
        rig_leaf("in", TSR_TREE_LINEAR, 8, 8),
        {.name = "block", .type = TSR_TREE_SEQ, .n_children = 2, .children = in_block},
        rig_leaf("out", TSR_TREE_LINEAR, 8, 8)};
    const struct tsr_tree_config config = {
        .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 3, .children = top},
        .in_dim = 8,
        .loss_mse = true};
    struct rig r;
    rig_engine(&r, (struct rig_setup){.shards = 2});
    rig_ok(tsr_model_tree(r.e, &config));
    struct tsr_module *list[] = {rig_module(&r, "block.up"), rig_module(&r, "block.norm")};
    rig_ok(tsr_fully_shard(r.e, list, 2, NULL));
    rig_shard(&r, "", NULL);
    rig_ok(tsr_checkpoint(r.e, rig_module(&r, "block"), false, true));
    rig_start(&r);
    rig_step(&r);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_ACTIVATION), 0);
    no_more_after_a_step(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(direct_gather), cmocka_unit_test(reshard_to_two),
        cmocka_unit_test(mixed_ddp),     cmocka_unit_test(rebuilt_buckets),
        cmocka_unit_test(hooks),         cmocka_unit_test(no_grad_forward),
        cmocka_unit_test(stopped_list)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
