/* test_dtensor.c: tensors on meshes: every rank's part, for random shapes, meshes and placements.
 * Rules R39, R40, R41, R42, R45.
 */
#include "tests/engine/layout_testing.h"

enum { ROUNDS = 3000 };

static struct tsr_runs runs_of(const struct tsr_dtensor *t, uint64_t rank)
{
    struct tsr_runs runs;
    assert_int_equal(tsr_dtensor_runs(t, rank, &runs), TSR_OK);
    return runs;
}

/* ---- properties ------------------------------------------------------------------------------ */

/* Every element lies on as many ranks as the replicated mesh dimensions have, and runs are sorted
 * into local order, maximal, and add up to the local shape. */
static void check_tiling(const struct tsr_dtensor *t)
{
    uint64_t numel = tsr_dtensor_numel(t), copies = 1;
    uint32_t *count = calloc(numel + 1, sizeof *count);
    assert_non_null(count);
    for (int i = 0; i < t->n_mesh; i++)
        copies *= t->place[i].kind == TSR_PLACE_REPLICATE ? t->mesh[i].size : 1;
    for (uint64_t r = 0; r < test_world(t); r++) {
        uint64_t shape[TSR_DT_MAX_DIMS], local = 1, held = 0;
        struct tsr_runs runs = runs_of(t, r);
        tsr_dtensor_local_shape(t, r, shape);
        for (int d = 0; d < t->n_dims; d++)
            local *= shape[d];
        for (size_t i = 0; i < runs.n; i++) {
            const struct tsr_shard_run *run = &runs.items[i];
            held += run->length;
            assert_true(run->length > 0 && run->start + run->length <= numel);
            assert_false(i > 0 && run[-1].start + run[-1].length == run->start);
            for (uint64_t k = 0; k < run->length; k++)
                count[run->start + k]++;
        }
        assert_int_equal(held, local);
        assert_int_equal(tsr_dtensor_local_numel(t, r), local);
        tsr_runs_fini(&runs);
    }
    for (uint64_t i = 0; i < numel; i++)
        assert_int_equal(count[i], copies);
    free(count);
}

/* A box says the same as the runs. */
static void check_box(const struct tsr_dtensor *t)
{
    for (uint64_t r = 0; r < test_world(t); r++) {
        uint64_t offset[TSR_DT_MAX_DIMS], size[TSR_DT_MAX_DIMS];
        if (!tsr_dtensor_box(t, r, offset, size))
            continue;
        for (int d = 0; d < t->n_dims; d++) {
            struct tsr_runs runs;
            assert_true(tsr_dtensor_dim_runs(t, d, r, &runs));
            assert_int_equal(runs.n, size[d] > 0);
            if (runs.n) {
                assert_int_equal(runs.items[0].start, offset[d]);
                assert_int_equal(runs.items[0].length, size[d]);
            }
            tsr_runs_fini(&runs);
        }
    }
}

struct holder_check {
    const struct tsr_dtensor *t;
    int dim;
    uint64_t covered;
};

/* The holder's local indices are what that rank's runs say. */
static tsr_status check_holder(void *user, const struct tsr_holder *h)
{
    struct holder_check *c = user;
    uint64_t rank = 0, at = 0, left = h->length, index = h->local_start;
    struct tsr_runs runs;
    for (int i = 0; i < c->t->n_mesh; i++)
        rank += (uint64_t)h->coord[i] * c->t->mesh[i].stride;
    assert_true(tsr_dtensor_dim_runs(c->t, c->dim, rank, &runs));
    for (size_t i = 0; i < runs.n && left > 0; i++) {
        const struct tsr_shard_run *run = &runs.items[i];
        for (uint64_t k = 0; k < run->length && left > 0; k++, at++)
            if (at == index) {
                assert_int_equal(run->start + k, h->start + (h->length - left));
                index++;
                left--;
            }
    }
    assert_int_equal(left, 0);
    c->covered += h->length;
    tsr_runs_fini(&runs);
    uint64_t shape[TSR_DT_MAX_DIMS];
    tsr_dtensor_local_shape(c->t, rank, shape);
    assert_int_equal(shape[c->dim], h->local_size);
    return TSR_OK;
}

static void check_holders(const struct tsr_dtensor *t)
{
    for (int d = 0; d < t->n_dims; d++) {
        uint64_t start = test_random(t->shape[d] + 1);
        uint64_t length = test_random(t->shape[d] - start + 1);
        struct holder_check c = {t, d, 0};
        assert_int_equal(tsr_dtensor_holders(t, d, start, length, check_holder, &c), TSR_OK);
        assert_int_equal(c.covered, length);
    }
}

static void shards_tile_the_tensor_exactly_once(void **state)
{
    (void)state;
    test_seed("tiling");
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t shape[TSR_DT_MAX_DIMS];
        struct tsr_dtensor t;
        int n_dims = test_random_shape(shape);
        t = test_random_layout(n_dims, shape);
        check_tiling(&t);
        check_box(&t);
        check_holders(&t);
    }
}

