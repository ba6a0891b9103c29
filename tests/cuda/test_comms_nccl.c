/* test_comms_nccl.c: collectives by NCCL, on its stand-in: all kinds on overlapping communicators;
 * how communicators are made and what with; windows; every failure ends in one line.
 */
#include "exec/cuda/comms/watchdog.h"
#include "exec/cuda/gpu/space.h"
#include "tests/cuda/comms_testing.h"
#include "tests/standin/nccl.h"
#include "tests/standin/standin.h"

#include <setjmp.h>

#include <cmocka.h>

enum { MOST = 8 };

struct nccl_job {
    struct tsr_comms_config config; /* world and timeout are each rank's */
    const struct ct_program *program;
    void (*body)(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r);
    struct comms_rank ranks[MOST];
    char notes[MOST][256];
    int versions[MOST];
};

static void begin_standin(int gpus)
{
    struct tsr_standin_config config = tsr_standin_default();
    config.gpus = gpus;
    config.delay_us = 200;
    config.seed = 5;
    tsr_standin_configure(&config);
}

static void rank_main(struct ct_rank *rank)
{
    struct nccl_job *job = rank->user;
    struct comms_rank *r = &job->ranks[rank->world->rank];
    struct tsr_comms_config config = job->config;
    config.world = rank->world;
    config.timeout_s = rank->world->timeout_s;
    *r = (struct comms_rank){.program = job->program, .world = rank->world};
    tsr_standin_nccl_version(job->versions[rank->world->rank]);
    if (cudaSetDevice((int)rank->world->rank) != cudaSuccess)
        abort();
    r->status = tsr_comms_nccl(&config, &r->comms);
    if (r->status != TSR_OK)
        comms_fail(r, tsr_error_text());
    else
        job->body(job, rank, r);
}

static void run_job(struct nccl_job *job, uint32_t size, double timeout_s)
{
    struct ct_rank ranks[MOST];
    ct_threads(size, timeout_s, ranks, rank_main, job);
}

/* ---- all kinds --------------------------------------------------------------------------------
 */

static void program_body(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    (void)job;
    (void)rank;
    comms_run_program(r);
}

static void expect_results(uint32_t size, bool force)
{
    const struct ct_program program = comms_nccl_program(size, 70 + size);
    static struct nccl_job job;
    begin_standin((int)size);
    job = (struct nccl_job){.config = {.force = force}, .program = &program, .body = program_body};
    run_job(&job, size, 60);
    for (uint32_t r = 0; r < size; r++)
        assert_string_equal(job.ranks[r].error, "");
    assert_int_equal(tsr_standin_nccl_live(), 0);
    assert_int_equal(tsr_standin_live(), 0);
}

static void test_nccl__random_programs__right_results(void **state)
{
    (void)state;
    expect_results(2, false);
    expect_results(3, true);
    expect_results(4, false);
    expect_results(6, true);
}

static bool was_called(const char *name)
{
    const char *entry;
    uint64_t calls;
    for (size_t i = 0; tsr_standin_called(i, &entry, &calls); i++)
        if (!strcmp(entry, name))
            return true;
    return false;
}

static void test_nccl__one_rank__no_call_unless_forced(void **state)
{
    (void)state;
    expect_results(1, false);
    assert_false(was_called("ncclCommInitRankConfig"));
    assert_false(was_called("ncclAllGather"));
    expect_results(1, true);
    assert_true(was_called("ncclCommInitRankConfig"));
    assert_true(was_called("ncclCommSplit"));
    assert_true(was_called("ncclAllGather"));
    assert_true(was_called("ncclAlltoAll"));
}

/* ---- some calls of a rank ----------------------------------------------------------------------
 */

static const struct tsr_comm gathers = {.name = "shard", .size = 2, .stride = 1, .separate = true};
static const struct tsr_comm reduces = {
    .name = "shard_reduce", .size = 2, .stride = 1, .separate = true};

