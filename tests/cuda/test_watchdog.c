/* test_watchdog.c: a rank whose collective does not end, or whose communicator reports a failure,
 * is told within the timeout, and what it waits for ends; a slow one is left alone.
 */
#include "exec/cuda/comms/watchdog.h"
#include "tests/cuda/comms_testing.h"
#include "tests/standin/nccl.h"
#include "tests/standin/standin.h"

#include <setjmp.h>

#include <cmocka.h>

#include "exec/base/word.h"

/* What the watchdog said. */
struct heard {
    _Atomic int lost, stuck;
    tsr_status status;
    char why[512];
};

struct watch_job {
    void (*body)(struct watch_job *job, struct ct_rank *rank, struct comms_rank *r,
                 struct tsr_watchdog *watchdog);
    double timeout_s, grace_s; /* of collectives */
    struct heard heard[2];
    struct comms_rank ranks[2];
    double seconds[2];
};

static void note_lost(void *user, tsr_status status, const char *why)
{
    struct heard *h = user;
    h->status = status;
    snprintf(h->why, sizeof h->why, "%s", why);
    h->lost++;
}

static void note_stuck(void *user, tsr_status status, const char *why)
{
    struct heard *h = user;
    (void)status;
    (void)why;
    h->stuck++;
}

static void rank_main(struct ct_rank *rank)
{
    struct watch_job *job = rank->user;
    uint32_t me = rank->world->rank;
    struct comms_rank *r = &job->ranks[me];
    struct tsr_watchdog *watchdog;
    void *memory;
    const struct tsr_comms_config config = {.world = rank->world, .timeout_s = job->timeout_s};
    *r = (struct comms_rank){.world = rank->world};
    if (cudaSetDevice((int)me) != cudaSuccess || tsr_comms_nccl(&config, &r->comms) != TSR_OK ||
        cudaMalloc(&memory, 8192) != cudaSuccess ||
        cudaStreamCreateWithFlags(&r->streams[0], cudaStreamNonBlocking) != cudaSuccess)
        abort();
    r->device = memory;
    const struct tsr_watchdog_config w = {.comms = r->comms,
                                          .gpu = (int)me,
                                          .lost = note_lost,
                                          .stuck = note_stuck,
                                          .grace_s = job->grace_s,
                                          .user = &job->heard[me]};
    if (tsr_watchdog_start(&w, &watchdog) != TSR_OK)
        abort();
    double begin = tsr__now();
    job->body(job, rank, r, watchdog);
    job->seconds[me] = tsr__now() - begin;
    tsr_watchdog_stop(watchdog);
    (void)cudaStreamDestroy(r->streams[0]);
    r->comms->ops->destroy(r->comms);
    (void)cudaFree(r->device);
}

static void run_job(struct watch_job *job)
{
    struct ct_rank ranks[2];
    struct tsr_standin_config config = tsr_standin_default();
    config.gpus = 2;
    tsr_standin_configure(&config);
    ct_threads(2, 60, ranks, rank_main, job);
    assert_int_equal(tsr_standin_nccl_live(), 0);
    assert_int_equal(tsr_standin_live(), 0);
}

static tsr_status gather(struct comms_rank *r, struct tsr_watchdog *watchdog, uint64_t sequence)
{
    static const struct tsr_comm pair = {.name = "shard", .size = 2, .stride = 1, .separate = true};
    const struct tsr_cuda_context context = {
        .stream = r->streams[0], .n_sms = 2, .architecture = 90};
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_F32,
                                        .comm = &pair,
                                        .sequence = sequence,
                                        .send = r->device,
                                        .recv = r->device + 4096,
                                        .bytes = 1024};
    char what[64];
    snprintf(what, sizeof what, "all_gather #%llu of 'shard'", (unsigned long long)sequence);
    TSR_TRY(tsr_comms_run(r->comms, &context, &call, 1));
    return tsr_watchdog_note(watchdog, r->streams[0], what);
}

/* ---- a rank that stays away -------------------------------------------------------------------
 */

