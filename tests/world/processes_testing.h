/* processes_testing.h: forks the ranks of a job, and collects what became of them. */
#ifndef PROCESSES_TESTING_H
#define PROCESSES_TESTING_H

#include "exec/base/word.h"
#include "exec/launch/launch.h"
#include "exec/rendezvous/rendezvous_wire.h"
#include "exec/world/world.h"
#include "tests/world/collectives_testing.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

struct outcome {
    tsr_status status;
    uint64_t digest;
    double begin, end, killed_at; /* tsr__now() */
    char error[512];
    int wait_status;
};

struct job {
    uint32_t size;
    double timeout_s;
    const char *transport;
    uint32_t ranks_per_host; /* 0: all on this one */
    void (*body)(struct tsr_world *world, struct outcome *o, void *user);
    void *user;
    bool check_leaks; /* takes long under the address sanitizer */
    uint32_t killed;  /* rank + 1 of one that the parent kills, this long after it said so */
    double kill_after_s;
    int ready_fd;     /* where it says so: one byte */
    uint32_t stopped; /* rank + 1 of one that the parent kills when the others have ended */
};

static inline void outcome_set(struct outcome *o, tsr_status status)
{
    o->status = status;
    o->end = tsr__now();
    snprintf(o->error, sizeof o->error, "%s", status == TSR_OK ? "" : tsr_error_text());
}

static inline void rank_main(const struct job *job, uint32_t rank, int listen_fd, uint16_t port,
                             int out)
{
    struct outcome o = {.begin = tsr__now()};
    struct tsr_launch launch = {.rank = rank,
                                .size = job->size,
                                .addr = "127.0.0.1",
                                .port = port,
                                .listen_fd = rank == 0 ? listen_fd : -1,
                                .token = "test"};
    struct tsr_world *world = NULL;
    if (rank != 0)
        (void)close(listen_fd);
    outcome_set(&o, job->ranks_per_host
                        ? tsr__world_processes(&launch, job->timeout_s, job->transport,
                                               1 + rank / job->ranks_per_host, &world)
                        : tsr_world_processes(&launch, job->timeout_s, job->transport, &world));
    if (world) {
        job->body(world, &o, job->user);
        world->ops->destroy(world);
    }
    if (write(out, &o, sizeof o) != (ssize_t)sizeof o)
        _exit(9);
    (void)close(out);
    if (job->check_leaks)
        exit(0); /* the leak checker has its say */
    _exit(0);
}

static inline void run_job(const struct job *job, struct outcome *outcomes)
{
    pid_t pids[16];
    int pipes[16][2], listen_fd = -1;
    assert_int_equal(tsr__socket_listen("127.0.0.1", 0, &listen_fd), TSR_OK);
    uint16_t port = tsr__socket_port(listen_fd);
    (void)fflush(NULL);
    for (uint32_t r = 0; r < job->size; r++) {
        assert_int_equal(pipe(pipes[r]), 0);
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            for (uint32_t i = 0; i < r; i++)
                (void)close(pipes[i][0]);
            (void)close(pipes[r][0]);
            rank_main(job, r, listen_fd, port, pipes[r][1]);
        }
        (void)close(pipes[r][1]);
    }
    (void)close(listen_fd);
    if (job->killed) {
        char ready;
        assert_int_equal(read(job->ready_fd, &ready, 1), 1);
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)(job->kill_after_s * 1e9)}, NULL);
        (void)kill(pids[job->killed - 1], SIGKILL);
    }
    double killed_at = tsr__now();
    for (uint32_t i = 0; i < job->size; i++) {
        uint32_t r = job->stopped ? (job->stopped + i) % job->size : i; /* that one last */
        if (r + 1 == job->stopped)
            (void)kill(pids[r], SIGKILL);
        memset(&outcomes[r], 0, sizeof outcomes[r]);
        ssize_t n = read(pipes[r][0], &outcomes[r], sizeof outcomes[r]);
        (void)n;
        outcomes[r].killed_at = killed_at;
        (void)close(pipes[r][0]);
        assert_int_equal(waitpid(pids[r], &outcomes[r].wait_status, 0), pids[r]);
        if (r + 1 != job->stopped && !WIFSIGNALED(outcomes[r].wait_status))
            assert_int_equal(outcomes[r].wait_status, 0);
    }
}

static inline void random_body(struct tsr_world *world, struct outcome *o, void *user)
{
    o->digest = ct_run_rank(world, user, o->error, sizeof o->error);
    o->end = tsr__now();
}

#endif
