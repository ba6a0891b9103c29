/* test_rules_layout.c: how parameters are cut, stored and gathered (R25-R38, R47-R52). */
#include "tests/rules/rules_testing.h"

/* One linear of (rows, cols) without bias behind a float input, wrapped as the root. */
static void open_linear(struct rig *r, uint64_t rows, uint64_t cols, struct rig_setup s,
                        const struct tsr_wrap_options *o)
{
    struct tsr_tree_node leaf = rig_leaf("l", TSR_TREE_LINEAR, cols, rows);
    struct tsr_tree_config config = {
        .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 1, .children = &leaf},
        .in_dim = cols,
        .loss_mse = true};
    rig_engine(r, s);
    rig_ok(tsr_model_tree(r->e, &config));
    rig_shard(r, "", o);
}

static uint64_t bytes_of(struct rig *r, const char *category)
{
    return rig_at(r, RIG_FIND(r, 0, .kind = TSR_ALLOC, .category = category))->bytes;
}

/* R25, R26, R27, R28, R29, R30: rows by ceil(n / W), storage padded, shape not. */
static void dim0_chunks(void **state)
{
    (void)state;
    static const struct {
        uint64_t rows;
        uint32_t world;
        uint64_t local[TSR_MAX_DIMS];
    } cases[] = {{5, 4, {2, 2, 1, 0}}, {9, 4, {3, 3, 3, 0}}, {1, 4, {1, 0, 0, 0}}, {8, 2, {4, 4}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint64_t chunk = (cases[c].rows + cases[c].world - 1) / cases[c].world;
        for (uint32_t rank = 0; rank < cases[c].world; rank++) {
            struct rig r;
            uint64_t local[TSR_MAX_DIMS];
            open_linear(&r, cases[c].rows, 6,
                        (struct rig_setup){.shards = cases[c].world, .rank = rank}, NULL);
            tsr_param_local_shape(r.e, 0, rank, local);
            assert_int_equal(local[0], cases[c].local[rank]);
            assert_int_equal(local[1], 6);
            struct tsr_param_layout p = tsr_param_layout(r.e, 0);
            assert_int_equal(p.shape[0], cases[c].rows);
            assert_int_equal(p.padded[0], chunk);
            rig_start(&r);
            assert_int_equal(bytes_of(&r, "Sharded Param"), chunk * 6 * 4);
            if (local[0] < chunk) { /* zeros, also behind the values */
                size_t fill = RIG_FIND(&r, 0, .kind = TSR_FILL);
                assert_int_equal(rig_at(&r, fill)->bytes, chunk * 6 * 4);
            }
            if (local[0] > 0) {
                size_t init = RIG_FIND(&r, 0, .kind = TSR_OP, .work = "init_param");
                assert_int_equal(rig_at(&r, init)->work->bytes_written, local[0] * 6 * 4);
            }
            rig_step(&r);
            assert_int_equal(bytes_of(&r, "Unsharded Param"), cases[c].world * chunk * 6 * 4);
            rig_close(&r);
        }
    }
}

/* R31, R92: the ranks' inputs are the slices of the gathered buffer, one after the other, without a
 * hole; and their real rows, in rank order, are the rows of the parameter. */
static void shards_tile_the_parameter(void **state)
{
    (void)state;
    for (uint64_t rows = 1; rows <= 11; rows++)
        for (uint32_t world = 2; world <= 5; world++) {
            uint64_t end = 0, total = 0;
            for (uint32_t rank = 0; rank < world; rank++) {
                struct rig r;
                uint64_t local[TSR_MAX_DIMS];
                open_linear(&r, rows, 3, (struct rig_setup){.shards = world, .rank = rank}, NULL);
                rig_start(&r);
                rig_step(&r);
                const struct tsr_instr *ag = rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_GATHER));
                assert_int_equal(ag->operands[0].offset, end);
                end += ag->operands[0].bytes;
                if (rank + 1 == world)
                    assert_int_equal(end, ag->bytes);
                tsr_param_local_shape(r.e, 0, rank, local);
                /* a rank's first row is where the slices begin: nothing lies between real rows */
                assert_true(local[0] == 0 || total == ag->operands[0].offset / (3 * 4));
                total += local[0];
                rig_close(&r);
            }
            assert_int_equal(total, rows);
        }
}

static const struct tsr_shard_dim dim1[] = {{"l.weight", 1, false}};
static const struct tsr_shard_dim last[] = {{"l.weight", -1, false}};

/* R32, R33, R35, R36: dim 1 evenly, -1 counts from the end, and the extra passes over the data. */
static void other_dims(void **state)
{
    (void)state;
    struct rig r;
    uint64_t local[TSR_MAX_DIMS];
    struct tsr_wrap_options o = {.n_shard_dims = 1, .shard_dims = last};
    open_linear(&r, 5, 8, (struct rig_setup){.shards = 4}, &o);
    assert_int_equal(tsr_param_layout(r.e, 0).shard_dim, 1);
    tsr_param_local_shape(r.e, 0, 3, local);
    assert_int_equal(local[0], 5);
    assert_int_equal(local[1], 2);
    rig_start(&r);
    rig_step(&r);
    /* gathered along dim 0 into a temporary of full size, then laid out: twice the bytes */
    const struct tsr_instr *copy =
        rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_OP, .work = "split_with_sizes_copy"));
    assert_int_equal(copy->work->bytes_written, 2 * 5 * 8 * 4);
    const struct tsr_instr *cat = rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_OP, .work = "chunk_cat"));
    assert_int_equal(cat->work->bytes_read, 2 * 5 * 8 * 4);
    rig_close(&r);
    struct tsr_wrap_options other = {.n_shard_dims = 1, .shard_dims = dim1};
    struct tsr_shard_dim none[] = {{"another", 1, false}};
    other.shard_dims = none; /* the function says nothing of this parameter */
    open_linear(&r, 5, 8, (struct rig_setup){.shards = 4}, &other);
    assert_int_equal(tsr_param_layout(r.e, 0).shard_dim, 0);
    rig_close(&r);
}

