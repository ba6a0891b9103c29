/* pool.c: runs work items in child processes (pool.h).
 *
 * A child sends the result of its item through a socket. One that takes many items is then told the
 * next one, or, by the end of the stream, that there is none. A child that dies without a result
 * becomes a failure of the machine.
 */
#include "experiments/study/base/pool.h"

#include <errno.h>
#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/study/base/exit_status.h"
#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/listener.h"

enum { MAX_CHILDREN = 256 };

struct child {
    pid_t pid;
    int fd; /* results come from it, next items go to it */
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

static bool read_all(int fd, void *data, size_t n)
{
    char *to = data;
    while (n > 0) {
        ssize_t got = read(fd, to, n);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        if (got > 0) {
            to += got;
            n -= (size_t)got;
        }
    }
    return true;
}

static void be_quiet(void)
{
    int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0)
        dup2(nowhere, STDERR_FILENO);
}

/* Items need about as much memory as the one before: giving it back to the system, and taking it
 * anew page by page, took a quarter of the time of emissions. */
static void keep_memory(void)
{
#ifdef __GLIBC__
    enum { MOST = 1 << 30 };
    (void)mallopt(M_MMAP_THRESHOLD, MOST);
    (void)mallopt(M_TRIM_THRESHOLD, MOST);
    (void)mallopt(M_TOP_PAD, 64 << 20);
#endif
}

/* The life of a child. It ends with _exit(): buffers and handlers belong to the parent. */
static _Noreturn void child_main(const struct tsr_pool_work *work, struct child *child, int fd)
{
    size_t item = child->item;
    if (work->quiet)
        be_quiet();
    if (work->many)
        keep_memory();
    do {
        memset(child->result, 0, work->result_bytes);
        work->run(work->user, item, child->result);
        if (!write_all(fd, child->result, work->result_bytes))
            _exit(TSR_EXIT_MACHINE);
    } while (work->many && read_all(fd, &item, sizeof item));
    _exit(TSR_EXIT_OK);
}

static tsr_status fork_child(const struct pool *pool, struct child *child, const int fds[2])
{
    fflush(NULL);
    child->pid = tsr_interrupt_fork();
    if (child->pid < 0)
        return tsr_fail(TSR_EIO, "fork: %s", strerror(errno));
    if (child->pid == 0) {
        close(fds[0]);
        for (size_t i = 0; i < pool->n; i++)
            close(pool->children[i].fd);
        child_main(pool->work, child, fds[1]);
    }
    close(fds[1]);
    child->fd = fds[0];
    return TSR_OK;
}