/* R45: the parts of all ranks, put together, are the tensor; whatever lies behind a part stays. */
static void parts_reconstruct_the_tensor(void **state)
{
    (void)state;
    enum { GUARD = 16 };
    test_seed("reconstruction");
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t shape[TSR_DT_MAX_DIMS];
        int n_dims = test_random_shape(shape);
        struct tsr_dtensor t = test_random_layout(n_dims, shape);
        size_t n = (size_t)tsr_dtensor_numel(&t);
        uint32_t *global = calloc(n + 1, 4), *back = calloc(n + 1, 4);
        assert_true(global && back);
        for (size_t k = 0; k < n; k++)
            global[k] = (uint32_t)k + 1;
        for (uint64_t r = 0; r < test_world(&t); r++) {
            size_t local = (size_t)tsr_dtensor_local_numel(&t, r) * 4;
            unsigned char *part = malloc(local + GUARD);
            assert_non_null(part);
            memset(part, 0xee, local + GUARD);
            assert_int_equal(test_take(&t, r, 4, global, part), TSR_OK);
            for (size_t k = local; k < local + GUARD; k++)
                assert_int_equal(part[k], 0xee);
            assert_int_equal(tsr_dtensor_put(&t, r, 4, part, back), TSR_OK);
            free(part);
        }
        assert_memory_equal(global, back, n * 4);
        free(global);
        free(back);
    }
}

/* ---- section 2.8 ----------------------------------------------------------------------------- */

struct part {
    uint64_t begin, count;
};

/* The rule written out again, as a second opinion. */
static struct part ceil_chunk(uint64_t n, uint32_t world, uint32_t rank)
{
    uint64_t rows = (n + world - 1) / world;
    uint64_t begin = rows * rank < n ? rows * rank : n;
    return (struct part){begin, n - begin < rows ? n - begin : rows};
}

/* R39: strided sharding is tensor parallelism first and FSDP second, also where sizes are uneven
 * (13 rows, 3 x 2: cutting pieces of the FSDP part again would give another answer). */
static void strided_shards_are_cut_last(void **state)
{
    (void)state;
    test_seed("strided");
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t n = i == 0 ? 13 : test_random(40);
        uint32_t mesh[2] = {i == 0 ? 3 : 1 + (uint32_t)test_random(5),
                            i == 0 ? 2 : 2 + (uint32_t)test_random(5)};
        struct tsr_placement place[2] = {tsr_shard_placement(0, mesh[1]),
                                         tsr_shard_placement(0, 1)};
        struct tsr_dtensor t = test_layout(1, &n, 2, mesh, place);
        for (uint32_t r = 0; r < mesh[0] * mesh[1]; r++) {
            uint64_t offset, size;
            struct part tp = ceil_chunk(n, mesh[1], r % mesh[1]);
            struct part fsdp = ceil_chunk(tp.count, mesh[0], r / mesh[1]);
            assert_true(tsr_dtensor_box(&t, r, &offset, &size));
            assert_int_equal(size, fsdp.count);
            assert_int_equal(offset, tp.begin + fsdp.begin);
        }
    }
}

/* R40: 8 rows, 2 x 2, both on dim 0. */
static void eight_rows_two_by_two(void **state)
{
    (void)state;
    static const uint64_t first[4] = {0, 4, 2, 6}, shape[2] = {8, 3};
    static const uint32_t mesh[2] = {2, 2};
    struct tsr_placement place[2] = {tsr_shard_placement(0, 2), tsr_shard_placement(0, 1)};
    struct tsr_dtensor t = test_layout(2, shape, 2, mesh, place);
    for (uint64_t r = 0; r < 4; r++) {
        struct tsr_runs runs = runs_of(&t, r);
        assert_int_equal(runs.n, 1);
        assert_int_equal(runs.items[0].start, first[r] * 3);
        assert_int_equal(runs.items[0].length, 6);
        tsr_runs_fini(&runs);
    }
}

/* After the tensor-parallel dimension alone is gathered, a strided shard has a hole. */
static void strided_shard_alone_has_pieces(void **state)
{
    (void)state;
    static const uint64_t shape[1] = {8};
    static const uint32_t mesh[2] = {2, 2};
    struct tsr_placement place[2] = {tsr_shard_placement(0, 2), tsr_replicate_placement()};
    struct tsr_dtensor t = test_layout(1, shape, 2, mesh, place);
    uint64_t offset, size;
    assert_false(tsr_dtensor_box(&t, 0, &offset, &size));
    struct tsr_runs runs = runs_of(&t, 2); /* dp 1: rows 2-3 and 6-7 */
    assert_int_equal(runs.n, 2);
    assert_int_equal(runs.items[0].start, 2);
    assert_int_equal(runs.items[1].start, 6);
    tsr_runs_fini(&runs);
}

