/* test_world_process.c: collectives between processes over shared memory, TCP and both: the bits of
 * a world of threads; and what becomes of the others when a process is killed or hangs.
 */
#include "tests/world/processes_testing.h"

#include <dirent.h>
#include <time.h>

enum { SIZE = 4 };
static const struct tsr_comm shard = {.name = "shard", .size = SIZE, .stride = 1};

/* ---- the same bits --------------------------------------------------------------------------- */

static void expect_same_bits(uint32_t size, const char *transport, uint32_t ranks_per_host)
{
    struct ct_program program = ct_program(size, 100 + size);
    struct ct_rank ranks[8];
    ct_threads(size, 20, ranks, ct_random_body, &program);
    const struct job job = {.size = size,
                            .timeout_s = 20,
                            .transport = transport,
                            .ranks_per_host = ranks_per_host,
                            .check_leaks = size < 5,
                            .body = random_body,
                            .user = &program};
    struct outcome outcomes[8];
    run_job(&job, outcomes);
    for (uint32_t r = 0; r < size; r++) {
        assert_string_equal(outcomes[r].error, "");
        assert_int_equal(outcomes[r].status, TSR_OK);
        assert_true(outcomes[r].digest == ranks[r].digest);
    }
}

static void test_collectives__shared_memory__bits_of_threads(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        expect_same_bits(sizes[i], "shm", 0);
}

static void test_collectives__tcp__bits_of_threads(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 8; size += 4)
        expect_same_bits(size, "tcp", 0);
}

static void test_collectives__several_hosts__bits_of_threads(void **state)
{
    (void)state;
    expect_same_bits(4, "auto", 2);
    expect_same_bits(7, "auto", 3);
}

/* More than fits into a ring or a socket's buffer, both ways at once. */
static void large_body(struct tsr_world *world, struct outcome *o, void *user)
{
    enum { N = 3 << 20 };
    (void)user;
    float *data = malloc(N * sizeof *data);
    for (uint32_t i = 0; i < N; i++)
        data[i] = (float)(i % 1000 + world->rank);
    const struct tsr_collective call = {.kind = TSR_ALL_REDUCE,
                                        .dtype = TSR_F32,
                                        .reduce_op = TSR_REDUCE_SUM,
                                        .comm = &shard,
                                        .send = data,
                                        .recv = data,
                                        .bytes = N * sizeof *data};
    outcome_set(o, world->ops->collective(world, &call));
    for (uint32_t i = 0; i < N && !o->error[0]; i++)
        if (data[i] != (float)(SIZE * (i % 1000) + 6))
            snprintf(o->error, sizeof o->error, "element %u is %g", i, (double)data[i]);
    free(data);
}

static void test_collectives__large_buffers__pass(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        struct outcome o[SIZE];
        run_job(&(struct job){.size = SIZE,
                              .timeout_s = 20,
                              .transport = tcp ? "tcp" : "shm",
                              .body = large_body},
                o);
        for (uint32_t r = 0; r < SIZE; r++)
            assert_string_equal(o[r].error, "");
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

static tsr_status gather(struct tsr_world *world, uint64_t sequence, uint64_t bytes)
{
    char in[64] = {0}, out[256];
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_F32,
                                        .comm = &shard,
                                        .sequence = sequence,
                                        .send = in,
                                        .recv = out,
                                        .bytes = bytes};
    return world->ops->collective(world, &call);
}

static void expect_all(const struct outcome *o, uint32_t except, tsr_status status,
                       const char *text)
{
    for (uint32_t r = 0; r < SIZE; r++)
        if (r != except) {
            assert_string_equal(o[r].error, text);
            assert_int_equal(o[r].status, status);
        }
}

static void all_but_rank_3(struct tsr_world *world, struct outcome *o, void *user)
{
    (void)user;
    outcome_set(o, gather(world, 11, 256));
    if (o->status != TSR_OK || world->rank == 3)
        return;
    world->timeout_s = 2; /* enough for the others on a machine with other work */
    o->begin = tsr__now();
    outcome_set(o, gather(world, 12, 256));
}