/* Memory for calls: 2 MiB on the device. */
static char *open_rank(struct comms_rank *r)
{
    void *memory = NULL;
    if (cudaStreamCreateWithFlags(&r->streams[0], cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc(&memory, 2 << 20) != cudaSuccess)
        abort();
    r->device = memory;
    return memory;
}

static void close_rank(struct comms_rank *r)
{
    (void)cudaStreamDestroy(r->streams[0]);
    r->comms->ops->destroy(r->comms);
    (void)cudaFree(r->device);
}

static tsr_status call_on(struct comms_rank *r, uint8_t kind, const struct tsr_comm *comm,
                          uint16_t id, uint64_t sequence, uint64_t bytes)
{
    const struct tsr_cuda_context context = {
        .stream = r->streams[0], .n_sms = 2, .architecture = 90};
    const struct tsr_collective call = {.kind = kind,
                                        .dtype = TSR_F32,
                                        .reduce_op = TSR_REDUCE_SUM,
                                        .comm = comm,
                                        .comm_id = id,
                                        .sequence = sequence,
                                        .send = r->device,
                                        .recv = r->device + (1 << 20),
                                        .bytes = bytes};
    return tsr_comms_run(r->comms, &context, &call, 1);
}

static void keep_status(struct comms_rank *r, tsr_status status)
{
    r->status = status;
    if (status != TSR_OK)
        comms_fail(r, tsr_error_text());
}

/* ---- what communicators are made with ---------------------------------------------------------
 */

static void options_body(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    (void)open_rank(r);
    tsr_status status = call_on(r, TSR_ALL_GATHER, &gathers, 0, 0, 1024);
    if (status == TSR_OK)
        status = call_on(r, TSR_REDUCE_SCATTER, &reduces, 1, 0, 1024);
    (void)cudaStreamSynchronize(r->streams[0]);
    keep_status(r, status);
    r->comms->ops->describe(r->comms, job->notes[rank->world->rank], sizeof job->notes[0]);
    close_rank(r);
}

static struct tsr_standin_nccl_seen seen_last(const char *name)
{
    struct tsr_standin_nccl_seen seen, found = {.ranks = 0};
    for (int i = 0; tsr_standin_nccl_seen(i, &seen); i++)
        if (!strcmp(seen.name, name))
            found = seen;
    return found;
}

static void test_nccl__options__of_gathers_and_reductions(void **state)
{
    (void)state;
    static struct nccl_job job;
    begin_standin(2);
    job = (struct nccl_job){.config = {.zero_cta = true, .reduce_ctas = 8}, .body = options_body};
    run_job(&job, 2, 60);
    assert_string_equal(job.ranks[0].error, "");
    assert_int_equal(seen_last("shard").cta_policy, NCCL_CTA_POLICY_ZERO);
    assert_int_equal(seen_last("shard").max_ctas, NCCL_CONFIG_UNDEF_INT);
    assert_int_equal(seen_last("shard_reduce").cta_policy, NCCL_CONFIG_UNDEF_INT);
    assert_int_equal(seen_last("shard_reduce").max_ctas, 8);
    /* the start can be ended; launches are made by the caller's thread */
    assert_int_equal(seen_last("tessera world").blocking, 0);
    assert_int_equal(seen_last("shard").blocking, 1);
    assert_string_equal(job.notes[0],
                        "NCCL 2.28.9: 2 communicators, gathers may use copy engines, 0 windows");
}

static uint64_t calls_of(const char *name)
{
    const char *entry;
    uint64_t calls;
    for (size_t i = 0; tsr_standin_called(i, &entry, &calls); i++)
        if (!strcmp(entry, name))
            return calls;
    return 0;
}

/* ---- groups ------------------------------------------------------------------------------------
 */

static void group_body(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    (void)job;
    (void)rank;
    char *memory = open_rank(r);
    const struct tsr_cuda_context context = {
        .stream = r->streams[0], .n_sms = 2, .architecture = 90};
    struct tsr_collective calls[3];
    for (int i = 0; i < 3; i++)
        calls[i] = (struct tsr_collective){.kind = TSR_BROADCAST,
                                           .dtype = TSR_F32,
                                           .comm = &gathers,
                                           .sequence = (uint64_t)i,
                                           .send = memory + i * 4096,
                                           .recv = memory + i * 4096,
                                           .bytes = 4096};
    keep_status(r, tsr_comms_run(r->comms, &context, calls, 3));
    (void)cudaStreamSynchronize(r->streams[0]);
    close_rank(r);
}

static void test_nccl__several_calls__one_group(void **state)
{
    (void)state;
    static struct nccl_job job;
    begin_standin(2);
    job = (struct nccl_job){.body = group_body};
    run_job(&job, 2, 60);
    assert_string_equal(job.ranks[0].error, "");
    assert_int_equal(calls_of("ncclGroupStart"), 2); /* of two ranks */
    assert_int_equal(calls_of("ncclBroadcast"), 6);
}

/* ---- windows -----------------------------------------------------------------------------------
 */

static void windows_body(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    char *memory = open_rank(r);
    /* with `versions[MOST - 1]` set, rank 1 has a smaller segment */
    uint64_t bytes = job->versions[MOST - 1] && rank->world->rank == 1 ? 1 << 20 : 2 << 20;
    tsr_status status = r->comms->ops->map(r->comms, memory, bytes);
    for (uint64_t i = 0; i < 5 && status == TSR_OK; i++)
        status = call_on(r, TSR_ALL_GATHER, &gathers, 0, i, 1024);
    (void)cudaStreamSynchronize(r->streams[0]);
    r->comms->ops->describe(r->comms, job->notes[rank->world->rank], sizeof job->notes[0]);
    /* it goes in two parts; what is left after the first has no window any more */
    if (status == TSR_OK)
        status = r->comms->ops->unmap(r->comms, memory, 1 << 19);
    if (status == TSR_OK && calls_of("ncclCommWindowRegister") > 0 &&
        calls_of("ncclCommWindowDeregister") == 0)
        comms_fail(r, "the window of memory that has gone is still there");
    if (status == TSR_OK)
        status = r->comms->ops->unmap(r->comms, memory + (1 << 19), bytes - (1 << 19));
    keep_status(r, status);
    close_rank(r);
}

static void lone_windows_body(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    static const struct tsr_comm lone = {.name = "lone", .size = 1, .stride = 1, .separate = true};
    (void)rank;
    tsr_status status = r->comms->ops->map(r->comms, open_rank(r), 2 << 20);
    if (status == TSR_OK)
        status = call_on(r, TSR_ALL_GATHER, &lone, 0, 0, 1024);
    (void)cudaStreamSynchronize(r->streams[0]);
    r->comms->ops->describe(r->comms, job->notes[0], sizeof job->notes[0]);
    keep_status(r, status);
    close_rank(r);
}

static void test_nccl__windows__where_ranks_have_the_same(void **state)
{
    (void)state;
    static struct nccl_job job;
    begin_standin(2);
    job = (struct nccl_job){.config = {.windows = true}, .body = windows_body};
    run_job(&job, 2, 60);
    assert_string_equal(job.ranks[0].error, "");
    assert_string_equal(job.notes[1],
                        "NCCL 2.28.9: 1 communicators, gathers use multiprocessors, 1 windows");
    assert_int_equal(calls_of("ncclCommWindowRegister"), 2);
    assert_int_equal(tsr_standin_nccl_live(), 0);
    begin_standin(2);
    tsr_standin_fail("ncclCommWindowRegister", 1, ncclInvalidArgument);
    job = (struct nccl_job){.config = {.windows = true, .force = true}, .body = lone_windows_body};
    run_job(&job, 1, 60);
    assert_string_equal(job.ranks[0].error, "");
    assert_string_equal(job.notes[0], "NCCL 2.28.9: 1 communicators, gathers use multiprocessors, "
                                      "0 windows (NCCL refused some)");
    begin_standin(2);
    job = (struct nccl_job){.config = {.windows = true}, .body = windows_body};
    job.versions[MOST - 1] = 1;
    run_job(&job, 2, 60);
    assert_string_equal(job.ranks[0].error, "");
    assert_string_equal(job.notes[0], "NCCL 2.28.9: 1 communicators, gathers use multiprocessors, "
                                      "0 windows (memory of the ranks differs)");
    assert_int_equal(calls_of("ncclCommWindowRegister"), 0);
}

/* Physical memory is made of pieces that NVLink multicast can bind, where segments allow that. */
static void test_nccl__multicast__decides_how_memory_is_made(void **state)
{
    (void)state;
    enum { KIB = 1 << 10, MIB = 1 << 20 };
    static const struct {
        uint64_t multicast, granularity; /* of the GPU; of what is made */
        uint64_t pieces;                 /* of 22 MiB that go in multiples of 20 MiB */
        bool shared;
    } cases[] = {{2 * MIB, 2 * MIB, 11, true},
                 {2 * MIB, 64 * KIB, 352, false},
                 {1 * MIB, 1 * MIB, 22, true},
                 {512 * MIB, 64 * KIB, 352, true}, /* segments are smaller */
                 {0, 64 * KIB, 352, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tsr_standin_config config = tsr_standin_default();
        struct tsr_cuda_space space;
        config.granularity = 64 * KIB;
        config.multicast = cases[i].multicast;
        tsr_standin_configure(&config);
        assert_int_equal(tsr_cuda_space_init(&space, 0, 20 * MIB, cases[i].shared), TSR_OK);
        assert_int_equal(space.granularity, cases[i].granularity);
        assert_int_equal(space.multicast, cases[i].shared ? cases[i].multicast : 0);
        assert_int_equal(tsr_cuda_space_map(&space, 40 * MIB, 22 * MIB), TSR_OK);
        assert_int_equal(calls_of("cuMemCreate"), cases[i].pieces);
        tsr_cuda_space_fini(&space);
    }
    begin_standin(1);
}

/* ---- failures ----------------------------------------------------------------------------------
 */

static void one_gather_body(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    (void)job;
    (void)open_rank(r);
    struct tsr_watchdog *watchdog;
    const struct tsr_watchdog_config config = {.comms = r->comms, .gpu = (int)rank->world->rank};
    if (tsr_watchdog_start(&config, &watchdog) != TSR_OK)
        abort();
    keep_status(r, call_on(r, TSR_ALL_GATHER, &gathers, 0, 0, 1024));
    if (r->status == TSR_OK)
        keep_status(r, tsr_watchdog_note(watchdog, r->streams[0], "all_gather #0 of 'shard'"));
    (void)cudaStreamSynchronize(r->streams[0]);
    if (r->status == TSR_OK)
        keep_status(r, r->comms->ops->poll(r->comms));
    tsr_watchdog_stop(watchdog);
    close_rank(r);
}

static void test_nccl__older_library__refused(void **state)
{
    (void)state;
    static struct nccl_job job;
    begin_standin(2);
    job = (struct nccl_job){.body = one_gather_body, .versions = {22703, 22703}};
    run_job(&job, 2, 5);
    assert_int_equal(job.ranks[0].status, TSR_EBACKEND);
    assert_string_equal(job.ranks[0].error, "NCCL 2.27.3 is loaded; this program was built for "
                                            "2.28.9 and needs that or a newer 2");
}

static void test_nccl__ranks_with_other_versions__refused(void **state)
{
    (void)state;
    static struct nccl_job job;
    begin_standin(2);
    job = (struct nccl_job){.body = one_gather_body, .versions = {0, 22903}};
    run_job(&job, 2, 5);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(job.ranks[r].status, TSR_ECONFIG);
        assert_string_equal(job.ranks[r].error, "rank 1 has NCCL 2.29.3, rank 0 has 2.28.9: all "
                                                "ranks need the same");
    }
}

/* One rank leaves at the start, and does not say so. */
static void silent_body(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    (void)job;
    (void)rank;
    (void)open_rank(r);
    keep_status(r, call_on(r, TSR_ALL_GATHER, &gathers, 0, 0, 1024));
    close_rank(r);
}

static void test_nccl__peer_does_not_come__deadline(void **state)
{
    (void)state;
    static struct nccl_job job;
    begin_standin(2);
    tsr_standin_fail("ncclCommInitRankConfig", 1, ncclInternalError);
    job = (struct nccl_job){.body = silent_body};
    run_job(&job, 2, 0.5);
    int left = job.ranks[0].status == TSR_EBACKEND ? 0 : 1, waits = 1 - left;
    char want[128];
    assert_int_equal(job.ranks[left].status, TSR_EBACKEND);
    assert_int_equal(job.ranks[waits].status, TSR_EPEER);
    snprintf(want, sizeof want,
             "rank %d: the start of 'world' is not done within 0.5 s: a rank does not come", waits);
    assert_string_equal(job.ranks[waits].error, want);
    assert_int_equal(tsr_standin_nccl_live(), 0);
}

static void other_order_body(struct nccl_job *job, struct ct_rank *rank, struct comms_rank *r)
{
    (void)job;
    (void)open_rank(r);
    bool first = rank->world->rank == 0;
    keep_status(r, call_on(r, TSR_ALL_GATHER, first ? &gathers : &reduces, first ? 0 : 1, 0, 1024));
    close_rank(r);
}

static void test_nccl__other_communicator_first__said(void **state)
{
    (void)state;
    static struct nccl_job job;
    begin_standin(2);
    job = (struct nccl_job){.body = other_order_body};
    run_job(&job, 2, 5);
    for (int r = 0; r < 2; r++)
        assert_string_equal(
            job.ranks[r].error,
            "rank 1 runs another configuration than rank 0 (what: the next communicator)");
}

/* Each entry point's first call fails on one rank: no rank hangs, at least one says which call. */
static void test_nccl__entry_point_fails__one_line(void **state)
{
    (void)state;
    static const char *const entries[] = {
        "ncclGetVersion",        "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommSplit",
        "ncclCommGetAsyncError", "(async)",         "ncclAllGather"};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        static struct nccl_job job;
        begin_standin(2);
        tsr_standin_fail(entries[i], 1, ncclSystemError);
        job = (struct nccl_job){.body = one_gather_body};
        run_job(&job, 2, 0.4);
        assert_true(tsr_standin_failed());
        bool said = false;
        for (int r = 0; r < 2; r++)
            said = said || strstr(job.ranks[r].error, "unhandled system error");
        if (!said)
            print_error("%s: %s | %s\n", entries[i], job.ranks[0].error, job.ranks[1].error);
        assert_true(said);
        assert_int_equal(tsr_standin_nccl_live(), 0);
        assert_int_equal(tsr_standin_live(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl__random_programs__right_results),
        cmocka_unit_test(test_nccl__one_rank__no_call_unless_forced),
        cmocka_unit_test(test_nccl__options__of_gathers_and_reductions),
        cmocka_unit_test(test_nccl__several_calls__one_group),
        cmocka_unit_test(test_nccl__windows__where_ranks_have_the_same),
        cmocka_unit_test(test_nccl__multicast__decides_how_memory_is_made),
        cmocka_unit_test(test_nccl__older_library__refused),
        cmocka_unit_test(test_nccl__ranks_with_other_versions__refused),
        cmocka_unit_test(test_nccl__peer_does_not_come__deadline),
        cmocka_unit_test(test_nccl__other_communicator_first__said),
        cmocka_unit_test(test_nccl__entry_point_fails__one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