static tsr_status start(struct pool *pool, size_t item)
{
    int fds[2];
    struct child *child = &pool->children[pool->n];
    tsr_status status = TSR_OK;
    *child = (struct child){.item = item, .result = calloc(1, pool->work->result_bytes)};
    if (!child->result)
        return tsr_no_memory(NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        TSR_GOTO(no_socket, tsr_fail(TSR_EIO, "socketpair: %s", strerror(errno)));
    TSR_GOTO(no_child, fork_child(pool, child, fds));
    pool->n++;
    return TSR_OK;
no_child:
    close(fds[0]);
    close(fds[1]);
no_socket:
    free(child->result);
    return status;
}

/* Takes a child that is through off the list; the caller frees out->result. `end` as for take(). */
static bool reap(struct pool *pool, size_t i, struct child *out, char end[TSR_POOL_END_BYTES])
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
    snprintf(end, TSR_POOL_END_BYTES, "%s %d", WIFSIGNALED(status) ? "signal" : "status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return false;
}

static void stop_all(struct pool *pool)
{
    struct child child;
    char end[TSR_POOL_END_BYTES];
    for (size_t i = 0; i < pool->n; i++)
        kill(pool->children[i].pid, SIGTERM);
    while (pool->n) {
        reap(pool, 0, &child, end);
        free(child.result);
    }
}

static bool stops(const struct pool *pool)
{
    return pool->work->stop && pool->work->stop(pool->work->user);
}

/* Waits until a child is through; its index among the children. SIZE_MAX: it is time to stop. */
static tsr_status wait_one(struct pool *pool, size_t *done)
{
    for (;;) {
        *done = SIZE_MAX;
        if (stops(pool))
            return TSR_OK;
        struct pollfd polls[MAX_CHILDREN];
        for (size_t i = 0; i < pool->n; i++)
            polls[i] = (struct pollfd){.fd = pool->children[i].fd, .events = POLLIN};
        /* A stop that is asked for between the check above and poll() is seen after a while. */
        if (poll(polls, (nfds_t)pool->n, pool->work->stop ? 200 : -1) < 0 && errno != EINTR)
            return tsr_fail(TSR_EIO, "poll: %s", strerror(errno));
        for (size_t i = 0; i < pool->n; i++) {
            struct child *child = &pool->children[i];
            size_t left = pool->work->result_bytes - child->got;
            if (!(polls[i].revents & (POLLIN | POLLHUP | POLLERR)))
                continue;
            ssize_t got = read(child->fd, child->result + child->got, left);
            if (got > 0)
                child->got += (size_t)got;
            bool ended = got == 0 || (got < 0 && errno != EINTR);
            if (ended || (got > 0 && (size_t)got == left)) {
                *done = i;
                return TSR_OK;
            }
        }
    }
}

/* Hands out the result of a child, which goes on with another item. */
static tsr_status go_on(const struct pool *pool, struct child *child, size_t next)
{
    tsr_status status = pool->work->take(pool->work->user, child->item, child->result, NULL);
    child->item = next;
    child->got = 0;
    /* No signal if it is gone by now: that is found out when it is read from. */
    (void)send(child->fd, &next, sizeof next, MSG_NOSIGNAL);
    return status;
}

static tsr_status finish_one(struct pool *pool, size_t *next)
{
    struct child child;
    char end[TSR_POOL_END_BYTES];
    size_t i = 0;
    TSR_TRY(wait_one(pool, &i));
    if (i == SIZE_MAX)
        return TSR_OK;
    bool has_result = pool->children[i].got == pool->work->result_bytes;
    if (pool->work->many && has_result && *next < pool->work->n)
        return go_on(pool, &pool->children[i], (*next)++);
    bool complete = reap(pool, i, &child, end);
    tsr_status status =
        pool->work->take(pool->work->user, child.item, child.result, complete ? NULL : end);
    free(child.result);
    return status;
}

/* Prepares the line of an interruption after `finished` items. */
static void tell_kept(const struct tsr_pool_work *work, size_t finished)
{
    char line[512];
    if (!work->name)
        return;
    snprintf(line, sizeof line, "tessera: interrupted; %zu of %zu %s", finished, work->n,
             work->kept ? work->kept : "");
    tsr_interrupt_tell(work->kept ? line : "");
}

static tsr_status run_all(struct pool *pool)
{
    const struct tsr_pool_work *work = pool->work;
    size_t next = 0, finished = 0;
    tell_kept(work, 0);
    while (finished < work->n && !stops(pool)) {
        while (pool->n < pool->limit && next < work->n)
            TSR_TRY(start(pool, next++));
        if (work->name)
            tsr_tell_progress(finished, work->n, work->name(work->user, next - 1));
        TSR_TRY(finish_one(pool, &next));
        tell_kept(work, ++finished);
    }
    return TSR_OK;
}

tsr_status tsr_pool_each(const struct tsr_pool_work *work, uint64_t jobs)
{
    struct pool pool = {.work = work};
    pool.limit = jobs == 0 ? 1 : jobs < MAX_CHILDREN ? (size_t)jobs : MAX_CHILDREN;
    pool.children = calloc(pool.limit, sizeof(*pool.children));
    if (!pool.children)
        return tsr_no_memory(NULL);
    tsr_status status = run_all(&pool);
    stop_all(&pool);
    if (work->name)
        tsr_tell_progress(work->n, work->n, NULL);
    free(pool.children);
    return status;
}