static void test_collective__a_rank_does_not_come__all_give_up_in_time(void **state)
{
    (void)state;
    struct outcome o[SIZE];
    run_job(
        &(struct job){.size = SIZE, .timeout_s = 20, .transport = "auto", .body = all_but_rank_3},
        o);
    expect_all(o, 3, TSR_EPEER, "rank 3 did not arrive at all_gather #12 of 'shard' within 2 s");
    assert_true(o[0].end - o[0].begin < 10);
}

static void rank_1_aborts(struct tsr_world *world, struct outcome *o, void *user)
{
    (void)user;
    if (world->rank == 1)
        world->ops->abort(world, TSR_ERUNTIME, "its loss is not a number");
    outcome_set(o, gather(world, 0, 256));
}

static void test_collective__a_rank_aborts__all_stop_and_know_why(void **state)
{
    (void)state;
    struct outcome o[SIZE];
    run_job(&(struct job){.size = SIZE,
                          .timeout_s = 30,
                          .transport = "auto",
                          .check_leaks = true,
                          .body = rank_1_aborts},
            o);
    expect_all(o, SIZE, TSR_ERUNTIME, "rank 1 gave up: its loss is not a number");
    assert_true(o[0].end - o[0].begin < 5);
}

static void rank_2_has_less(struct tsr_world *world, struct outcome *o, void *user)
{
    (void)user;
    outcome_set(o, gather(world, 5, world->rank == 2 ? 128 : 256));
}

static void test_collective__members_disagree__the_text_names_both(void **state)
{
    (void)state;
    struct outcome o[SIZE];
    run_job(
        &(struct job){.size = SIZE, .timeout_s = 30, .transport = "auto", .body = rank_2_has_less},
        o);
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_int_equal(o[r].status, TSR_EDEFECT);
        assert_non_null(strstr(o[r].error, "rank 2 calls all_gather of 128 bytes of f32"));
        assert_non_null(strstr(o[r].error, " calls all_gather of 256 bytes of f32"));
    }
}

static void rank_2_broadcasts(struct tsr_world *world, struct outcome *o, void *user)
{
    (void)user;
    if (world->rank != 2) {
        outcome_set(o, gather(world, 0, 256));
        return;
    }
    char data[256];
    const struct tsr_collective call = {.kind = TSR_BROADCAST,
                                        .dtype = TSR_F32,
                                        .comm = &shard,
                                        .send = data,
                                        .recv = data,
                                        .bytes = sizeof data};
    outcome_set(o, world->ops->collective(world, &call));
}

static void test_collective__members_call_different_kinds__defect(void **state)
{
    (void)state;
    struct outcome o[SIZE];
    run_job(
        &(struct job){
            .size = SIZE, .timeout_s = 30, .transport = "auto", .body = rank_2_broadcasts},
        o);
    expect_all(o, SIZE, TSR_EDEFECT,
               "call #0 of 'shard': rank 2 calls broadcast of 256 bytes of f32, "
               "rank 0 calls all_gather of 256 bytes of f32");
}

static void other_hash(struct tsr_world *world, struct outcome *o, void *user)
{
    (void)user;
    outcome_set(o, tsr_world_same(world, "model", world->rank >= 2 ? 8 : 7));
}

static void test_same__a_rank_has_another_configuration__all_name_it(void **state)
{
    (void)state;
    struct outcome o[SIZE];
    run_job(&(struct job){.size = SIZE, .timeout_s = 20, .transport = "auto", .body = other_hash},
            o);
    expect_all(o, SIZE, TSR_ECONFIG, "rank 2 runs another configuration than rank 0 (what: model)");
}

/* ---- lost and stuck processes ---------------------------------------------------------------- */

struct victim {
    uint32_t rank;
    int signal;
    double timeout_s;
    int pipe[2]; /* the time of its death */
};

