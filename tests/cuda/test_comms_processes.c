/* test_comms_processes.c: collectives by NCCL, on its stand-in, between processes: all kinds on
 * overlapping communicators, in pieces and in order; windows; what becomes of the others when a
 * process is killed, stays away or disagrees.
 */
#include "exec/cuda/comms/watchdog.h"
#include "tests/cuda/comms_testing.h"
#include "tests/standin/nccl.h"
#include "tests/standin/standin.h"
#include "tests/world/processes_testing.h"

/* What a rank of a job does with its communicators. */
struct nccl_job {
    struct tsr_comms_config config; /* world and timeout are each rank's */
    const struct ct_program *program;
    tsr_status (*calls)(struct comms_rank *r);
    double timeout_s; /* of collectives; 0: the world's */
    uint32_t silent;  /* rank + 1 of one whose communicator is not made */
};

static void begin_standin(const struct nccl_job *job, uint32_t rank)
{
    struct tsr_standin_config config = tsr_standin_default();
    config.gpus = 8;
    config.delay_us = 200;
    config.seed = 5 + rank;
    tsr_standin_configure(&config);
    if (job->silent == rank + 1)
        tsr_standin_fail("ncclCommInitRankConfig", 1, ncclInternalError);
    if (cudaSetDevice((int)rank) != cudaSuccess)
        abort();
}

static tsr_status open_comms(const struct nccl_job *job, struct comms_rank *r)
{
    struct tsr_comms_config config = job->config;
    config.world = r->world;
    config.timeout_s = job->timeout_s > 0 ? job->timeout_s : r->world->timeout_s;
    return tsr_comms_nccl(&config, &r->comms);
}

/* Nothing of the stand-in's may be left. */
static void expect_nothing_left(struct outcome *o)
{
    if (!o->error[0] && (tsr_standin_nccl_live() || tsr_standin_live()))
        snprintf(o->error, sizeof o->error, "%d communicators and %lld objects are left",
                 tsr_standin_nccl_live(), (long long)tsr_standin_live());
}

/* ---- all kinds ------------------------------------------------------------------------------- */

static void program_body(struct tsr_world *world, struct outcome *o, void *user)
{
    const struct nccl_job *job = user;
    static struct comms_rank r;
    r = (struct comms_rank){.program = job->program, .world = world};
    begin_standin(job, world->rank);
    outcome_set(o, open_comms(job, &r));
    if (o->status != TSR_OK)
        return;
    comms_run_program(&r);
    o->status = r.status;
    o->digest = r.digest;
    snprintf(o->error, sizeof o->error, "%s", r.error);
    expect_nothing_left(o);
}

static void expect_results(uint32_t size)
{
    const struct ct_program program = comms_nccl_program(size, 70 + size);
    struct nccl_job nccl = {.program = &program};
    const struct job job = {.size = size,
                            .timeout_s = 60,
                            .transport = "auto",
                            .body = program_body,
                            .check_leaks = size == 2,
                            .user = &nccl};
    struct outcome outcomes[8];
    run_job(&job, outcomes);
    for (uint32_t r = 0; r < size; r++) {
        assert_string_equal(outcomes[r].error, "");
        assert_int_equal(outcomes[r].status, TSR_OK);
    }
}

static void test_processes__random_programs__right_results(void **state)
{
    (void)state;
    expect_results(2);
    expect_results(3);
    expect_results(6);
}

/* ---- calls on one stream --------------------------------------------------------------------- */

static tsr_status gather(struct comms_rank *r, uint64_t sequence, uint64_t bytes)
{
    const struct tsr_comm all = {
        .name = "shard", .size = r->world->size, .stride = 1, .separate = true};
    const struct tsr_cuda_context context = {
        .stream = r->streams[0], .n_sms = 2, .architecture = 90};
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_F32,
                                        .comm = &all,
                                        .sequence = sequence,
                                        .send = r->device,
                                        .recv = r->device + (1 << 20),
                                        .bytes = bytes};
    return tsr_comms_run(r->comms, &context, &call, 1);
}