/* R37: same column, same shard; same row, different shards. */
static void hsdp_shards(void **state)
{
    (void)state;
    uint64_t offset[8];
    for (uint32_t rank = 0; rank < 8; rank++) {
        struct rig r;
        open_linear(&r, 8, 4, (struct rig_setup){.shards = 4, .replicas = 2, .rank = rank}, NULL);
        rig_start(&r);
        rig_step(&r);
        offset[rank] = rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_GATHER))->operands[0].offset;
        rig_close(&r);
    }
    for (uint32_t rank = 0; rank < 8; rank++)
        assert_int_equal(offset[rank], rank % 4 * 2 * 4 * 4);
}

/* R38: replicated: full shape, no padding. */
static void replicate_has_no_padding(void **state)
{
    (void)state;
    for (uint64_t rows = 1; rows < 8; rows++) {
        struct rig r;
        struct tsr_tree_node leaf = rig_leaf("l", TSR_TREE_LINEAR, 3, rows);
        struct tsr_tree_config config = {
            .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 1, .children = &leaf},
            .in_dim = 3,
            .loss_mse = true};
        rig_engine(&r, (struct rig_setup){.shards = 4, .rank = 3});
        rig_ok(tsr_model_tree(r.e, &config));
        rig_replicate(&r, "", NULL);
        uint64_t local[TSR_MAX_DIMS];
        tsr_param_local_shape(r.e, 0, 3, local);
        assert_int_equal(local[0], rows);
        assert_int_equal(tsr_param_layout(r.e, 0).padded[0], rows);
        assert_int_equal(tsr_param_layout(r.e, 0).shard_dim, -1);
        rig_start(&r);
        assert_int_equal(bytes_of(&r, "Sharded Param"), rows * 3 * 4);
        rig_close(&r);
    }
}

/* R47, R48, R52, R109: int G keeps slice (rank in the smaller group) of the padded flat tensor, and
 * gathers it there. The smaller groups are runs of G ranks, for HSDP too. */
static void post_forward_slices(void **state)
{
    (void)state;
    static const struct rig_setup meshes[] = {{.shards = 4}, {.shards = 4, .replicas = 2}};
    const struct tsr_wrap_options two = {.reshard = TSR_RESHARD_INT, .reshard_int = 2};
    for (size_t m = 0; m < 2; m++)
        for (uint32_t rank = 0; rank < 4 * (m + 1); rank++) {
            struct rig r;
            struct rig_setup s = meshes[m];
            s.rank = rank;
            open_linear(&r, 5, 6, s, &two);
            rig_start(&r);
            rig_step(&r);
            const uint64_t padded = 8 * 6 * 4, slice = padded / 2;
            const struct tsr_instr *copy =
                rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_COPY, .work = "post_forward_slice"));
            assert_int_equal(copy->operands[0].bytes, slice);
            assert_int_equal(copy->operands[0].offset, rank % 2 * slice);
            assert_int_equal(bytes_of(&r, "Post-Forward Shard"), slice);
            const struct tsr_instr *ag = rig_at(&r, RIG_FIND(&r, 1, .kind = TSR_ALL_GATHER));
            const struct tsr_comm *comm = &tsr_engine_tables(r.e)->comms[ag->comm];
            assert_string_equal(comm->name, "post_forward_2");
            assert_int_equal(ag->bytes, padded);
            assert_int_equal(tsr_comm_member(comm, rank, 0), rank / 2 * 2);
            assert_int_equal(tsr_comm_member(comm, rank, 1), rank / 2 * 2 + 1);
            rig_close(&r);
        }
}

/* R49, R50: divisors only; 1 is False, W is True. */
static void int_reshard_values(void **state)
{
    (void)state;
    static const int64_t bad[] = {0, 3, 8, -2};
    for (size_t i = 0; i < 4; i++) {
        struct rig r;
        struct tsr_wrap_options o = {.reshard = TSR_RESHARD_INT, .reshard_int = bad[i]};
        rig_open(&r, (struct rig_setup){.shards = 4});
        rig_refused(rig_try_shard(&r, "layers.0", &o), TSR_EVALUE, "factor of 4");
        rig_close(&r);
    }
    static const struct {
        int64_t value;
        const char *res;
    } good[] = {{1, "reshard g=layers.0 state=forward res=keep"},
                {4, "reshard g=layers.0 state=forward res=sharded"}};
    for (size_t i = 0; i < 2; i++) {
        struct rig r;
        struct tsr_wrap_options o = {.reshard = TSR_RESHARD_INT, .reshard_int = good[i].value};
        rig_ready(&r, (struct rig_setup){.shards = 4}, &o, NULL);
        rig_step(&r);
        assert_int_equal(rig_count(&r, good[i].res), 1);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dim0_chunks),
        cmocka_unit_test(shards_tile_the_parameter),
        cmocka_unit_test(other_dims),
        cmocka_unit_test(hsdp_shards),
        cmocka_unit_test(replicate_has_no_padding),
        cmocka_unit_test(post_forward_slices),
        cmocka_unit_test(int_reshard_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