static void one_dies(struct tsr_world *world, struct outcome *o, void *user)
{
    const struct victim *v = user;
    world->timeout_s = v->timeout_s;
    o->status = TSR_OK;
    for (uint64_t i = 0; o->status == TSR_OK; i++) {
        if (i == 50 && world->rank == v->rank) {
            double t = tsr__now();
            if (write(v->pipe[1], &t, sizeof t) != (ssize_t)sizeof t)
                return;
            (void)raise(v->signal);
        }
        o->begin = tsr__now();
        outcome_set(o, gather(world, i, 256));
    }
}

static size_t count_shared_files(void)
{
    size_t n = 0;
    DIR *dir = opendir("/dev/shm");
    while (dir && readdir(dir))
        n++;
    if (dir)
        (void)closedir(dir);
    return n;
}

static void expect_loss_is_noticed(uint32_t rank, const char *transport, uint32_t ranks_per_host)
{
    struct victim victim = {.rank = rank, .signal = SIGKILL, .timeout_s = 30};
    struct outcome o[SIZE];
    double death;
    char text[128];
    assert_int_equal(pipe(victim.pipe), 0);
    size_t files = count_shared_files();
    run_job(&(struct job){.size = SIZE,
                          .timeout_s = 30,
                          .transport = transport,
                          .ranks_per_host = ranks_per_host,
                          .body = one_dies,
                          .user = &victim},
            o);
    assert_int_equal(read(victim.pipe[0], &death, sizeof death), sizeof death);
    snprintf(text, sizeof text, "rank %u is lost: its process ended, or its connection broke",
             rank);
    expect_all(o, rank, TSR_EPEER, text);
    for (uint32_t r = 0; r < SIZE; r++)
        assert_true(r == rank || o[r].end - death < 2);
    assert_true(WIFSIGNALED(o[rank].wait_status));
    assert_int_equal(count_shared_files(), files);
    (void)close(victim.pipe[0]);
    (void)close(victim.pipe[1]);
}

static void test_loss__a_process_is_killed__the_others_end_soon(void **state)
{
    (void)state;
    expect_loss_is_noticed(2, "shm", 0);
    expect_loss_is_noticed(0, "shm", 0);
    expect_loss_is_noticed(3, "tcp", 0);
    expect_loss_is_noticed(0, "tcp", 0);
    expect_loss_is_noticed(1, "auto", 2);
}

/* All-reduces of half a megabyte without end: the killed one has bytes on every way. */
static void reduce_for_ever(struct tsr_world *world, struct outcome *o, void *user)
{
    enum { N = 1 << 17 };
    const int *ready = user;
    float *data = calloc(N, sizeof *data);
    o->status = TSR_OK;
    for (uint64_t i = 0; o->status == TSR_OK; i++) {
        const struct tsr_collective call = {.kind = TSR_ALL_REDUCE,
                                            .dtype = TSR_F32,
                                            .reduce_op = TSR_REDUCE_SUM,
                                            .comm = &shard,
                                            .sequence = i,
                                            .send = data,
                                            .recv = data,
                                            .bytes = N * sizeof *data};
        outcome_set(o, world->ops->collective(world, &call));
        if (i == 0 && write(ready[1], "", 1) != 1)
            _exit(8);
    }
    free(data);
}

static void test_loss__killed_in_a_transfer__the_others_end_soon(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        struct outcome o[SIZE];
        uint32_t rank = round % SIZE;
        int ready[2];
        char text[128];
        assert_int_equal(pipe(ready), 0);
        snprintf(text, sizeof text, "rank %u is lost: its process ended, or its connection broke",
                 rank);
        run_job(&(struct job){.size = SIZE,
                              .timeout_s = 30,
                              .transport = round % 2 ? "tcp" : "shm",
                              .body = reduce_for_ever,
                              .user = ready,
                              .killed = rank + 1,
                              .kill_after_s = 0.01 + 0.007 * round,
                              .ready_fd = ready[0]},
                o);
        expect_all(o, rank, TSR_EPEER, text);
        for (uint32_t r = 0; r < SIZE; r++)
            assert_true(r == rank || o[r].end - o[r].killed_at < 2);
        (void)close(ready[0]);
        (void)close(ready[1]);
    }
}