static void away_body(struct watch_job *job, struct ct_rank *rank, struct comms_rank *r,
                      struct tsr_watchdog *watchdog)
{
    (void)job;
    tsr_status status = gather(r, watchdog, 0);
    if (status == TSR_OK && rank->world->rank == 0)
        status = gather(r, watchdog, 1);
    r->status = status;
    if (rank->world->rank == 0)
        (void)cudaStreamSynchronize(r->streams[0]);  /* as a host that cannot look around */
    while (tsr_world_barrier(rank->world) == TSR_OK) /* hears of it */
        ;
    snprintf(r->error, sizeof r->error, "%s", tsr_error_text());
}

static void test_watchdog__rank_stays_away__others_end(void **state)
{
    (void)state;
    static struct watch_job job;
    job = (struct watch_job){.body = away_body, .timeout_s = 2};
    run_job(&job);
    assert_int_equal(job.heard[0].lost, 1);
    assert_int_equal(job.heard[0].status, TSR_EPEER);
    assert_string_equal(job.heard[0].why, "rank 0: all_gather #1 of 'shard' has not ended within "
                                          "2 s: another rank is lost, or does not come");
    assert_true(job.seconds[0] > 1.9 && job.seconds[0] < 20);
    assert_int_equal(job.heard[0].stuck, 0);
    assert_non_null(strstr(job.ranks[1].error, "rank 0 gave up: rank 0: all_gather #1"));
}

/* ---- a communicator that fails ----------------------------------------------------------------
 */

static void failing_body(struct watch_job *job, struct ct_rank *rank, struct comms_rank *r,
                         struct tsr_watchdog *watchdog)
{
    (void)rank;
    r->status = gather(r, watchdog, 0);
    (void)!tsr_world_barrier(rank->world); /* only watchdogs look at communicators from here on */
    if (rank->world->rank == 0) {
        tsr_standin_nccl_break(ncclRemoteError);
        while (job->heard[0].lost + job->heard[1].lost == 0)
            usleep(1000);
    }
    while (tsr_world_barrier(rank->world) == TSR_OK)
        ;
}

static void test_watchdog__communicator_fails__told(void **state)
{
    (void)state;
    static struct watch_job job;
    job = (struct watch_job){.body = failing_body, .timeout_s = 30};
    run_job(&job);
    const struct heard *h = &job.heard[job.heard[0].lost ? 0 : 1];
    assert_int_equal(h->lost, 1);
    assert_int_equal(h->status, TSR_EPEER);
    assert_non_null(strstr(h->why, "a collective of 'shard': NCCL says 'remote process exited"));
}

/* ---- a slow one -------------------------------------------------------------------------------
 */

static void slow_body(struct watch_job *job, struct ct_rank *rank, struct comms_rank *r,
                      struct tsr_watchdog *watchdog)
{
    (void)job;
    for (uint64_t i = 0; i < 8 && r->status == TSR_OK; i++) {
        usleep(rank->world->rank ? 300000 : 0); /* rank 0 is ahead by more than the timeout */
        r->status = gather(r, watchdog, i);
    }
    (void)cudaStreamSynchronize(r->streams[0]);
}

static void test_watchdog__slow_but_moving__left_alone(void **state)
{
    (void)state;
    static struct watch_job job;
    job = (struct watch_job){.body = slow_body, .timeout_s = 2};
    run_job(&job);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(job.ranks[r].status, TSR_OK);
        assert_int_equal(job.heard[r].lost, 0);
    }
}

/* ---- a host that does not come back ------------------------------------------------------------
 */

static void stuck_body(struct watch_job *job, struct ct_rank *rank, struct comms_rank *r,
                       struct tsr_watchdog *watchdog)
{
    (void)watchdog;
    if (rank->world->rank == 0) {
        r->comms->ops->abort(r->comms, TSR_EPEER, "for a test");
        while (job->heard[0].stuck == 0)
            usleep(1000);
    }
}

static void test_watchdog__host_hangs__said_once(void **state)
{
    (void)state;
    static struct watch_job job;
    job = (struct watch_job){.body = stuck_body, .timeout_s = 30, .grace_s = 0.1};
    run_job(&job);
    assert_int_equal(job.heard[0].lost, 1);
    assert_int_equal(job.heard[0].stuck, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watchdog__rank_stays_away__others_end),
        cmocka_unit_test(test_watchdog__communicator_fails__told),
        cmocka_unit_test(test_watchdog__slow_but_moving__left_alone),
        cmocka_unit_test(test_watchdog__host_hangs__said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
