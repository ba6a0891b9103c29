/* test_spmd_mesh.c: fully_shard() on the whole named mesh (dp_mesh_dims of 2.15, section 2.8): dims
 * flattened into one, the layout that follows, and what is refused.
 */
#include "tests/engine/layout_testing.h"

enum { WORLD = 2 * 3 * 2 * 2 };
static const struct tsr_mesh whole = {4, {2, 3, 2, 2}, {"pod", "dp", "cp", "tp"}};
static const char *const pod[] = {"pod"}, *const dp[] = {"dp"}, *const dp_cp[] = {"dp", "cp"};

static const struct tsr_tree_node leaves[] = {
    {.name = "norm", .type = TSR_TREE_RMSNORM, .in = 8},
    {.name = "up", .type = TSR_TREE_LINEAR, .in = 8, .out = 10, .bias = true},
    {.name = "out", .type = TSR_TREE_LINEAR, .in = 10, .out = 8}};

/* With n_styles 2, out.weight stays a plain tensor. */
static struct tsr_engine *open_engine(uint32_t rank, size_t n_styles, enum tsr_version version)
{
    static const struct tsr_tp_style styles[] = {
        {"up", TSR_TP_COLWISE}, {"norm", TSR_TP_SEQUENCE}, {"out", TSR_TP_ROWWISE}};
    struct tsr_tree_config tree = {
        .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 3, .children = leaves},
        .in_dim = 8,
        .loss_mse = true};
    struct tsr_tp_options tp = {.mesh_dim = "tp", .n_styles = n_styles, .styles = styles};
    struct tsr_engine *e = test_engine_of(&whole, rank, version);
    assert_int_equal(tsr_model_tree(e, &tree), TSR_OK);
    assert_int_equal(tsr_tensor_parallel(e, &tp), TSR_OK);
    return e;
}

static struct tsr_wrap_options on(const char *const *replicate, int n_replicate,
                                  const char *const *shard, int n_shard)
{
    return (struct tsr_wrap_options){.spmd_replicate = replicate,
                                     .n_spmd_replicate = n_replicate,
                                     .spmd_shard = shard,
                                     .n_spmd_shard = n_shard};
}

static tsr_status wrap(struct tsr_engine *e, const struct tsr_wrap_options *options)
{
    struct tsr_module *root = tsr_module_root(e);
    return tsr_fully_shard(e, &root, 1, options);
}

static void names_are_flattened(void **state)
{
    (void)state;
    struct tsr_engine *e = open_engine(0, 3, TSR_TORCH_2_15);
    struct tsr_wrap_options o = on(pod, 1, dp_cp, 2);
    assert_int_equal(wrap(e, &o), TSR_OK);
    struct tsr_param_dtensor p = test_param(e, "up.weight");
    assert_int_equal(p.n_fsdp, 2);
    assert_int_equal(p.layout.mesh[0].size, 2);
    assert_int_equal(p.layout.mesh[0].stride, 12);
    assert_int_equal(p.layout.mesh[1].size, 6);
    assert_int_equal(p.layout.mesh[1].stride, 2);
    assert_int_equal(p.layout.place[0].kind, TSR_PLACE_REPLICATE);
    assert_int_equal(p.layout.place[1].kind, TSR_PLACE_STRIDED_SHARD);
    assert_int_equal(p.layout.place[1].split, 2);
    assert_int_equal(p.layout.place[2].kind, TSR_PLACE_SHARD);
    assert_int_equal(test_param(e, "norm.weight").layout.place[1].kind, TSR_PLACE_SHARD);
    assert_int_equal(test_param(e, "out.weight").layout.place[1].kind, TSR_PLACE_SHARD);
    tsr_engine_destroy(e);
}

/* Every element lies on the two pods; what tensor parallelism replicates, on four ranks. */
static void shards_cover_the_tensors(void **state)
{
    (void)state;
    uint64_t up = 0, norm = 0;
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        struct tsr_engine *e = open_engine(rank, 3, TSR_TORCH_2_15);
        struct tsr_wrap_options o = on(pod, 1, dp_cp, 2);
        assert_int_equal(wrap(e, &o), TSR_OK);
        struct tsr_param_dtensor p = test_param(e, "up.weight"), n = test_param(e, "norm.weight");
        up += tsr_dtensor_local_numel(&p.layout, rank);
        norm += tsr_dtensor_local_numel(&n.layout, rank);
        tsr_engine_destroy(e);
    }
    assert_int_equal(up, 2 * 10 * 8);
    assert_int_equal(norm, 2 * 2 * 8);
}

static void replicate_names_alone_replicate(void **state)
{
    (void)state;
    struct tsr_engine *e = open_engine(0, 3, TSR_TORCH_2_15);
    struct tsr_wrap_options o = on(dp_cp, 2, NULL, 0);
    assert_int_equal(wrap(e, &o), TSR_OK);
    struct tsr_param_dtensor p = test_param(e, "up.weight");
    assert_int_equal(p.n_fsdp, 1);
    assert_int_equal(p.layout.mesh[0].size, 6);
    assert_int_equal(p.layout.place[0].kind, TSR_PLACE_REPLICATE);
    assert_int_equal(tsr_dtensor_local_numel(&p.layout, 0), 5 * 8);
    tsr_engine_destroy(e);
}

static void refused(struct tsr_wrap_options o, size_t n_styles, enum tsr_version version,
                    tsr_status want, const char *words)
{
    struct tsr_engine *e = open_engine(0, n_styles, version);
    assert_int_equal(wrap(e, &o), want);
    if (!strstr(tsr_error_text(), words))
        fail_msg("'%s' does not say '%s'", tsr_error_text(), words);
    tsr_engine_destroy(e);
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    static const char *const turned[] = {"cp", "dp"}, *const apart[] = {"pod", "cp"},
                             *const tp[] = {"tp"}, *const unknown[] = {"ep"};
    struct tsr_wrap_options both = on(NULL, 0, dp, 1), to_two = on(NULL, 0, dp, 1);
    both.n_mesh_dims = 1;
    both.mesh_dims = dp;
    to_two.reshard = TSR_RESHARD_INT;
    to_two.reshard_int = 2;
    refused(on(NULL, 0, dp, 1), 2, TSR_TORCH_2_15, TSR_EVALUE, "out.weight");
    refused(on(NULL, 0, dp, 1), 3, TSR_TORCH_2_11, TSR_EVALUE, "2.15");
    refused(on(NULL, 0, turned, 2), 3, TSR_TORCH_2_15, TSR_EUNSUPPORTED, "'cp' and 'dp'");
    refused(on(NULL, 0, apart, 2), 3, TSR_TORCH_2_15, TSR_EUNSUPPORTED, "neighbours");
    refused(on(NULL, 0, tp, 1), 3, TSR_TORCH_2_15, TSR_EVALUE, "tensor parallelism");
    refused(on(NULL, 0, unknown, 1), 3, TSR_TORCH_2_15, TSR_EVALUE, "'ep'");
    refused(on(dp, 1, dp_cp, 2), 3, TSR_TORCH_2_15, TSR_EVALUE, "twice");
    refused(both, 3, TSR_TORCH_2_15, TSR_EVALUE, "exclude");
    refused(to_two, 3, TSR_TORCH_2_15, TSR_ENOTIMPL, "reshard_after_forward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_flattened),
        cmocka_unit_test(shards_cover_the_tensors),
        cmocka_unit_test(replicate_names_alone_replicate),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
