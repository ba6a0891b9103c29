/* test_reshard.c: from one layout to another as byte ranges, with real bytes. Rules R227, R228. */
#include "engine/layout/sharded_state.h"
#include "tests/engine/layout_testing.h"

enum { ROUNDS = 1500, GUARD = 24, POISON = 0xa5 };

/* ---- a job's shards -------------------------------------------------------------------------- */

struct job {
    struct tsr_dtensor layout;
    uint32_t world;
    unsigned bytes; /* of an element */
    unsigned char **shards;
    unsigned char **written; /* how often each byte was */
};

static size_t shard_bytes(const struct job *j, uint32_t rank)
{
    return (size_t)tsr_dtensor_local_numel(&j->layout, rank) * j->bytes;
}

/* Shards full of poison, with padding behind them. */
static struct job job_open(const struct tsr_dtensor *layout, unsigned bytes)
{
    struct job j = {*layout, (uint32_t)test_world(layout), bytes, NULL, NULL};
    j.shards = calloc(j.world, sizeof *j.shards);
    j.written = calloc(j.world, sizeof *j.written);
    assert_true(j.shards && j.written);
    for (uint32_t r = 0; r < j.world; r++) {
        size_t n = shard_bytes(&j, r) + GUARD;
        j.shards[r] = malloc(n);
        j.written[r] = calloc(n, 1);
        assert_true(j.shards[r] && j.written[r]);
        memset(j.shards[r], POISON, n);
    }
    return j;
}

static void job_close(struct job *j)
{
    for (uint32_t r = 0; r < j->world; r++) {
        free(j->shards[r]);
        free(j->written[r]);
    }
    free(j->shards);
    free(j->written);
}

static void job_fill(struct job *j, const void *global)
{
    for (uint32_t r = 0; r < j->world; r++)
        assert_int_equal(test_take(&j->layout, r, j->bytes, global, j->shards[r]), TSR_OK);
}

/* Every shard is that part of the tensor, and its padding was left alone. */
static void job_check(const struct job *j, const void *global)
{
    for (uint32_t r = 0; r < j->world; r++) {
        size_t n = shard_bytes(j, r);
        unsigned char *want = malloc(n + 1);
        assert_non_null(want);
        assert_int_equal(test_take(&j->layout, r, j->bytes, global, want), TSR_OK);
        assert_memory_equal(j->shards[r], want, n);
        for (size_t i = n; i < n + GUARD; i++)
            assert_int_equal(j->shards[r][i], POISON);
        free(want);
    }
}

struct move {
    const struct job *from;
    struct job *to;
    uint32_t rank;
    size_t n_ranges;
    struct tsr_byte_range last;
};

static tsr_status move_range(void *user, const struct tsr_byte_range *g)
{
    struct move *m = user;
    assert_int_equal(g->to_rank, m->rank);
    assert_true(g->from_rank < m->from->world && g->bytes > 0);
    assert_true(g->from_offset + g->bytes <= shard_bytes(m->from, g->from_rank));
    assert_true(g->to_offset + g->bytes <= shard_bytes(m->to, g->to_rank));
    bool adjacent = m->n_ranges > 0 && m->last.from_rank == g->from_rank &&
                    m->last.from_offset + m->last.bytes == g->from_offset &&
                    m->last.to_offset + m->last.bytes == g->to_offset;
    assert_false(adjacent); /* would have been one range */
    memcpy(m->to->shards[g->to_rank] + g->to_offset, m->from->shards[g->from_rank] + g->from_offset,
           (size_t)g->bytes);
    for (uint64_t i = 0; i < g->bytes; i++)
        m->to->written[g->to_rank][g->to_offset + i]++;
    m->last = *g;
    m->n_ranges++;
    return TSR_OK;
}

