/* test_tp_extension.c: the older tensor-parallel extension. Rules R241 to R250. */
#include "engine/layout/tp_extension.h"
#include "tests/engine/layout_testing.h"

static const struct tsr_shard_device on_cpu = {"cpu", 8}, on_cuda = {"cuda", 8};

/* The part of `rank` of a tensor on a 1-D mesh of `size` ranks. */
static struct tsr_ext_tensor dtensor(int n_dims, const uint64_t *shape, uint32_t size,
                                     struct tsr_placement place, uint32_t rank)
{
    struct tsr_ext_tensor t;
    struct tsr_dtensor spec = test_layout(n_dims, shape, 1, &size, &place);
    assert_int_equal(tsr_ext_dtensor(&spec, rank, &t), TSR_OK);
    return t;
}

static struct tsr_ext_tensor plain(int n_dims, const uint64_t *shape)
{
    struct tsr_ext_tensor t = {.n_dims = n_dims};
    memcpy(t.shape, shape, (size_t)n_dims * sizeof *shape);
    return t;
}

/* ---- flattening ------------------------------------------------------------------------------ */

/* R241: the local tensor and the spec of a DTensor; a plain tensor as it is. */
static void pre_flatten(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {8, 6};
    struct tsr_ext_tensor in = dtensor(2, shape, 4, tsr_shard_placement(0, 1), 1), out;
    struct tsr_ext_spec spec;
    tsr_ext_pre_flatten(&in, &out, &spec);
    assert_true(spec.recorded && out.requires_grad);
    assert_false(out.is_dtensor);
    assert_int_equal(out.shape[0], 2);
    assert_int_equal(out.shape[1], 6);
    in = plain(2, shape);
    tsr_ext_pre_flatten(&in, &out, &spec);
    assert_false(spec.recorded);
    assert_memory_equal(&in, &out, sizeof in);
}

/* R242: mesh, placements, global shape and stride come back; an asynchronous gradient is waited for
 * on the compute stream. */
static void post_unflatten(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {8, 6};
    struct tsr_ext_tensor in = dtensor(2, shape, 4, tsr_shard_placement(1, 1), 1), view, out;
    struct tsr_ext_spec spec;
    tsr_ext_pre_flatten(&in, &view, &spec);
    tsr_ext_post_unflatten(&view, &spec, "default", &out);
    assert_true(out.is_dtensor && out.is_flattened);
    assert_true(tsr_dtensor_equal(&out.spec, &in.spec));
    assert_int_equal(out.stride[0], 6);
    assert_int_equal(out.stride[1], 1);
    assert_string_equal(out.grad_wait, "default");
    tsr_ext_post_unflatten(&view, &spec, NULL, &out);
    assert_string_equal(out.grad_wait, "current");
    view.requires_grad = false;
    tsr_ext_post_unflatten(&view, &spec, "default", &out);
    assert_null(out.grad_wait);
    spec.recorded = false; /* plain tensors come back as views */
    tsr_ext_post_unflatten(&view, &spec, "default", &out);
    assert_false(out.is_dtensor || out.is_flattened);
}

/* ---- chunk_dtensor, all_gather_dtensor ------------------------------------------------------- */

/* R243: dim 0 on mesh dimension 0 for plain tensors, on dimension -2 for tensor-parallel ones. */
static void chunk_dtensor_placements(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {12, 6};
    static const uint32_t root[3] = {2, 2, 3};
    struct tsr_ext_tensor in = plain(2, shape);
    struct tsr_dtensor t;
    assert_int_equal(tsr_ext_chunk_dtensor(&in, 3, root, &t), TSR_OK);
    assert_int_equal(t.place[0].kind, TSR_PLACE_SHARD);
    assert_int_equal(t.place[0].dim, 0);
    assert_int_equal(t.place[1].kind, TSR_PLACE_REPLICATE);
    assert_int_equal(t.place[2].kind, TSR_PLACE_REPLICATE);
    in = dtensor(2, shape, 3, tsr_shard_placement(1, 1), 2);
    assert_int_equal(tsr_ext_chunk_dtensor(&in, 3, root, &t), TSR_OK);
    assert_int_equal(t.place[0].kind, TSR_PLACE_REPLICATE);
    assert_int_equal(t.place[1].kind, TSR_PLACE_SHARD);
    assert_int_equal(t.place[1].dim, 0);
    assert_int_equal(t.place[2].kind, TSR_PLACE_SHARD);
    assert_int_equal(t.place[2].dim, 1);
    uint64_t local[2];
    tsr_dtensor_local_shape(&t, 11, local);
    assert_int_equal(local[0], 6);
    assert_int_equal(local[1], 2);
}

