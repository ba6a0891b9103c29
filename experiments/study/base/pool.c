/* pool.c: runs work items in child processes (pool.h); and with it the strategies of a study.
 *
 * A child sends its result through a pipe, whose end also says that the child is through. A child
 * that dies without a result becomes a failure of the machine.
 */
#include "experiments/study/base/pool.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/progress.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/simulate/simulate.h"

enum { MAX_CHILDREN = 256 };

struct child {
    pid_t pid;
    int fd;
    size_t item;
    size_t got; /* bytes of the result that have arrived */
    char *result;
};

struct pool {
    const struct tsr_pool_work *work;
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
static _Noreturn void child_main(const struct tsr_pool_work *work, struct child *child, int fd)
{
    work->run(work->user, child->item, child->result);
    _exit(write_all(fd, child->result, work->result_bytes) ? TSR_EXIT_OK : TSR_EXIT_MACHINE);
}

static tsr_status start(struct pool *pool, size_t item)
{
    int fds[2];
    struct child *child = &pool->children[pool->n];
    *child = (struct child){.item = item, .result = calloc(1, pool->work->result_bytes)};
    if (!child->result)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    if (pipe(fds) != 0) {
        free(child->result);
        return tsr_fail(TSR_EIO, "pipe: %s", strerror(errno));
    }
    fflush(NULL);
    child->pid = tsr_interrupt_fork();
    if (child->pid < 0) {
        close(fds[0]);
        close(fds[1]);
        free(child->result);
        return tsr_fail(TSR_EIO, "fork: %s", strerror(errno));
    }
    if (child->pid == 0) {
        close(fds[0]);
        for (size_t i = 0; i < pool->n; i++)
            close(pool->children[i].fd);
        child_main(pool->work, child, fds[1]);
    }
    close(fds[1]);
    child->fd = fds[0];
    pool->n++;
    return TSR_OK;
}

/* Takes a child that is through off the list; the caller frees out->result. `end` as for take(). */
static bool reap(struct pool *pool, size_t i, struct child *out, char end[32])
{
    int status = 0;
    *out = pool->children[i];
    close(out->fd);
    while (waitpid(out->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    tsr_interrupt_reaped(out->pid);
    pool->children[i] = pool->children[--pool->n];
    if (out->got == pool->work->result_bytes)
        return true;
    memset(out->result, 0, pool->work->result_bytes);
    snprintf(end, 32, "%s %d", WIFSIGNALED(status) ? "signal" : "status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return false;
}

static void stop_all(struct pool *pool)
{
    struct child child;
    char end[32];
    for (size_t i = 0; i < pool->n; i++)
        kill(pool->children[i].pid, SIGTERM);
    while (pool->n) {
        reap(pool, 0, &child, end);
        free(child.result);
    }
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
            size_t left = pool->work->result_bytes - child->got;
            if (!(polls[i].revents & (POLLIN | POLLHUP | POLLERR)))
                continue;
            ssize_t got = read(child->fd, child->result + child->got, left);
            if (got > 0)
                child->got += (size_t)got;
            if (got == 0 || (got > 0 && (size_t)got == left)) {
                *done = i;
                return TSR_OK;
            }
        }
    }
}

static tsr_status finish_one(struct pool *pool)
{
    struct child child;
    char end[32];
    size_t i = 0;
    TSR_TRY(wait_one(pool, &i));
    bool complete = reap(pool, i, &child, end);
    tsr_status status =
        pool->work->take(pool->work->user, child.item, child.result, complete ? NULL : end);
    free(child.result);
    return status;
}

static tsr_status run_all(struct pool *pool, struct tsr_progress *progress)
{
    const struct tsr_pool_work *work = pool->work;
    size_t next = 0, finished = 0;
    while (finished < work->n) {
        while (pool->n < pool->limit && next < work->n)
            TSR_TRY(start(pool, next++));
        tsr_progress_show(progress, finished, work->name(work->user, next - 1));
        TSR_TRY(finish_one(pool));
        finished++;
    }
    return TSR_OK;
}

tsr_status tsr_pool_each(const struct tsr_pool_work *work, uint64_t jobs)
{
    struct pool pool = {.work = work};
    struct tsr_progress progress;
    pool.limit = jobs < MAX_CHILDREN ? (size_t)jobs : MAX_CHILDREN;
    pool.children = calloc(pool.limit, sizeof(*pool.children));
    if (!pool.children)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    tsr_progress_begin(&progress, work->n);
    tsr_status status = run_all(&pool, &progress);
    stop_all(&pool);
    tsr_progress_end(&progress);
    free(pool.children);
    return status;
}

/* ---- a study ----------------------------------------------------------------------------- */

struct strategies {
    const struct tsr_study *study;
    const char *dir;
    const struct tsr_pool_hooks *hooks; /* NULL: none */
    const size_t *wanted;               /* [work item]: strategy */
    struct tsr_row *rows;
};

static void run_strategy(void *user, size_t item, void *result)
{
    const struct strategies *s = user;
    tsr_status status =
        tsr_simulate(&s->study->jobs[s->wanted[item]], &s->study->info, s->dir, result);
    (void)status; /* the row says it */
}

/* Mistakes and failures of the machine end a comparison; what does not fit is a result. */
static tsr_status verdict(const struct tsr_row *row)
{
    if (!row->failure[0] || row->failure_status == TSR_EXIT_UNFIT)
        return TSR_OK;
    tsr_status status = row->failure_status == TSR_EXIT_MACHINE ? TSR_EBACKEND : TSR_ECONFIG;
    return tsr_fail(status, "%s", row->failure);
}

static tsr_status take_strategy(void *user, size_t work, const void *result, const char *end)
{
    const struct strategies *s = user;
    size_t item = s->wanted[work];
    struct tsr_row *row = &s->rows[item];
    if (!end) {
        memcpy(row, result, sizeof(*row));
        TSR_TRY(verdict(row));
        return s->hooks ? s->hooks->done(s->hooks->user, item, row) : TSR_OK;
    }
    tsr_row_begin(row, &s->study->jobs[item]);
    snprintf(row->failure, sizeof row->failure, "the simulation of %s ended by %s", row->strategy,
             end);
    row->failure_status = TSR_EXIT_MACHINE;
    return verdict(row);
}

static const char *name_strategy(void *user, size_t item)
{
    const struct strategies *s = user;
    return s->study->experiment.strategies[s->wanted[item]].name;
}

tsr_status tsr_pool_run(const struct tsr_study *study, const char *dir, uint64_t jobs,
                        const struct tsr_pool_hooks *hooks, struct tsr_row *rows)
{
    size_t *wanted = calloc(study->n + 1, sizeof *wanted);
    if (!wanted)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    struct strategies s = {study, dir, hooks, wanted, rows};
    struct tsr_pool_work work = {.result_bytes = sizeof(struct tsr_row),
                                 .user = &s,
                                 .run = run_strategy,
                                 .take = take_strategy,
                                 .name = name_strategy};
    for (size_t i = 0; i < study->n; i++)
        if (!hooks || hooks->wants(hooks->user, i))
            wanted[work.n++] = i;
    tsr_status status = tsr_pool_each(&work, jobs);
    free(wanted);
    return status;
}
