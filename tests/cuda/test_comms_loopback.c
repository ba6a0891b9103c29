/* test_comms_loopback.c: collectives between ranks on one GPU have the bits of the host's; ranks
 * that disagree, and ranks that do not come, end all of them with one text.
 */
#include "tests/cuda/comms_testing.h"

#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <time.h>

#include <cmocka.h>

enum { MOST = 8 };

struct loop_job {
    struct tsr_loopback *shared;
    const struct ct_program *program;
    struct comms_rank ranks[MOST];
};

static void start(struct loop_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    const struct tsr_comms_config config = {.world = rank->world,
                                            .timeout_s = rank->world->timeout_s};
    *r = (struct comms_rank){.program = job->program, .world = rank->world};
    if (tsr_comms_loopback(job->shared, &config, &r->comms) != TSR_OK)
        abort();
}

static void random_body(struct ct_rank *rank)
{
    struct loop_job *job = rank->user;
    struct comms_rank *r = &job->ranks[rank->world->rank];
    start(job, rank, r);
    comms_run_program(r);
}

static void expect_bits(uint32_t size, uint64_t seed)
{
    const struct ct_program program = ct_program(size, seed);
    static struct loop_job job;
    struct ct_rank ranks[MOST];
    job = (struct loop_job){.program = &program};
    assert_int_equal(tsr_loopback_create(size, &job.shared), TSR_OK);
    ct_threads(size, 60, ranks, random_body, &job);
    tsr_loopback_destroy(job.shared);
    for (uint32_t r = 0; r < size; r++)
        assert_string_equal(job.ranks[r].error, "");
    /* a world of threads computes the same bytes */
    ct_threads(size, 60, ranks, ct_random_body, (void *)&program);
    for (uint32_t r = 0; r < size; r++)
        assert_string_equal(ranks[r].error, "");
}

static void test_loopback__random_programs__bits_of_the_host(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 4, 6};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        expect_bits(sizes[i], 40 + i);
}

/* ---- ranks that disagree ----------------------------------------------------------------------
 */

static const struct tsr_comm pair = {.name = "shard", .size = 2, .stride = 1};

static void one_gather(struct loop_job *job, struct ct_rank *rank, uint64_t bytes)
{
    struct comms_rank *r = &job->ranks[rank->world->rank];
    const struct tsr_cuda_context context = {.n_sms = 2, .architecture = 90};
    static char in[64], out[128]; /* never touched */
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_F32,
                                        .comm = &pair,
                                        .send = in,
                                        .recv = out,
                                        .bytes = bytes};
    rank->status = tsr_comms_run(r->comms, &context, &call, 1);
    snprintf(rank->error, sizeof rank->error, "%s", tsr_error_text());
}

static void differ_body(struct ct_rank *rank)
{
    struct loop_job *job = rank->user;
    struct comms_rank *r = &job->ranks[rank->world->rank];
    start(job, rank, r);
    one_gather(job, rank, rank->world->rank == 0 ? 128 : 64);
    r->comms->ops->destroy(r->comms);
}

static void test_loopback__ranks_disagree__both_say_who(void **state)
{
    (void)state;
    static struct loop_job job;
    struct ct_rank ranks[2];
    job = (struct loop_job){0};
    assert_int_equal(tsr_loopback_create(2, &job.shared), TSR_OK);
    ct_threads(2, 20, ranks, differ_body, &job);
    tsr_loopback_destroy(job.shared);
    assert_int_equal(ranks[0].status, TSR_EDEFECT);
    assert_int_equal(ranks[1].status, TSR_EDEFECT);
    assert_string_equal(ranks[0].error, ranks[1].error);
    assert_non_null(strstr(ranks[0].error, "calls all_gather of 128 bytes of f32"));
    assert_non_null(strstr(ranks[0].error, "calls all_gather of 64 bytes of f32"));
}

/* ---- ranks that do not come -------------------------------------------------------------------
 */

