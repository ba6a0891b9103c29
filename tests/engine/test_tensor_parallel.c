/* test_tensor_parallel.c: FSDP over tensor-parallel parameters of an engine. Rules R39 to R46. */
#include "tests/engine/layout_testing.h"

static const struct tsr_tree_node leaves[] = {
    {.name = "emb", .type = TSR_TREE_EMBEDDING, .in = 16, .out = 8},
    {.name = "norm", .type = TSR_TREE_RMSNORM, .in = 8},
    {.name = "up", .type = TSR_TREE_LINEAR, .in = 8, .out = 10, .bias = true},
    {.name = "down", .type = TSR_TREE_LINEAR, .in = 10, .out = 8, .bias = true},
    {.name = "out", .type = TSR_TREE_LINEAR, .in = 8, .out = 16}};

static const struct tsr_tp_style styles[] = {{"up", TSR_TP_COLWISE},
                                             {"down", TSR_TP_ROWWISE},
                                             {"norm", TSR_TP_SEQUENCE},
                                             {"emb", TSR_TP_COLWISE}};

static struct tsr_engine *open_engine(const struct tsr_mesh *mesh, uint32_t rank)
{
    struct tsr_tree_config tree = {.root = {.name = "",
                                            .type = TSR_TREE_SEQ,
                                            .n_children = sizeof leaves / sizeof *leaves,
                                            .children = leaves},
                                   .tokens = 16};
    struct tsr_engine *e = test_engine(mesh, rank);
    assert_int_equal(tsr_model_tree(e, &tree), TSR_OK);
    return e;
}

static tsr_status apply(struct tsr_engine *e, const char *dim, size_t n)
{
    struct tsr_tp_options o = {.mesh_dim = dim, .n_styles = n, .styles = styles};
    return tsr_tensor_parallel(e, &o);
}

static tsr_status shard_root(struct tsr_engine *e, const char *const *dims, int n)
{
    struct tsr_wrap_options o = {.mesh_dims = dims, .n_mesh_dims = n};
    struct tsr_module *root = tsr_module_root(e);
    return tsr_fully_shard(e, &root, 1, &o);
}

static void check_place(const struct tsr_param_dtensor *p, int i, struct tsr_placement want)
{
    const struct tsr_placement *got = &p->layout.place[i];
    assert_int_equal(got->kind, want.kind);
    if (want.kind != TSR_PLACE_REPLICATE)
        assert_int_equal(got->dim, want.dim);
    if (want.kind == TSR_PLACE_STRIDED_SHARD)
        assert_int_equal(got->split, want.split);
}

/* ---- placements ------------------------------------------------------------------------------ */

static const struct tsr_mesh flat = {2, {3, 2}, {"dp", "tp"}};
static const struct tsr_mesh hybrid = {3, {2, 3, 2}, {"replicate", "shard", "tp"}};
static const char *const dp[] = {"dp"}, *const hsdp[] = {"replicate", "shard"};

/* R39, R41, R42: strided on the same dimension, plain on another or where TP replicates. */
static void placements_of_fsdp(void **state)
{
    (void)state;
    struct tsr_engine *e = open_engine(&flat, 0);
    assert_int_equal(apply(e, "tp", 4), TSR_OK);
    assert_int_equal(shard_root(e, dp, 1), TSR_OK);
    struct tsr_param_dtensor p = test_param(e, "up.weight");
    assert_int_equal(p.n_fsdp, 1);
    assert_int_equal(p.n_tp, 1);
    check_place(&p, 0, tsr_shard_placement(0, 2));
    check_place(&p, 1, tsr_shard_placement(0, 1));
    p = test_param(e, "down.weight");
    check_place(&p, 0, tsr_shard_placement(0, 1));
    check_place(&p, 1, tsr_shard_placement(1, 1));
    p = test_param(e, "down.bias");
    check_place(&p, 0, tsr_shard_placement(0, 1));
    check_place(&p, 1, tsr_replicate_placement());
    p = test_param(e, "norm.weight");
    check_place(&p, 0, tsr_shard_placement(0, 1));
    check_place(&p, 1, tsr_replicate_placement());
    p = test_param(e, "emb.weight");
    check_place(&p, 1, tsr_shard_placement(1, 1));
    p = test_param(e, "out.weight");
    assert_int_equal(p.n_tp, 0);
    assert_int_equal(p.layout.n_mesh, 1);
    tsr_engine_destroy(e);
}