/* R244: a runtime error without a root mesh of at least two dimensions. */
static void chunk_dtensor_needs_a_root_mesh(void **state)
{
    (void)state;
    static const uint64_t shape[1] = {12};
    static const uint32_t root[5] = {4, 1, 1, 1, 1};
    struct tsr_ext_tensor in = plain(1, shape);
    struct tsr_dtensor t;
    assert_int_equal(tsr_ext_chunk_dtensor(&in, 0, NULL, &t), TSR_ERUNTIME);
    assert_int_equal(tsr_ext_chunk_dtensor(&in, 1, root, &t), TSR_ERUNTIME);
    assert_non_null(strstr(tsr_error_text(), "ndim=1"));
    assert_int_equal(tsr_ext_chunk_dtensor(&in, 5, root, &t), TSR_EVALUE);
}

/* R245: every mesh dimension but the last is gathered; another mesh is refused. */
static void all_gather_dtensor(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {12, 6};
    static const uint32_t mesh[3] = {2, 2, 3};
    struct tsr_placement place[3] = {tsr_replicate_placement(), tsr_shard_placement(0, 1),
                                     tsr_shard_placement(1, 1)};
    struct tsr_dtensor t = test_layout(2, shape, 3, mesh, place), out;
    assert_int_equal(tsr_ext_all_gather_dtensor(&t, 3, t.mesh, &out), TSR_OK);
    assert_int_equal(out.place[0].kind, TSR_PLACE_REPLICATE);
    assert_int_equal(out.place[1].kind, TSR_PLACE_REPLICATE);
    assert_int_equal(out.place[2].kind, TSR_PLACE_SHARD);
    uint64_t local[2];
    tsr_dtensor_local_shape(&out, 0, local);
    assert_int_equal(local[0], 12);
    assert_int_equal(local[1], 2);
    assert_int_equal(tsr_ext_all_gather_dtensor(&t, 2, t.mesh, &out), TSR_EASSERT);
    struct tsr_mesh_dim other[3] = {t.mesh[0], t.mesh[1], {4, 1}};
    assert_int_equal(tsr_ext_all_gather_dtensor(&t, 3, other, &out), TSR_EASSERT);
}

/* ---- chunk_tensor ---------------------------------------------------------------------------- */

static struct tsr_sharded_tensor *chunk(const struct tsr_ext_tensor *in, uint32_t rank,
                                        struct tsr_rank_group group, struct tsr_shard_device device)
{
    struct tsr_sharded_tensor *t;
    assert_int_equal(tsr_ext_chunk_tensor(in, rank, &group, device, &t), TSR_OK);
    return t;
}

/* R246: nested, and the entry of the own rank is the only local shard. */
static void chunk_tensor_is_nested(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {8, 6};
    struct tsr_ext_tensor in = dtensor(2, shape, 2, tsr_shard_placement(0, 1), 1);
    struct tsr_sharded_tensor *t = chunk(&in, 1, (struct tsr_rank_group){1, 2, 2}, on_cuda);
    assert_true(t->has_local);
    assert_int_equal(t->local.offset[0], 4);
    assert_int_equal(t->local.size[0], 4);
    assert_string_equal(t->shards[0].placement, "rank:1/cuda:1");
    assert_string_equal(t->shards[1].placement, "rank:0/cuda:1");
    assert_non_null(t->inner);
    assert_int_equal(t->inner->size[0], 4);
    assert_int_equal(t->inner->n_shards, 2);
    assert_string_equal(t->inner->shards[1].placement, "rank:3/cuda:3");
    assert_int_equal(t->inner->local.offset[0], 0);
    assert_false(t->inner->requires_grad);
    tsr_sharded_tensor_free(t);
}