static void missing_body(struct ct_rank *rank)
{
    struct loop_job *job = rank->user;
    struct comms_rank *r = &job->ranks[rank->world->rank];
    start(job, rank, r);
    if (rank->world->rank == 0)
        one_gather(job, rank, 128);
    r->comms->ops->destroy(r->comms);
}

static void test_loopback__rank_does_not_come__timeout(void **state)
{
    (void)state;
    static struct loop_job job;
    struct ct_rank ranks[2];
    job = (struct loop_job){0};
    assert_int_equal(tsr_loopback_create(2, &job.shared), TSR_OK);
    ct_threads(2, 0.2, ranks, missing_body, &job);
    tsr_loopback_destroy(job.shared);
    assert_int_equal(ranks[0].status, TSR_EPEER);
    assert_string_equal(ranks[0].error,
                        "rank 1 did not arrive at all_gather #0 of 'shard' within 0.2 s");
}

static void aborted_body(struct ct_rank *rank)
{
    struct loop_job *job = rank->user;
    struct comms_rank *r = &job->ranks[rank->world->rank];
    start(job, rank, r);
    if (rank->world->rank == 0)
        one_gather(job, rank, 128);
    else
        r->comms->ops->abort(r->comms, TSR_EIO, "the disk is full");
    r->comms->ops->destroy(r->comms);
}

static void test_loopback__abort__ends_those_who_wait(void **state)
{
    (void)state;
    static struct loop_job job;
    struct ct_rank ranks[2];
    job = (struct loop_job){0};
    assert_int_equal(tsr_loopback_create(2, &job.shared), TSR_OK);
    ct_threads(2, 20, ranks, aborted_body, &job);
    tsr_loopback_destroy(job.shared);
    assert_int_equal(ranks[0].status, TSR_EIO);
    assert_string_equal(ranks[0].error, "rank 1 gave up: the disk is full");
}

/* Rank 1 may still read what rank 0 has: rank 0 keeps it until rank 1 says that it is done. */
static atomic_bool reads;
static atomic_uint opened;

static void reader_body(struct ct_rank *rank)
{
    struct loop_job *job = rank->user;
    struct comms_rank *r = &job->ranks[rank->world->rank];
    const struct timespec pause = {.tv_nsec = 50000000};
    start(job, rank, r);
    atomic_fetch_add(&opened, 1);
    while (atomic_load(&opened) < 2)
        sched_yield();
    r->comms->ops->abort(r->comms, TSR_EIO, "the disk is full");
    if (rank->world->rank == 1) {
        nanosleep(&pause, NULL);
        atomic_store(&reads, false);
    }
    r->comms->ops->destroy(r->comms);
    rank->status = atomic_load(&reads) ? TSR_EDEFECT : TSR_OK;
}

static void test_loopback__abort__memory_stays_until_all_are_done(void **state)
{
    (void)state;
    static struct loop_job job;
    struct ct_rank ranks[2];
    job = (struct loop_job){0};
    atomic_store(&reads, true);
    atomic_store(&opened, 0);
    assert_int_equal(tsr_loopback_create(2, &job.shared), TSR_OK);
    ct_threads(2, 20, ranks, reader_body, &job);
    tsr_loopback_destroy(job.shared);
    assert_int_equal(ranks[0].status, TSR_OK);
}

static void test_loopback__too_many_ranks__refused(void **state)
{
    (void)state;
    struct tsr_loopback *shared;
    assert_int_equal(tsr_loopback_create(300, &shared), TSR_EVALUE);
    assert_string_equal(tsr_error_text(), "300 ranks on one GPU; allowed: 1 to 256");
    assert_null(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loopback__random_programs__bits_of_the_host),
        cmocka_unit_test(test_loopback__ranks_disagree__both_say_who),
        cmocka_unit_test(test_loopback__rank_does_not_come__timeout),
        cmocka_unit_test(test_loopback__abort__ends_those_who_wait),
        cmocka_unit_test(test_loopback__abort__memory_stays_until_all_are_done),
        cmocka_unit_test(test_loopback__too_many_ranks__refused),
    };
    (void)setenv("TSR_STANDIN", "delay_us=200,seed=3", 0); /* where streams are threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