/* R42: HSDP has one more Replicate in front. */
static void placements_of_hsdp(void **state)
{
    (void)state;
    struct tsr_engine *e = open_engine(&hybrid, 0);
    assert_int_equal(apply(e, "tp", 4), TSR_OK);
    assert_int_equal(shard_root(e, hsdp, 2), TSR_OK);
    struct tsr_param_dtensor p = test_param(e, "up.weight");
    assert_int_equal(p.n_fsdp, 2);
    check_place(&p, 0, tsr_replicate_placement());
    check_place(&p, 1, tsr_shard_placement(0, 2));
    check_place(&p, 2, tsr_shard_placement(0, 1));
    p = test_param(e, "norm.weight");
    check_place(&p, 0, tsr_replicate_placement());
    check_place(&p, 1, tsr_shard_placement(0, 1));
    check_place(&p, 2, tsr_replicate_placement());
    tsr_engine_destroy(e);
}

/* replicate() has (Replicate, tp). */
static void placements_of_replicate(void **state)
{
    (void)state;
    struct tsr_engine *e = open_engine(&flat, 0);
    struct tsr_wrap_options o = {.mesh_dims = dp, .n_mesh_dims = 1};
    struct tsr_module *root = tsr_module_root(e);
    assert_int_equal(apply(e, "tp", 4), TSR_OK);
    assert_int_equal(tsr_replicate(e, &root, 1, &o), TSR_OK);
    struct tsr_param_dtensor p = test_param(e, "up.weight");
    assert_int_equal(p.layout.mesh[0].size, 3);
    assert_int_equal(p.layout.mesh[0].stride, 2);
    check_place(&p, 0, tsr_replicate_placement());
    check_place(&p, 1, tsr_shard_placement(0, 1));
    tsr_engine_destroy(e);
}

/* Two dimensions of tensor parallelism: the split factor counts both; FSDP cuts last. */
static void two_dimensions_of_tp(void **state)
{
    (void)state;
    static const struct tsr_mesh mesh = {3, {2, 2, 2}, {"dp", "ep", "tp"}};
    struct tsr_engine *e = open_engine(&mesh, 0);
    assert_int_equal(apply(e, "ep", 1), TSR_OK);
    assert_int_equal(apply(e, "tp", 1), TSR_OK);
    assert_int_equal(shard_root(e, NULL, 0), TSR_OK); /* what is left: dp */
    struct tsr_param_dtensor p = test_param(e, "up.weight");
    assert_int_equal(p.layout.n_mesh, 3);
    check_place(&p, 0, tsr_shard_placement(0, 4));
    uint64_t seen = 0;
    for (uint64_t r = 0; r < 8; r++) {
        uint64_t offset[2], size[2];
        assert_true(tsr_dtensor_box(&p.layout, r, offset, size));
        for (uint64_t i = 0; i < size[0]; i++)
            seen |= UINT64_C(1) << (offset[0] + i);
    }
    assert_int_equal(seen, (1 << 10) - 1);
    tsr_engine_destroy(e);
}

/* R39, R45: what each rank's own engine stores is its part in the layout, also uneven. */
static void engines_agree_with_the_layout(void **state)
{
    (void)state;
    static const struct tsr_mesh mesh = {2, {2, 3}, {"dp", "tp"}};
    for (uint32_t rank = 0; rank < 6; rank++) {
        struct tsr_engine *e = open_engine(&mesh, rank);
        assert_int_equal(apply(e, "tp", 4), TSR_OK);
        assert_int_equal(shard_root(e, dp, 1), TSR_OK);
        for (size_t i = 0; i < tsr_n_param_layouts(e); i++) {
            struct tsr_param_dtensor p;
            uint64_t want[TSR_DT_MAX_DIMS], got[TSR_MAX_DIMS];
            assert_int_equal(tsr_param_dtensor(e, i, &p), TSR_OK);
            tsr_dtensor_local_shape(&p.layout, rank, want);
            tsr_param_local_shape(e, i, rank / 3, got);
            for (int d = 0; d < p.layout.n_dims; d++)
                assert_int_equal(got[d], want[d]);
        }
        tsr_engine_destroy(e);
    }
}