static void job_reshard(const struct job *from, struct job *to)
{
    for (uint32_t r = 0; r < to->world; r++) {
        struct move m = {.from = from, .to = to, .rank = r};
        assert_int_equal(tsr_reshard_tensor(&from->layout, from->world, &to->layout, r, to->bytes,
                                            move_range, &m),
                         TSR_OK);
        for (size_t i = 0; i < shard_bytes(to, r); i++)
            assert_int_equal(to->written[r][i], 1);
    }
}

/* ---- properties ------------------------------------------------------------------------------ */

/* R228: A to B to A is the identity, whatever the layouts; padding never leaks. */
static void there_and_back_is_the_identity(void **state)
{
    (void)state;
    static const unsigned sizes[] = {1, 2, 4, 8};
    test_seed("resharding");
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t shape[TSR_DT_MAX_DIMS];
        int n_dims = test_random_shape(shape);
        unsigned bytes = sizes[test_random(4)];
        struct tsr_dtensor a = test_random_layout(n_dims, shape);
        struct tsr_dtensor b = test_random_layout(n_dims, shape);
        size_t n = (size_t)tsr_dtensor_numel(&a) * bytes;
        unsigned char *global = malloc(n + 1);
        assert_non_null(global);
        for (size_t k = 0; k < n; k++)
            global[k] = (unsigned char)test_random(POISON); /* never the poison */
        struct job ja = job_open(&a, bytes), jb = job_open(&b, bytes), back = job_open(&a, bytes);
        job_fill(&ja, global);
        job_reshard(&ja, &jb);
        job_check(&jb, global);
        job_reshard(&jb, &back);
        job_check(&back, global);
        job_close(&ja);
        job_close(&jb);
        job_close(&back);
        free(global);
    }
}

/* R227: a full tensor is a layout, too: everything on one rank, and back to the shards. */
static void full_tensor_and_back(void **state)
{
    (void)state;
    test_seed("full");
    for (int i = 0; i < 300; i++) {
        uint64_t shape[TSR_DT_MAX_DIMS];
        int n_dims = test_random_shape(shape);
        struct tsr_dtensor full = {.n_dims = n_dims}, a = test_random_layout(n_dims, shape);
        memcpy(full.shape, shape, sizeof full.shape);
        size_t n = (size_t)tsr_dtensor_numel(&a) * 4;
        unsigned char *global = malloc(n + 1);
        assert_non_null(global);
        for (size_t k = 0; k < n; k++)
            global[k] = (unsigned char)test_random(POISON);
        struct job shards = job_open(&a, 4), one = job_open(&full, 4), back = job_open(&a, 4);
        job_fill(&shards, global);
        job_reshard(&shards, &one);
        assert_memory_equal(one.shards[0], global, n);
        job_reshard(&one, &back);
        job_check(&back, global);
        job_close(&shards);
        job_close(&one);
        job_close(&back);
        free(global);
    }
}

/* ---- whom a rank reads from ------------------------------------------------------------------ */

struct readers {
    uint32_t rank;
    uint64_t own, other;
    size_t n;
    uint64_t end; /* of the destination so far */
};

static tsr_status count_reads(void *user, const struct tsr_byte_range *g)
{
    struct readers *r = user;
    *(g->from_rank == r->rank ? &r->own : &r->other) += g->bytes;
    assert_true(g->to_offset == r->end);
    r->end += g->bytes;
    r->n++;
    return TSR_OK;
}

/* The same layout again: a rank reads its own shard, in one piece, and nobody else's. */
static void same_layout_reads_itself(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {10, 6};
    static const uint32_t mesh[2] = {2, 4};
    struct tsr_placement place[2] = {tsr_replicate_placement(), tsr_shard_placement(0, 1)};
    struct tsr_dtensor t = test_layout(2, shape, 2, mesh, place);
    for (uint32_t rank = 0; rank < 8; rank++) {
        struct readers r = {.rank = rank};
        assert_int_equal(tsr_reshard_tensor(&t, 8, &t, rank, 2, count_reads, &r), TSR_OK);
        assert_int_equal(r.other, 0);
        assert_true(r.own == tsr_dtensor_local_numel(&t, rank) * 2);
        assert_int_equal(r.n, r.own > 0);
    }
}