static void test_loss__a_process_hangs__the_others_end_in_time(void **state)
{
    (void)state;
    struct victim victim = {.rank = 1, .signal = SIGSTOP, .timeout_s = 2};
    struct outcome o[SIZE];
    assert_int_equal(pipe(victim.pipe), 0);
    run_job(&(struct job){.size = SIZE,
                          .timeout_s = 20,
                          .transport = "auto",
                          .body = one_dies,
                          .user = &victim,
                          .stopped = 2},
            o);
    expect_all(o, 1, TSR_EPEER, "rank 1 did not arrive at all_gather #50 of 'shard' within 2 s");
    for (uint32_t r = 0; r < SIZE; r++)
        assert_true(r == 1 || o[r].end - o[r].begin < 10);
    (void)close(victim.pipe[0]);
    (void)close(victim.pipe[1]);
}

/* Overwrites all memory that the ranks share: every ring claims to hold what it cannot. */
static void scribble(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (!strstr(line, "/memfd:tessera") || sscanf(line, "%lx-%lx", &from, &to) != 2)
            continue;
        for (uint64_t *at = (uint64_t *)from; at < (uint64_t *)to; at++)
            *at = ct_mix(from, (uint64_t)(uintptr_t)at, 1);
    }
    if (maps)
        (void)fclose(maps);
}

static void rank_1_scribbles(struct tsr_world *world, struct outcome *o, void *user)
{
    (void)user;
    outcome_set(o, gather(world, 0, 256));
    if (world->rank == 1)
        scribble();
    for (uint64_t i = 1; o->status == TSR_OK; i++)
        outcome_set(o, gather(world, i, 256));
}

static void test_shared_memory__full_of_nonsense__ends_the_job_in_order(void **state)
{
    (void)state;
    struct outcome o[SIZE];
#if defined(__SANITIZE_THREAD__)
    skip(); /* who scribbles races with everybody: that is the attack */
#endif
    run_job(
        &(struct job){.size = SIZE, .timeout_s = 20, .transport = "shm", .body = rank_1_scribbles},
        o);
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_int_equal(o[r].status, TSR_EPEER);
        assert_true(strstr(o[r].error, " has broken its ring in shared memory") ||
                    strstr(o[r].error, "is no message of this program"));
    }
}

/* ---- transports ------------------------------------------------------------------------------ */

static void test_transport__what_cannot_be__is_refused(void **state)
{
    (void)state;
    struct outcome o[SIZE];
    run_job(&(struct job){.size = 2,
                          .timeout_s = 20,
                          .transport = "shm",
                          .ranks_per_host = 1,
                          .body = other_hash},
            o);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(o[r].status, TSR_ECONFIG);
        assert_non_null(strstr(o[r].error, "processes on other hosts"));
    }
    struct tsr_world *world;
    struct tsr_launch launch = {.size = 1};
    assert_int_equal(tsr_world_processes(&launch, 1, "rdma", &world), TSR_ECONFIG);
    assert_string_equal(tsr_error_text(), "transport rdma; allowed: auto, shm, tcp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives__shared_memory__bits_of_threads),
        cmocka_unit_test(test_collectives__tcp__bits_of_threads),
        cmocka_unit_test(test_collectives__several_hosts__bits_of_threads),
        cmocka_unit_test(test_collectives__large_buffers__pass),
        cmocka_unit_test(test_collective__a_rank_does_not_come__all_give_up_in_time),
        cmocka_unit_test(test_collective__a_rank_aborts__all_stop_and_know_why),
        cmocka_unit_test(test_collective__members_disagree__the_text_names_both),
        cmocka_unit_test(test_collective__members_call_different_kinds__defect),
        cmocka_unit_test(test_same__a_rank_has_another_configuration__all_name_it),
        cmocka_unit_test(test_loss__a_process_is_killed__the_others_end_soon),
        cmocka_unit_test(test_loss__killed_in_a_transfer__the_others_end_soon),
        cmocka_unit_test(test_loss__a_process_hangs__the_others_end_in_time),
        cmocka_unit_test(test_shared_memory__full_of_nonsense__ends_the_job_in_order),
        cmocka_unit_test(test_transport__what_cannot_be__is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
