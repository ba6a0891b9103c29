/* what_if_run.c: emits many variants of a strategy in a few processes.
 *
 * Process k of j takes the variants k, k + j, k + 2j, ... A result is smaller than PIPE_BUF, so
 * that all of them may write to one pipe; what a process that died did not write is a failure of
 * the machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd.h"
#include "peak.h"
#include "progress.h"
#include "simulate.h"
#include "what_if.h"

_Static_assert(sizeof(struct tsr_what_if_result) <= _POSIX_PIPE_BUF,
               "a result must be written to the pipe at once");

enum { MAX_WORKERS = 64 };

struct task {
    struct tsr_experiment *experiment;
    const struct tsr_strategy *from;
    const struct tsr_variant *const *variants;
    size_t n;
    bool simulate;
};

/* ---- in a worker ----------------------------------------------------------------------------- */

static tsr_status measure(const struct task *task, const struct tsr_variant *variant,
                          struct tsr_row *row, bool *timed)
{
    struct tsr_strategy changed;
    struct tsr_job job;
    TSR_TRY(tsr_variant_apply(task->experiment, task->from, variant, &changed));
    TSR_TRY(tsr_job_open(task->experiment, &changed, TSR_MAY_LACK_CLUSTER, &job));
    *timed = task->simulate && *job.cluster.name;
    tsr_status status = *timed ? tsr_simulate(&job, NULL, NULL, row) : tsr_peak_measure(&job, row);
    tsr_job_close(&job);
    return status;
}

static void run_one(const struct task *task, size_t i, struct tsr_what_if_result *out)
{
    struct tsr_row row = {0};
    bool timed = false;
    memset(out, 0, sizeof(*out));
    out->index = (uint32_t)i;
    out->step_s = -1;
    tsr_status status = measure(task, task->variants[i], &row, &timed);
    if (status != TSR_OK) {
        snprintf(out->failure, sizeof out->failure, "%s", tsr_error_text());
        out->status = tsr_exit_status(status);
        return;
    }
    out->allocated = row.peak_allocated;
    out->reserved = row.peak_reserved;
    if (timed)
        out->step_s = row.steady.step_s;
}

/* Remarks on variants that nobody asked for by name would only confuse: stderr is closed. */
static _Noreturn void worker(const struct task *task, size_t first, size_t step, int fd)
{
    int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0)
        dup2(nowhere, STDERR_FILENO);
    for (size_t i = first; i < task->n; i += step) {
        struct tsr_what_if_result result;
        run_one(task, i, &result);
        ssize_t done = 0;
        do
            done = write(fd, &result, sizeof result);
        while (done < 0 && errno == EINTR);
        if (done != (ssize_t)sizeof result)
            _exit(TSR_EXIT_MACHINE);
    }
    _exit(TSR_EXIT_OK);
}

/* ---- in the parent --------------------------------------------------------------------------- */

struct workers {
    pid_t pids[MAX_WORKERS];
    size_t n;
};

static tsr_status start(const struct task *task, size_t n, int fds[2], struct workers *workers)
{
    fflush(NULL);
    for (size_t k = 0; k < n; k++) {
        pid_t pid = fork();
        if (pid < 0)
            return tsr_fail(TSR_EIO, "fork: %s", strerror(errno));
        if (pid == 0) {
            close(fds[0]);
            worker(task, k, n, fds[1]);
        }
        workers->pids[workers->n++] = pid;
    }
    return TSR_OK;
}

/* Reads one result; 0 at the end of the pipe. */
static ssize_t read_result(int fd, struct tsr_what_if_result *out)
{
    size_t got = 0;
    while (got < sizeof *out) {
        ssize_t more = read(fd, (char *)out + got, sizeof *out - got);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return more;
        got += (size_t)more;
    }
    return (ssize_t)got;
}

static tsr_status collect(const struct task *task, int fd, struct tsr_what_if_result *results)
{
    struct tsr_progress progress;
    struct tsr_what_if_result result;
    size_t n = 0;
    tsr_progress_begin(&progress, task->n);
    while (n < task->n && read_result(fd, &result) > 0) {
        if (result.index < task->n) {
            results[result.index] = result;
            tsr_progress_show(&progress, ++n, "what-ifs");
        }
    }
    tsr_progress_end(&progress);
    if (n == task->n)
        return TSR_OK;
    return tsr_fail(TSR_EBACKEND,
                    "what-ifs of %s: a process ended early; %zu of %zu emissions are done",
                    task->from->name, n, task->n);
}

static void reap(struct workers *workers, bool kill_them)
{
    for (size_t i = 0; i < workers->n; i++) {
        if (kill_them)
            kill(workers->pids[i], SIGTERM);
        while (waitpid(workers->pids[i], NULL, 0) < 0 && errno == EINTR)
            continue;
    }
}

tsr_status tsr_what_if_run(struct tsr_experiment *experiment, const struct tsr_strategy *from,
                           const struct tsr_variant *const *variants, size_t n, uint64_t jobs,
                           bool simulate, struct tsr_what_if_result *results)
{
    struct task task = {experiment, from, variants, n, simulate};
    struct workers workers = {.n = 0};
    uint64_t most = tsr_min_u64(tsr_min_u64(jobs, MAX_WORKERS), n);
    int fds[2];
    if (n == 0)
        return TSR_OK;
    if (pipe(fds) != 0)
        return tsr_fail(TSR_EIO, "pipe: %s", strerror(errno));
    tsr_status status = start(&task, (size_t)most, fds, &workers);
    close(fds[1]);
    if (status == TSR_OK)
        status = collect(&task, fds[0], results);
    close(fds[0]);
    reap(&workers, status != TSR_OK);
    return status;
}