/* Readers of a replicated tensor spread over those who have it. */
static void replicas_are_read_evenly(void **state)
{
    (void)state;
    static const uint64_t shape[1] = {8};
    static const uint32_t four[1] = {4}, eight[1] = {8};
    struct tsr_placement whole[1] = {tsr_replicate_placement()};
    struct tsr_dtensor from = test_layout(1, shape, 1, four, whole);
    struct tsr_dtensor to = test_layout(1, shape, 1, eight, whole);
    for (uint32_t rank = 0; rank < 8; rank++) {
        struct readers r = {.rank = rank % 4};
        assert_int_equal(tsr_reshard_tensor(&from, 4, &to, rank, 4, count_reads, &r), TSR_OK);
        assert_int_equal(r.own, 32);
        assert_int_equal(r.other, 0);
    }
}

/* 2^60 elements from 16,383 to 10,000 ranks: offsets stay below 2^63, reads are few. */
static void huge_tensors_do_not_overflow(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {UINT64_C(1) << 50, 1 << 10};
    static const uint32_t a[1] = {16383}, b[1] = {10000};
    struct tsr_placement place[1] = {tsr_shard_placement(0, 1)};
    struct tsr_dtensor from = test_layout(2, shape, 1, a, place);
    struct tsr_dtensor to = test_layout(2, shape, 1, b, place);
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < 10000; rank++) {
        struct readers r = {.rank = rank};
        assert_int_equal(tsr_reshard_tensor(&from, 16383, &to, rank, 8, count_reads, &r), TSR_OK);
        assert_true(r.own + r.other == tsr_dtensor_local_numel(&to, rank) * 8);
        assert_true(r.n <= 4);
        total += (r.own + r.other) / 8;
    }
    assert_true(total == UINT64_C(1) << 60);
}

static tsr_status refuse(void *user, const struct tsr_byte_range *range)
{
    (void)user;
    (void)range;
    return tsr_fail(TSR_EIO, "disk full");
}

static void malformed_requests_are_refused(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {8, 6}, other[2] = {8, 5};
    static const uint32_t mesh[1] = {4};
    struct tsr_placement place[1] = {tsr_shard_placement(0, 1)};
    struct tsr_dtensor a = test_layout(2, shape, 1, mesh, place);
    struct tsr_dtensor b = test_layout(2, other, 1, mesh, place), bad = a;
    struct readers r = {0};
    assert_int_equal(tsr_reshard_tensor(&a, 4, &b, 0, 4, count_reads, &r), TSR_EVALUE);
    assert_int_equal(tsr_reshard_tensor(&a, 0, &a, 0, 4, count_reads, &r), TSR_EVALUE);
    assert_int_equal(tsr_reshard_tensor(&a, 4, &a, 0, 0, count_reads, &r), TSR_EVALUE);
    assert_int_equal(tsr_reshard_tensor(&a, 4, &a, 0, 16, count_reads, &r), TSR_EVALUE);
    bad.place[0].dim = 5;
    assert_int_equal(tsr_reshard_tensor(&bad, 4, &a, 0, 4, count_reads, &r), TSR_EVALUE);
    assert_int_equal(tsr_reshard_tensor(&a, 4, &bad, 0, 4, count_reads, &r), TSR_EVALUE);
    assert_int_equal(tsr_reshard_tensor(&a, 4, &a, 0, 4, refuse, NULL), TSR_EIO);
    assert_int_equal(r.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(there_and_back_is_the_identity),
                                       cmocka_unit_test(full_tensor_and_back),
                                       cmocka_unit_test(same_layout_reads_itself),
                                       cmocka_unit_test(replicas_are_read_evenly),
                                       cmocka_unit_test(huge_tensors_do_not_overflow),
                                       cmocka_unit_test(malformed_requests_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