/* Two shards of one dimension: the left mesh dimension cuts first. */
static void left_shard_cuts_first(void **state)
{
    (void)state;
    static const uint64_t shape[1] = {10};
    static const uint32_t mesh[2] = {2, 2};
    static const uint64_t first[4] = {0, 3, 5, 8}, size[4] = {3, 2, 3, 2};
    struct tsr_placement place[2] = {tsr_shard_placement(0, 1), tsr_shard_placement(0, 1)};
    struct tsr_dtensor t = test_layout(1, shape, 2, mesh, place);
    for (uint64_t r = 0; r < 4; r++) {
        uint64_t o, s;
        assert_true(tsr_dtensor_box(&t, r, &o, &s));
        assert_int_equal(o, first[r]);
        assert_int_equal(s, size[r]);
    }
}

/* A rank without rows keeps the other dimensions. */
static void empty_shards_keep_other_dims(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {5, 8};
    static const uint32_t mesh[1] = {4};
    struct tsr_placement place[1] = {tsr_shard_placement(0, 1)};
    struct tsr_dtensor t = test_layout(2, shape, 1, mesh, place);
    uint64_t local[2];
    tsr_dtensor_local_shape(&t, 3, local);
    assert_int_equal(local[0], 0);
    assert_int_equal(local[1], 8);
    struct tsr_runs runs = runs_of(&t, 3);
    assert_int_equal(runs.n, 0);
    tsr_runs_fini(&runs);
}

static void scalars_have_one_element(void **state)
{
    (void)state;
    struct tsr_dtensor t = {0};
    assert_int_equal(tsr_dtensor_check(&t), TSR_OK);
    struct tsr_runs runs = runs_of(&t, 0);
    assert_int_equal(runs.n, 1);
    assert_int_equal(runs.items[0].length, 1);
    tsr_runs_fini(&runs);
}

/* ---- refusals, sizes ------------------------------------------------------------------------- */

static void malformed_layouts_are_refused(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {4, 4};
    static const uint32_t mesh[1] = {2};
    struct tsr_placement place[1] = {tsr_shard_placement(0, 1)};
    const struct tsr_dtensor good = test_layout(2, shape, 1, mesh, place);
    struct tsr_dtensor bad[10];
    for (int i = 0; i < 10; i++)
        bad[i] = good;
    bad[0].n_dims = TSR_DT_MAX_DIMS + 1;
    bad[1].n_dims = -1;
    bad[2].n_mesh = TSR_DT_MAX_MESH + 1;
    bad[3].mesh[0].size = 0;
    bad[4].mesh[0].stride = 0;
    bad[5].place[0].dim = 2;
    bad[6].place[0].dim = -1;
    bad[7].place[0] = (struct tsr_placement){TSR_PLACE_STRIDED_SHARD, 0, 0};
    bad[8].shape[0] = UINT64_C(1) << 60;
    bad[9].place[0].kind = (enum tsr_placement_kind)7;
    for (int i = 0; i < 10; i++)
        assert_int_equal(tsr_dtensor_check(&bad[i]), TSR_EVALUE);
    assert_int_equal(tsr_dtensor_holders(&good, 0, 3, 2, check_holder, NULL), TSR_EVALUE);
    assert_false(tsr_dtensor_equal(&good, &bad[4]));
    assert_true(tsr_dtensor_equal(&good, &good));
}

/* 2^60 elements: nothing overflows, the parts still add up. */
static void huge_tensors_do_not_overflow(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {(UINT64_C(1) << 50) - 1, 1 << 10};
    static const uint32_t mesh[2] = {16383, 8};
    struct tsr_placement place[2] = {tsr_shard_placement(0, 8), tsr_shard_placement(0, 1)};
    struct tsr_dtensor t = test_layout(2, shape, 2, mesh, place);
    uint64_t total = 0;
    for (uint64_t r = 0; r < test_world(&t); r++)
        total += tsr_dtensor_local_numel(&t, r);
    assert_true(total == tsr_dtensor_numel(&t));
    struct tsr_runs runs = runs_of(&t, test_world(&t) - 1);
    assert_int_equal(runs.n, 1);
    assert_true(runs.items[0].start + runs.items[0].length == tsr_dtensor_numel(&t));
    tsr_runs_fini(&runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shards_tile_the_tensor_exactly_once),
                                       cmocka_unit_test(parts_reconstruct_the_tensor),
                                       cmocka_unit_test(strided_shards_are_cut_last),
                                       cmocka_unit_test(eight_rows_two_by_two),
                                       cmocka_unit_test(strided_shard_alone_has_pieces),
                                       cmocka_unit_test(left_shard_cuts_first),
                                       cmocka_unit_test(empty_shards_keep_other_dims),
                                       cmocka_unit_test(scalars_have_one_element),
                                       cmocka_unit_test(malformed_layouts_are_refused),
                                       cmocka_unit_test(huge_tensors_do_not_overflow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
