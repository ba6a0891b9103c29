/* test_world_threads.c: collectives between threads: right bits, whichever streams and
 * communicators are in flight; failures end all calls, with one text.
 */
#include "tests/world/collectives_testing.h"

#include <setjmp.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_collectives__random_programs__same_bits_as_the_reference(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 8; size++) {
        struct ct_program program = ct_program(size, 42 + size);
        struct ct_rank ranks[8];
        ct_threads(size, 20, ranks, ct_random_body, &program);
        for (uint32_t r = 0; r < size; r++)
            assert_string_equal(ranks[r].error, "");
    }
}

/* ---- more calls than posts ---------------------------------------------------------------------
 */

enum { MANY = 1200 }; /* calls of one communicator; a rank has 64 posts for it */

struct strand {
    struct ct_rank *rank;
    uint32_t i; /* takes sequence numbers i, i + 3, ... */
};

static void *strand_main(void *arg)
{
    struct strand *s = arg;
    struct tsr_world *w = s->rank->world;
    const struct tsr_comm comm = {.name = "world", .size = w->size, .stride = 1};
    for (uint32_t k = s->i; k < MANY; k += 3) {
        if (s->i == 0 && w->rank == 1 && k % 150 == 0) /* the others run ahead of this one */
            (void)nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        int64_t mine = (int64_t)k * 10 + w->rank, sum = 0;
        const struct tsr_collective call = {.kind = TSR_ALL_REDUCE,
                                            .dtype = TSR_I64,
                                            .reduce_op = TSR_REDUCE_SUM,
                                            .comm = &comm,
                                            .sequence = k,
                                            .send = &mine,
                                            .recv = &sum,
                                            .bytes = sizeof sum};
        if (w->ops->collective(w, &call) != TSR_OK)
            return "a call failed";
        if (sum != (int64_t)k * 30 + 3)
            return "a sum is wrong";
    }
    return NULL;
}