/* A sharded tensor with one shard gets a nested one in its place, and loses requires_grad. */
static void chunk_tensor_of_a_sharded_tensor(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {10, 4};
    struct tsr_ext_tensor in = plain(2, shape);
    struct tsr_sharded_tensor *first = chunk(&in, 1, (struct tsr_rank_group){0, 2, 1}, on_cpu);
    first->requires_grad = true;
    struct tsr_ext_tensor again = {.sharded = first};
    struct tsr_sharded_tensor *t = chunk(&again, 1, (struct tsr_rank_group){1, 3, 2}, on_cpu);
    assert_false(t->requires_grad);
    assert_int_equal(t->n_shards, 2);
    assert_int_equal(t->size[0], 10);
    assert_int_equal(t->inner->size[0], 5);
    assert_int_equal(t->inner->n_shards, 3);
    struct tsr_sharded_tensor *none;
    struct tsr_rank_group group = {0, 2, 1};
    struct tsr_ext_tensor nested = {.sharded = t};
    assert_int_equal(tsr_ext_chunk_tensor(&nested, 1, &group, on_cpu, &none), TSR_EASSERT);
    first->has_local = false;
    assert_int_equal(tsr_ext_chunk_tensor(&again, 1, &group, on_cpu, &none), TSR_EASSERT);
    assert_null(none);
    tsr_sharded_tensor_free(first);
    tsr_sharded_tensor_free(t);
}

/* R247: one entry per tensor-parallel rank by the ceil rule, one if replicated. */
static void synthesised_metadata(void **state)
{
    (void)state;
    static const struct {
        uint64_t n, offset[3], size[3];
    } cases[] = {{7, {0, 3, 6}, {3, 3, 1}}, {1, {0, 1, 1}, {1, 0, 0}}, {6, {0, 2, 4}, {2, 2, 2}}};
    struct tsr_rank_group alone = {0, 1, 1};
    for (size_t c = 0; c < 3; c++) {
        uint64_t shape[2] = {5, cases[c].n};
        struct tsr_ext_tensor in = dtensor(2, shape, 3, tsr_shard_placement(1, 1), 0);
        struct tsr_sharded_tensor *t = chunk(&in, 0, alone, on_cpu);
        assert_int_equal(t->n_shards, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(t->shards[i].offset[0], 0);
            assert_int_equal(t->shards[i].size[0], 5);
            assert_int_equal(t->shards[i].offset[1], cases[c].offset[i]);
            assert_int_equal(t->shards[i].size[1], cases[c].size[i]);
        }
        tsr_sharded_tensor_free(t);
        in = dtensor(2, shape, 3, tsr_replicate_placement(), 0);
        t = chunk(&in, 0, alone, on_cpu);
        assert_int_equal(t->n_shards, 1);
        assert_int_equal(t->shards[0].size[1], cases[c].n);
        tsr_sharded_tensor_free(t);
    }
}

/* The rank inside the tensor-parallel group is taken for a global one. */
static void chunk_tensor_of_a_later_group_fails(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {8, 6};
    struct tsr_rank_group group = {1, 2, 4};
    struct tsr_sharded_tensor *t;
    struct tsr_ext_tensor in = dtensor(2, shape, 4, tsr_shard_placement(0, 1), 5);
    assert_int_equal(tsr_ext_chunk_tensor(&in, 5, &group, on_cpu, &t), TSR_EVALUE);
    assert_string_equal(tsr_error_text(),
                        "Global rank 1 does not exist in input process group: [4, 5, 6, 7]");
    assert_null(t);
    in.spec.n_mesh = 2;
    assert_int_equal(tsr_ext_chunk_tensor(&in, 5, &group, on_cpu, &t), TSR_EASSERT);
    in = plain(0, shape);
    assert_int_equal(tsr_ext_chunk_tensor(&in, 5, &group, on_cpu, &t), TSR_ERUNTIME);
    in = plain(1, shape);
    group.size = 0;
    assert_int_equal(tsr_ext_chunk_tensor(&in, 5, &group, on_cpu, &t), TSR_EVALUE);
}

