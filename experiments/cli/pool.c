/* pool.c: simulates strategies in child processes, a few at a time.
 *
 * A child sends its row through a pipe; a row is smaller than a pipe's buffer, so nobody blocks.
 * A child that dies without a row becomes a failure of the machine.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd.h"
#include "progress.h"
#include "simulate.h"
#include "study.h"

enum { MAX_CHILDREN = 256 };

struct child {
    pid_t pid;
    int fd;
    size_t strategy;
    size_t got; /* bytes of the row that have arrived */
    struct tsr_row row;
};

struct pool {
    const struct tsr_study *study;
    const char *dir;
    struct child *children;
    size_t n, limit; /* running, at most */
};

static bool write_all(int fd, const void *data, size_t n)
{
    const char *from = data;
    while (n > 0) {
        ssize_t done = write(fd, from, n);
        if (done < 0 && errno != EINTR)
            return false;
        if (done > 0) {
            from += done;
            n -= (size_t)done;
        }
    }
    return true;
}

/* The life of a child. It ends with _exit(): buffers and handlers belong to the parent. */
static _Noreturn void child_main(const struct pool *pool, size_t strategy, int fd)
{
    struct tsr_row row;
    tsr_status status =
        tsr_simulate(&pool->study->jobs[strategy], &pool->study->info, pool->dir, &row);
    bool sent = write_all(fd, &row, sizeof row);
    _exit(status == TSR_OK && sent ? TSR_EXIT_OK : TSR_EXIT_MACHINE);
}

static tsr_status start(struct pool *pool, size_t strategy)
{
    int fds[2];
    if (pipe(fds) != 0)
        return tsr_fail(TSR_EIO, "pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        close(fds[0]);
        close(fds[1]);
        return tsr_fail(TSR_EIO, "fork: %s", strerror(errno));
    }
    if (pid == 0) {
        close(fds[0]);
        for (size_t i = 0; i < pool->n; i++)
            close(pool->children[i].fd);
        child_main(pool, strategy, fds[1]);
    }
    close(fds[1]);
    struct child *child = &pool->children[pool->n++];
    memset(child, 0, sizeof(*child));
    child->pid = pid;
    child->fd = fds[0];
    child->strategy = strategy;
    return TSR_OK;
}

/* Takes a child that is through off the list; its row, or what became of it, goes to *row. */
static void reap(struct pool *pool, size_t i, struct tsr_row *row)
{
    struct child child = pool->children[i];
    int end = 0;
    close(child.fd);
    while (waitpid(child.pid, &end, 0) < 0 && errno == EINTR)
        continue;
    pool->children[i] = pool->children[--pool->n];
    *row = child.row;
    if (child.got == sizeof child.row)
        return;
    tsr_row_begin(row, &pool->study->jobs[child.strategy]);
    snprintf(row->failure, sizeof row->failure, "the simulation of %s ended by %s %d",
             row->strategy, WIFSIGNALED(end) ? "signal" : "status",
             WIFSIGNALED(end) ? WTERMSIG(end) : WEXITSTATUS(end));
    row->failure_status = TSR_EXIT_MACHINE;
}

static void stop_all(struct pool *pool)
{
    struct tsr_row row;
    for (size_t i = 0; i < pool->n; i++)
        kill(pool->children[i].pid, SIGTERM);
    while (pool->n)
        reap(pool, 0, &row);
}

/* Waits until a child is through; its index among the children. */
static tsr_status wait_one(struct pool *pool, size_t *done)
{
    for (;;) {
        struct pollfd polls[MAX_CHILDREN];
        for (size_t i = 0; i < pool->n; i++)
            polls[i] = (struct pollfd){.fd = pool->children[i].fd, .events = POLLIN};
        if (poll(polls, (nfds_t)pool->n, -1) < 0 && errno != EINTR)
            return tsr_fail(TSR_EIO, "poll: %s", strerror(errno));
        for (size_t i = 0; i < pool->n; i++) {
            struct child *child = &pool->children[i];
            if (!(polls[i].revents & (POLLIN | POLLHUP | POLLERR)))
                continue;
            ssize_t got =
                read(child->fd, (char *)&child->row + child->got, sizeof child->row - child->got);
            if (got > 0)
                child->got += (size_t)got;
            if (got == 0 || child->got == sizeof child->row) {
                *done = i;
                return TSR_OK;
            }
        }
    }
}

/* Mistakes and failures of the machine end a comparison; what does not fit is a result. */
static tsr_status verdict(const struct tsr_row *row)
{
    if (!row->failure[0] || row->failure_status == TSR_EXIT_UNFIT)
        return TSR_OK;
    tsr_status status = row->failure_status == TSR_EXIT_MACHINE ? TSR_EBACKEND : TSR_ECONFIG;
    return tsr_fail(status, "%s", row->failure);
}

static tsr_status run_all(struct pool *pool, struct tsr_row *rows, struct tsr_progress *progress)
{
    size_t next = 0, finished = 0, i = 0;
    while (finished < pool->study->n) {
        while (pool->n < pool->limit && next < pool->study->n)
            TSR_TRY(start(pool, next++));
        tsr_progress_show(progress, finished, pool->study->experiment.strategies[next - 1].name);
        TSR_TRY(wait_one(pool, &i));
        size_t strategy = pool->children[i].strategy;
        reap(pool, i, &rows[strategy]);
        finished++;
        TSR_TRY(verdict(&rows[strategy]));
    }
    return TSR_OK;
}

tsr_status tsr_pool_run(const struct tsr_study *study, const char *dir, uint64_t jobs,
                        struct tsr_row *rows)
{
    struct pool pool = {.study = study, .dir = dir};
    struct tsr_progress progress;
    pool.limit = jobs < MAX_CHILDREN ? (size_t)jobs : MAX_CHILDREN;
    pool.children = calloc(pool.limit, sizeof(*pool.children));
    if (!pool.children)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    tsr_progress_begin(&progress, study->n);
    tsr_status status = run_all(&pool, rows, &progress);
    stop_all(&pool);
    tsr_progress_end(&progress);
    free(pool.children);
    return status;
}