/* A style on one of two tied places gives that place a parameter of its own. */
static void styles_break_ties(void **state)
{
    (void)state;
    struct tsr_engine *e = open_engine(&flat, 0);
    assert_int_equal(tsr_param_tie(e, "out.weight", "emb.weight"), TSR_OK);
    assert_int_equal(apply(e, "tp", 4), TSR_OK);
    assert_int_equal(shard_root(e, dp, 1), TSR_OK);
    struct tsr_param_dtensor emb = test_param(e, "emb.weight"), out = test_param(e, "out.weight");
    assert_int_equal(emb.n_tp, 1);
    assert_int_equal(out.n_tp, 0);
    assert_int_equal(out.layout.shape[1], 8);
    tsr_engine_destroy(e);
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* R43: more than two dimensions of tensor or expert parallelism. */
static void three_dimensions_are_refused(void **state)
{
    (void)state;
    static const struct tsr_mesh mesh = {4, {2, 2, 2, 2}, {"dp", "a", "b", "c"}};
    static const char *const dims[] = {"a", "b", "c"};
    struct tsr_engine *e = open_engine(&mesh, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(apply(e, dims[i], 1), TSR_OK);
    assert_int_equal(shard_root(e, dp, 1), TSR_ENOTIMPL);
    assert_non_null(strstr(tsr_error_text(), "up.weight"));
    tsr_engine_destroy(e);
}

/* R44: a DTensor on a mesh of another device type. */
static void another_device_type_is_refused(void **state)
{
    (void)state;
    struct tsr_tp_options o = {
        .mesh_dim = "tp", .device_type = "cpu", .n_styles = 1, .styles = styles};
    struct tsr_engine *e = open_engine(&flat, 0);
    assert_int_equal(tsr_tensor_parallel(e, &o), TSR_OK);
    assert_int_equal(shard_root(e, dp, 1), TSR_EVALUE);
    assert_non_null(strstr(tsr_error_text(), "cpu"));
    assert_non_null(strstr(tsr_error_text(), "cuda"));
    tsr_engine_destroy(e);
}

/* R46: a placement that is not a shard. */
static void replicate_placement_is_refused(void **state)
{
    (void)state;
    static const struct tsr_shard_dim dims[] = {{"up.weight", 0, true}}, far[] = {{"**", 2, false}};
    struct tsr_wrap_options o = {
        .n_shard_dims = 1, .shard_dims = dims, .mesh_dims = dp, .n_mesh_dims = 1};
    struct tsr_engine *e = open_engine(&flat, 0);
    struct tsr_module *root = tsr_module_root(e);
    assert_int_equal(apply(e, "tp", 4), TSR_OK);
    assert_int_equal(tsr_fully_shard(e, &root, 1, &o), TSR_EATTRIBUTE);
    tsr_engine_destroy(e);
    e = open_engine(&flat, 0);
    root = tsr_module_root(e);
    o.shard_dims = far;
    assert_int_equal(tsr_fully_shard(e, &root, 1, &o), TSR_EASSERT);
    tsr_engine_destroy(e);
}

/* Evenness on dim > 0 is asked of the local tensor. */
static void dim1_is_checked_on_the_local_tensor(void **state)
{
    (void)state;
    static const struct tsr_shard_dim dims[] = {{"down.weight", 1, false}};
    static const struct tsr_mesh mesh = {2, {2, 2}, {"dp", "tp"}};
    struct tsr_wrap_options o = {
        .n_shard_dims = 1, .shard_dims = dims, .mesh_dims = dp, .n_mesh_dims = 1};
    struct tsr_engine *e = open_engine(&mesh, 0);
    struct tsr_module *root = tsr_module_root(e);
    assert_int_equal(apply(e, "tp", 4), TSR_OK); /* 10 columns: 5 a rank */
    assert_int_equal(tsr_fully_shard(e, &root, 1, &o), TSR_ENOTIMPL);
    assert_non_null(strstr(tsr_error_text(), "[8, 5]"));
    tsr_engine_destroy(e);
}

/* 10 columns on 4 ranks: 3, 3, 3, 1; no rank of the last one's group could shard its part. */
static void dim1_is_checked_on_every_rank(void **state)
{
    (void)state;
    static const struct tsr_shard_dim dims[] = {{"down.weight", 1, false}};
    static const struct tsr_mesh mesh = {2, {3, 4}, {"dp", "tp"}};
    struct tsr_wrap_options o = {
        .n_shard_dims = 1, .shard_dims = dims, .mesh_dims = dp, .n_mesh_dims = 1};
    struct tsr_engine *e = open_engine(&mesh, 0);
    struct tsr_module *root = tsr_module_root(e);
    assert_int_equal(apply(e, "tp", 4), TSR_OK);
    assert_int_equal(tsr_fully_shard(e, &root, 1, &o), TSR_ENOTIMPL);
    assert_non_null(strstr(tsr_error_text(), "down.weight"));
    tsr_engine_destroy(e);
}

/* 8 columns on 5 ranks leave the last without any: its local shape has no rows either. */
static void ranks_without_elements_have_no_rows(void **state)
{
    (void)state;
    static const struct tsr_mesh mesh = {2, {2, 5}, {"dp", "tp"}};
    struct tsr_engine *e = open_engine(&mesh, 0);
    uint64_t local[TSR_DT_MAX_DIMS];
    assert_int_equal(apply(e, "tp", 4), TSR_OK);
    assert_int_equal(shard_root(e, dp, 1), TSR_OK);
    struct tsr_param_dtensor p = test_param(e, "emb.weight");
    tsr_param_dtensor_local_shape(&p, 3, local);
    assert_int_equal(local[0], 8);
    assert_int_equal(local[1], 2);
    tsr_param_dtensor_local_shape(&p, 4, local);
    assert_int_equal(local[0], 0);
    assert_int_equal(local[1], 0);
    tsr_engine_destroy(e);
}

static void malformed_options_are_refused(void **state)
{
    (void)state;
    static const struct tsr_tp_style on_norm[] = {{"norm", TSR_TP_ROWWISE}};
    static const char *const unknown[] = {"x"}, *const twice[] = {"dp", "dp"}, *const tp[] = {"tp"};
    struct tsr_tp_options o = {.mesh_dim = "tp", .n_styles = 1, .styles = on_norm};
    struct tsr_engine *e = open_engine(&flat, 0);
    assert_int_equal(tsr_tensor_parallel(e, &o), TSR_ENOTIMPL);
    assert_non_null(strstr(tsr_error_text(), "'norm' is a RMSNorm"));
    assert_int_equal(apply(e, "nope", 1), TSR_EVALUE);
    assert_int_equal(apply(e, NULL, 1), TSR_EVALUE);
    assert_int_equal(apply(e, "tp", 1), TSR_OK);
    assert_int_equal(apply(e, "tp", 1), TSR_EVALUE);
    assert_int_equal(shard_root(e, unknown, 1), TSR_EVALUE);
    assert_int_equal(shard_root(e, twice, 2), TSR_EVALUE);
    assert_int_equal(shard_root(e, tp, 1), TSR_EVALUE);
    assert_int_equal(shard_root(e, dp, 1), TSR_OK);
    assert_int_equal(apply(e, "dp", 1), TSR_EVALUE); /* wrapped already */
    struct tsr_param_dtensor p;
    assert_int_equal(tsr_param_dtensor(e, 1000, &p), TSR_EINDEX);
    enum tsr_tp_kind kind;
    assert_false(tsr_tp_kind_parse("columns", &kind) || tsr_tp_kind_parse(NULL, &kind));
    tsr_engine_destroy(e);
}

/* Section 2.5: an integer reshard_after_forward does not go with tensor parallelism. */
static void int_reshard_is_refused(void **state)
{
    (void)state;
    static const struct tsr_mesh mesh = {2, {4, 2}, {"dp", "tp"}};
    struct tsr_wrap_options o = {
        .reshard = TSR_RESHARD_INT, .reshard_int = 2, .mesh_dims = dp, .n_mesh_dims = 1};
    struct tsr_engine *e = open_engine(&mesh, 0);
    struct tsr_module *root = tsr_module_root(e);
    assert_int_equal(apply(e, "tp", 4), TSR_OK);
    assert_int_equal(tsr_fully_shard(e, &root, 1, &o), TSR_OK);
    assert_int_equal(tsr_engine_init_params(e), TSR_ENOTIMPL);
    tsr_engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(placements_of_fsdp),
                                       cmocka_unit_test(placements_of_hsdp),
                                       cmocka_unit_test(placements_of_replicate),
                                       cmocka_unit_test(two_dimensions_of_tp),
                                       cmocka_unit_test(engines_agree_with_the_layout),
                                       cmocka_unit_test(styles_break_ties),
                                       cmocka_unit_test(three_dimensions_are_refused),
                                       cmocka_unit_test(another_device_type_is_refused),
                                       cmocka_unit_test(replicate_placement_is_refused),
                                       cmocka_unit_test(dim1_is_checked_on_the_local_tensor),
                                       cmocka_unit_test(dim1_is_checked_on_every_rank),
                                       cmocka_unit_test(ranks_without_elements_have_no_rows),
                                       cmocka_unit_test(malformed_options_are_refused),
                                       cmocka_unit_test(int_reshard_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