/* The job's calls with 2 MiB on the device. */
static void calls_body(struct tsr_world *world, struct outcome *o, void *user)
{
    const struct nccl_job *job = user;
    static struct comms_rank r;
    void *memory = NULL;
    r = (struct comms_rank){.world = world};
    begin_standin(job, world->rank);
    outcome_set(o, open_comms(job, &r));
    if (o->status != TSR_OK)
        return;
    if (cudaStreamCreateWithFlags(&r.streams[0], cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc(&memory, 2 << 20) != cudaSuccess)
        abort();
    r.device = memory;
    outcome_set(o, job->calls(&r));
    (void)cudaStreamDestroy(r.streams[0]);
    r.comms->ops->destroy(r.comms);
    (void)cudaFree(r.device);
    expect_nothing_left(o);
}

/* ---- windows --------------------------------------------------------------------------------- */

static tsr_status gather_in_windows(struct comms_rank *r)
{
    char text[256];
    TSR_TRY(r->comms->ops->map(r->comms, r->device, 2 << 20));
    for (uint64_t i = 0; i < 5; i++)
        TSR_TRY(gather(r, i, 96 << 10));
    (void)cudaStreamSynchronize(r->streams[0]);
    r->comms->ops->describe(r->comms, text, sizeof text);
    return strstr(text, "1 communicators, gathers use multiprocessors, 1 windows")
               ? TSR_OK
               : tsr_fail(TSR_EDEFECT, "%s", text);
}

static void test_processes__windows__registered(void **state)
{
    (void)state;
    struct nccl_job nccl = {.config = {.windows = true}, .calls = gather_in_windows};
    const struct job job = {
        .size = 2, .timeout_s = 60, .transport = "auto", .body = calls_body, .user = &nccl};
    struct outcome outcomes[2];
    run_job(&job, outcomes);
    for (int r = 0; r < 2; r++)
        assert_string_equal(outcomes[r].error, "");
}

/* ---- lost ranks ------------------------------------------------------------------------------ */

static int ready_fds[2];

static void note_lost(void *user, tsr_status status, const char *why)
{
    (void)status;
    snprintf(user, 512, "%s", why);
}

/* Gathers with a watchdog beside it, as a device does it. Rank 1 stays behind the first one, where
 * it is killed; the others wait for it on the GPU. */
static tsr_status gather_without_rank_1(struct comms_rank *r)
{
    static char why[512];
    struct tsr_watchdog *watchdog = NULL;
    const struct tsr_watchdog_config config = {
        .comms = r->comms, .gpu = (int)r->world->rank, .lost = note_lost, .user = why};
    tsr_status status = gather(r, 0, 3072);
    (void)cudaStreamSynchronize(r->streams[0]);
    if (r->world->rank == 1) {
        (void)!write(ready_fds[1], "r", 1); /* if it failed, too: the parent waits for it */
        (void)pause();
    }
    if (status == TSR_OK)
        status = tsr_watchdog_start(&config, &watchdog);
    if (status == TSR_OK)
        status = gather(r, 1, 3072);
    if (status == TSR_OK)
        status = tsr_watchdog_note(watchdog, r->streams[0], "all_gather #1 of 'shard'");
    (void)cudaStreamSynchronize(r->streams[0]);
    tsr_watchdog_stop(watchdog);
    return status == TSR_OK && why[0] ? tsr_fail(TSR_EPEER, "%s", why) : status;
}

static void expect_text(const struct outcome *o, const char *want)
{
    if (!strstr(o->error, want))
        print_error("found: %s\n", o->error);
    assert_non_null(strstr(o->error, want));
}

static void test_processes__rank_killed__others_end_at_once(void **state)
{
    (void)state;
    struct nccl_job nccl = {.calls = gather_without_rank_1};
    assert_int_equal(pipe(ready_fds), 0);
    const struct job job = {.size = 3,
                            .timeout_s = 60,
                            .transport = "auto",
                            .body = calls_body,
                            .user = &nccl,
                            .killed = 2,
                            .kill_after_s = 0.2,
                            .ready_fd = ready_fds[0]};
    struct outcome outcomes[3];
    run_job(&job, outcomes);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(outcomes[r].status, TSR_EPEER);
        expect_text(&outcomes[r], "rank 1 is lost");
        assert_true(outcomes[r].end - outcomes[r].killed_at < 20);
    }
    (void)close(ready_fds[0]);
    (void)close(ready_fds[1]);
}

static tsr_status gather_once(struct comms_rank *r)
{
    tsr_status status = gather(r, 0, 1024);
    (void)cudaStreamSynchronize(r->streams[0]);
    return status;
}

/* The communicator of the world is never complete, and nobody says so. */
static void test_processes__rank_stays_away__deadline(void **state)
{
    (void)state;
    struct nccl_job nccl = {.calls = gather_once, .timeout_s = 0.5, .silent = 2};
    const struct job job = {
        .size = 2, .timeout_s = 60, .transport = "auto", .body = calls_body, .user = &nccl};
    struct outcome outcomes[2];
    run_job(&job, outcomes);
    assert_int_equal(outcomes[1].status, TSR_EBACKEND);
    assert_int_equal(outcomes[0].status, TSR_EPEER);
    assert_string_equal(
        outcomes[0].error,
        "rank 0: the start of 'world' is not done within 0.5 s: a rank does not come");
}

/* Members that disagree about the size: the call hangs until the watchdog ends it. */
static tsr_status gather_other_sizes(struct comms_rank *r)
{
    static char why[512];
    struct tsr_watchdog *watchdog = NULL;
    const struct tsr_watchdog_config config = {
        .comms = r->comms, .gpu = (int)r->world->rank, .lost = note_lost, .user = why};
    tsr_status status = tsr_watchdog_start(&config, &watchdog);
    if (status == TSR_OK)
        status = gather(r, 0, r->world->rank ? 2048 : 1024);
    if (status == TSR_OK)
        status = tsr_watchdog_note(watchdog, r->streams[0], "all_gather #0 of 'shard'");
    (void)cudaStreamSynchronize(r->streams[0]);
    tsr_watchdog_stop(watchdog);
    return status == TSR_OK && why[0] ? tsr_fail(TSR_EPEER, "%s", why) : status;
}

static void test_processes__other_sizes__hang_until_timeout(void **state)
{
    (void)state;
    struct nccl_job nccl = {.calls = gather_other_sizes, .timeout_s = 2};
    const struct job job = {
        .size = 2, .timeout_s = 60, .transport = "auto", .body = calls_body, .user = &nccl};
    struct outcome outcomes[2];
    run_job(&job, outcomes);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, TSR_EPEER);
        expect_text(&outcomes[r], "all_gather #0 of 'shard' has not ended within");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes__random_programs__right_results),
        cmocka_unit_test(test_processes__windows__registered),
        cmocka_unit_test(test_processes__rank_killed__others_end_at_once),
        cmocka_unit_test(test_processes__rank_stays_away__deadline),
        cmocka_unit_test(test_processes__other_sizes__hang_until_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