/* R250: ranks beyond the number of chunks: no local shard, no entry. */
static void no_chunk_no_entry(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {9, 2};
    struct tsr_ext_tensor in = plain(2, shape);
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct tsr_sharded_tensor *t = chunk(&in, rank, (struct tsr_rank_group){0, 4, 1}, on_cpu);
        assert_int_equal(t->n_shards, 3);
        assert_int_equal(t->has_local, rank < 3);
        if (t->has_local)
            assert_int_equal(t->local.offset[0], 3 * rank);
        assert_null(t->inner);
        tsr_sharded_tensor_free(t);
    }
}

/* ---- loading, activity, metadata ------------------------------------------------------------- */

/* R248: exactly one level down. */
static void pre_load_descends_one_level(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {1, 6};
    struct tsr_ext_tensor in = dtensor(2, shape, 2, tsr_shard_placement(1, 1), 0);
    struct tsr_sharded_tensor *t = chunk(&in, 0, (struct tsr_rank_group){0, 2, 2}, on_cpu);
    const struct tsr_shard *local;
    assert_ptr_equal(tsr_ext_pre_load(t, &local), t->inner);
    assert_ptr_equal(local, &t->inner->local);
    assert_ptr_equal(tsr_ext_pre_load(t->inner, &local), t->inner);
    assert_ptr_equal(local, &t->inner->local);
    t->inner->has_local = false; /* the list of local shards is empty */
    assert_ptr_equal(tsr_ext_pre_load(t, &local), t->inner);
    assert_null(local);
    tsr_sharded_tensor_free(t);
}

/* R249: active iff FSDP's mesh is a slice of a bigger one. */
static void active_on_a_slice(void **state)
{
    (void)state;
    assert_true(tsr_ext_is_active(1, 2));
    assert_true(tsr_ext_is_active(2, 3));
    assert_false(tsr_ext_is_active(1, 1));
    assert_false(tsr_ext_is_active(2, 2));
    assert_false(tsr_ext_is_active(0, 2));
}

/* The entry of the own rank follows its tensor to another device; nothing else changes. */
static void metadata_rewrite(void **state)
{
    (void)state;
    struct tsr_rank_device places[2] = {{0, "cuda:0"}, {1, "cuda:1"}};
    struct tsr_sharding_spec in = {true, 0, 2, places}, out;
    bool changed;
    assert_int_equal(tsr_ext_rewrite_spec(&in, 1, "cuda:1", &changed, &out), TSR_OK);
    assert_false(changed);
    assert_ptr_equal(out.placements, places);
    assert_int_equal(tsr_ext_rewrite_spec(&in, 1, "cpu", &changed, &out), TSR_OK);
    assert_true(changed);
    assert_string_equal(out.placements[0].device, "cuda:0");
    assert_string_equal(out.placements[1].device, "cpu");
    assert_string_equal(places[1].device, "cuda:1");
    free(out.placements);
    in.is_chunk = false;
    assert_int_equal(tsr_ext_rewrite_spec(&in, 1, "cpu", &changed, &out), TSR_OK);
    assert_false(changed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pre_flatten),
                                       cmocka_unit_test(post_unflatten),
                                       cmocka_unit_test(chunk_dtensor_placements),
                                       cmocka_unit_test(chunk_dtensor_needs_a_root_mesh),
                                       cmocka_unit_test(all_gather_dtensor),
                                       cmocka_unit_test(chunk_tensor_is_nested),
                                       cmocka_unit_test(chunk_tensor_of_a_sharded_tensor),
                                       cmocka_unit_test(synthesised_metadata),
                                       cmocka_unit_test(chunk_tensor_of_a_later_group_fails),
                                       cmocka_unit_test(no_chunk_no_entry),
                                       cmocka_unit_test(pre_load_descends_one_level),
                                       cmocka_unit_test(active_on_a_slice),
                                       cmocka_unit_test(metadata_rewrite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