static void three_strands(struct ct_rank *rank)
{
    struct strand strands[3];
    pthread_t threads[3];
    for (uint32_t i = 0; i < 3; i++) {
        strands[i] = (struct strand){rank, i};
        if (pthread_create(&threads[i], NULL, strand_main, &strands[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < 3; i++) {
        void *error = NULL;
        (void)pthread_join(threads[i], &error);
        if (error)
            snprintf(rank->error, sizeof rank->error, "%s", (const char *)error);
    }
}

static void test_collective__many_calls_of_unequal_streams__posts_are_used_again(void **state)
{
    (void)state;
    struct ct_rank ranks[3];
    ct_threads(3, 20, ranks, three_strands, NULL);
    for (uint32_t r = 0; r < 3; r++)
        assert_string_equal(ranks[r].error, "");
}

/* ---- failures -------------------------------------------------------------------------------- */

static const struct tsr_comm shard = {.name = "shard", .size = 4, .stride = 1};

static tsr_status gather(struct ct_rank *rank, uint64_t sequence, uint64_t bytes)
{
    char in[64] = {0}, out[256];
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_F32,
                                        .comm = &shard,
                                        .sequence = sequence,
                                        .send = in,
                                        .recv = out,
                                        .bytes = bytes};
    double begin = now();
    rank->status = rank->world->ops->collective(rank->world, &call);
    rank->seconds = now() - begin;
    snprintf(rank->error, sizeof rank->error, "%s", rank->status == TSR_OK ? "" : tsr_error_text());
    return rank->status;
}

static void expect_all(const struct ct_rank *ranks, uint32_t except, tsr_status status,
                       const char *text)
{
    for (uint32_t r = 0; r < 4; r++)
        if (r != except) {
            assert_string_equal(ranks[r].error, text);
            assert_int_equal(ranks[r].status, status);
        }
}

static void all_but_rank_3(struct ct_rank *rank)
{
    if (gather(rank, 11, 256) != TSR_OK || rank->world->rank == 3)
        return;
    rank->world->timeout_s = 2; /* enough for the others on a machine with other work */
    (void)gather(rank, 12, 256);
}

static void test_collective__a_rank_does_not_come__all_give_up_in_time(void **state)
{
    (void)state;
    struct ct_rank ranks[4];
    ct_threads(4, 20, ranks, all_but_rank_3, NULL);
    expect_all(ranks, 3, TSR_EPEER,
               "rank 3 did not arrive at all_gather #12 of 'shard' within 2 s");
    assert_int_equal(ranks[3].status, TSR_OK);
    double longest = 0; /* of the first that came */
    for (uint32_t r = 0; r < 3; r++)
        longest = ranks[r].seconds > longest ? ranks[r].seconds : longest;
    assert_true(longest >= 1.99 && longest < 10);
}

static void rank_1_aborts(struct ct_rank *rank)
{
    if (rank->world->rank == 1) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        rank->world->ops->abort(rank->world, TSR_ERUNTIME, "its loss is not a number");
        rank->world->ops->abort(rank->world, TSR_ERUNTIME, "a second reason");
    }
    (void)gather(rank, 0, 256);
}

static void test_collective__a_rank_aborts__all_stop_and_know_why(void **state)
{
    (void)state;
    struct ct_rank ranks[4];
    double begin = now();
    ct_threads(4, 30, ranks, rank_1_aborts, NULL);
    assert_true(now() - begin < 10);
    expect_all(ranks, 4, TSR_ERUNTIME, "rank 1 gave up: its loss is not a number");
}

static void rank_2_has_more(struct ct_rank *rank)
{
    (void)gather(rank, 5, rank->world->rank == 2 ? 128 : 256);
}

static void rank_2_reduces(struct ct_rank *rank)
{
    if (rank->world->rank != 2) {
        (void)gather(rank, 0, 256);
        return;
    }
    float data[64] = {0};
    const struct tsr_collective call = {.kind = TSR_ALL_REDUCE,
                                        .dtype = TSR_F32,
                                        .reduce_op = TSR_REDUCE_PREMUL_SUM,
                                        .factor = 0.25,
                                        .comm = &shard,
                                        .send = data,
                                        .recv = data,
                                        .bytes = 256};
    rank->status = rank->world->ops->collective(rank->world, &call);
    snprintf(rank->error, sizeof rank->error, "%s", tsr_error_text());
}

/* Who notices first decides which way round the text is: all have the same. */
static void expect_both(const struct ct_rank *ranks, const char *one, const char *other)
{
    expect_all(ranks, 4, TSR_EDEFECT, ranks[0].error);
    assert_non_null(strstr(ranks[0].error, one));
    assert_non_null(strstr(ranks[0].error, other));
    assert_non_null(strstr(ranks[0].error, "of 'shard': rank "));
}

static void test_collective__members_disagree__the_text_names_both(void **state)
{
    (void)state;
    struct ct_rank ranks[4];
    ct_threads(4, 30, ranks, rank_2_has_more, NULL);
    expect_both(ranks, "rank 2 calls all_gather of 128 bytes of f32",
                " calls all_gather of 256 bytes of f32");
    ct_threads(4, 30, ranks, rank_2_reduces, NULL);
    expect_both(ranks, "rank 2 calls all_reduce of 256 bytes of f32, premul_sum by 0.25",
                " calls all_gather of 256 bytes of f32");
}

static void bad_call(struct ct_rank *rank)
{
    if (rank->world->rank == 3)
        (void)gather(rank, 0, 250);
    else
        (void)gather(rank, 0, 256);
}

static void test_collective__bytes_do_not_divide__defect(void **state)
{
    (void)state;
    struct ct_rank ranks[4];
    ct_threads(4, 30, ranks, bad_call, NULL);
    expect_all(ranks, 4, TSR_EDEFECT,
               "all_gather of 'shard' on rank 3: 250 bytes are no multiple of 16");
}

static void overlapping_call(struct ct_rank *rank)
{
    float data[64] = {0};
    const struct tsr_collective call = {.kind = TSR_REDUCE_SCATTER,
                                        .dtype = TSR_F32,
                                        .reduce_op = TSR_REDUCE_SUM,
                                        .comm = &shard,
                                        .send = data,
                                        .recv = data + 4,
                                        .bytes = 256};
    rank->status = rank->world->ops->collective(rank->world, &call);
    snprintf(rank->error, sizeof rank->error, "%s", tsr_error_text());
}

static void test_collective__output_overlaps_input__defect(void **state)
{
    (void)state;
    struct ct_rank ranks[4];
    ct_threads(4, 30, ranks, overlapping_call, NULL);
    assert_int_equal(ranks[0].status, TSR_EDEFECT);
    assert_non_null(strstr(ranks[0].error, "its input overlaps its output"));
}

static void unequal_messages(struct ct_rank *rank)
{
    struct tsr_world *w = rank->world;
    float x = 1;
    struct tsr_message message = {w->rank == 0, 1 - w->rank, &x, w->rank == 0 ? 4 : 2};
    if (w->rank > 1)
        return;
    rank->status = w->ops->messages(w, &shard, 0, 3, &message, 1);
    snprintf(rank->error, sizeof rank->error, "%s", tsr_error_text());
}

static void missing_message(struct ct_rank *rank)
{
    struct tsr_world *w = rank->world;
    float x[2] = {0};
    struct tsr_message messages[] = {{w->rank == 0, 1 - w->rank, &x[0], 4},
                                     {w->rank == 0, 1 - w->rank, &x[1], 4}};
    if (w->rank > 1)
        return;
    rank->status = w->ops->messages(w, &shard, 0, 3, messages, w->rank == 0 ? 2 : 1);
    snprintf(rank->error, sizeof rank->error, "%s", tsr_error_text());
}

static void test_messages__sides_disagree__defect_with_both_numbers(void **state)
{
    (void)state;
    struct ct_rank ranks[4];
    const char *text = "messages #3 of 'shard': rank 0 sends 4 bytes to rank 1, which expects 2";
    ct_threads(4, 30, ranks, unequal_messages, NULL);
    assert_string_equal(ranks[0].error, text);
    assert_string_equal(ranks[1].error, text);
    assert_int_equal(ranks[1].status, TSR_EDEFECT);
    text = "messages #3 of 'shard': rank 0 sends 2 to rank 1, which receives 1";
    ct_threads(4, 30, ranks, missing_message, NULL);
    assert_string_equal(ranks[0].error, text);
    assert_string_equal(ranks[1].error, text);
}

/* ---- the host side --------------------------------------------------------------------------- */

static void exchange_ranks(struct ct_rank *rank)
{
    struct tsr_world *w = rank->world;
    for (uint32_t round = 0; round < 100 && !rank->error[0]; round++) {
        uint32_t mine = w->rank * 1000 + round, all[8];
        if (w->ops->exchange(w, &mine, all, sizeof mine) != TSR_OK)
            snprintf(rank->error, sizeof rank->error, "%s", tsr_error_text());
        for (uint32_t r = 0; r < w->size; r++)
            if (all[r] != r * 1000 + round)
                snprintf(rank->error, sizeof rank->error, "round %u: %u", round, all[r]);
        if (tsr_world_barrier(w) != TSR_OK)
            snprintf(rank->error, sizeof rank->error, "%s", tsr_error_text());
    }
}

static void test_exchange__every_rank_has_all_in_order(void **state)
{
    (void)state;
    struct ct_rank ranks[8];
    ct_threads(8, 20, ranks, exchange_ranks, NULL);
    for (uint32_t r = 0; r < 8; r++)
        assert_string_equal(ranks[r].error, "");
}

static void other_hash(struct ct_rank *rank)
{
    struct tsr_world *w = rank->world;
    rank->status = tsr_world_same(w, "model", 7);
    if (rank->status == TSR_OK)
        rank->status = tsr_world_same(w, "learning rate", w->rank >= 2 ? 8 : 7);
    snprintf(rank->error, sizeof rank->error, "%s", tsr_error_text());
}

static void test_same__a_rank_has_another_configuration__all_name_it(void **state)
{
    (void)state;
    struct ct_rank ranks[4];
    ct_threads(4, 20, ranks, other_hash, NULL);
    expect_all(ranks, 4, TSR_ECONFIG,
               "rank 2 runs another configuration than rank 0 (what: learning rate)");
}

/* ---- under the thread sanitizer: what a world must not hide ---------------------------------- */

#ifdef __SANITIZE_THREAD__
enum { REPORTED = 66 }; /* exit status of a program that the sanitizer had to say something about */

struct racing {
    struct ct_rank *rank;
    bool writes;
    uint32_t *cell; /* one stream writes it, the other reads it, and nothing orders them */
};

static void *race_main(void *arg)
{
    struct racing *r = arg;
    if (r->writes)
        *r->cell = 7;
    else
        (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    struct tsr_world *w = r->rank->world;
    const struct tsr_comm comm = {.name = "shard", .size = 2, .stride = 1};
    static const uint8_t kinds[] = {TSR_ALL_GATHER, TSR_REDUCE_SCATTER, TSR_ALL_REDUCE,
                                    TSR_BROADCAST, TSR_SEND};
    float all[4] = {0}, mine[4] = {0};
    for (uint64_t i = 0; i < 10; i++) {
        const struct tsr_collective call = {.kind = kinds[i % sizeof kinds],
                                            .dtype = TSR_F32,
                                            .reduce_op = TSR_REDUCE_SUM,
                                            .comm = &comm,
                                            .sequence = 2 * i + !r->writes,
                                            .send = mine,
                                            .recv = all,
                                            .bytes = sizeof all};
        const struct tsr_message both[] = {{true, 1 - w->rank, mine, 8},
                                           {false, 1 - w->rank, all, 8}};
        tsr_status status = call.kind == TSR_SEND
                                ? w->ops->messages(w, &comm, call.comm_id, call.sequence, both, 2)
                                : w->ops->collective(w, &call);
        if (status != TSR_OK)
            abort();
    }
    if (!r->writes)
        all[0] = (float)*r->cell;
    return NULL;
}

static void race_body(struct ct_rank *rank)
{
    uint32_t cell = 0;
    struct racing r[2] = {{rank, true, &cell}, {rank, false, &cell}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, race_main, &r[i]) != 0)
            abort();
    for (int i = 0; i < 2; i++)
        (void)pthread_join(threads[i], NULL);
}

static void test_streams__race_around_collectives__the_sanitizer_sees_it(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct ct_rank ranks[2];
        if (!freopen("/dev/null", "w", stderr)) /* the report is expected */
            _exit(3);
        ct_threads(2, 20, ranks, race_body, NULL);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), REPORTED);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives__random_programs__same_bits_as_the_reference),
        cmocka_unit_test(test_collective__many_calls_of_unequal_streams__posts_are_used_again),
        cmocka_unit_test(test_collective__a_rank_does_not_come__all_give_up_in_time),
        cmocka_unit_test(test_collective__a_rank_aborts__all_stop_and_know_why),
        cmocka_unit_test(test_collective__members_disagree__the_text_names_both),
        cmocka_unit_test(test_collective__bytes_do_not_divide__defect),
        cmocka_unit_test(test_collective__output_overlaps_input__defect),
        cmocka_unit_test(test_messages__sides_disagree__defect_with_both_numbers),
        cmocka_unit_test(test_exchange__every_rank_has_all_in_order),
        cmocka_unit_test(test_same__a_rank_has_another_configuration__all_name_it),
#ifdef __SANITIZE_THREAD__
        cmocka_unit_test(test_streams__race_around_collectives__the_sanitizer_sees_it),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
