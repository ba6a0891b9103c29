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

#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/progress.h"
#include "experiments/study/explain/what_if.h"
#include "experiments/study/simulate/peak.h"
#include "experiments/study/simulate/simulate.h"

_Static_assert(sizeof(struct tsr_what_if_result) <= _POSIX_PIPE_BUF,
               "a result must be written to the pipe at once");

enum { MAX_WORKERS = 64 };

struct task {
    struct tsr_experiment *experiment;
    const struct tsr_strategy *from;
    const struct tsr_variant *const *variants;
    bool simulate;
    uint32_t *left; /* indices of the variants without a result */
    size_t n_left;
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
    out->step_s = out->exposed_s = -1;
    tsr_status status = measure(task, task->variants[i], &row, &timed);
    if (status != TSR_OK) {
        snprintf(out->failure, sizeof out->failure, "%s", tsr_error_text());
        out->status = tsr_exit_status(status);
        return;
    }
    out->allocated = row.peak_allocated;
    out->reserved = row.peak_reserved;
    out->needed = row.needed;
    out->fits = row.fits;
    out->host = row.host_bytes;
    out->pinned = row.pinned_bytes;
    out->tokens_per_rank = row.tokens_per_rank;
    if (timed) {
        out->step_s = row.steady.step_s;
        out->exposed_s = row.steady.exposed_s;
    }
}

/* Remarks on variants that nobody asked for by name would only confuse: stderr is closed. */
static _Noreturn void worker(const struct task *task, size_t first, size_t step, int fd)
{
    int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0)
        dup2(nowhere, STDERR_FILENO);
    for (size_t i = first; i < task->n_left; i += step) {
        struct tsr_what_if_result result;
        run_one(task, task->left[i], &result);
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

static tsr_status start(const struct task *task, size_t n, const int fds[2],
                        struct workers *workers)
{
    fflush(NULL);
    for (size_t k = 0; k < n; k++) {
        pid_t pid = tsr_interrupt_fork();
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

/* Reads one result; false at the end of the pipe. */
static bool read_result(int fd, struct tsr_what_if_result *out)
{
    size_t got = 0;
    while (got < sizeof *out) {
        ssize_t more = read(fd, (char *)out + got, sizeof *out - got);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return false;
        got += (size_t)more;
    }
    return true;
}

/* Results so far are told from others by their index. */
enum { NO_RESULT = UINT32_MAX };

static void collect(const struct task *task, int fd, struct tsr_what_if_result *results)
{
    struct tsr_progress progress;
    struct tsr_what_if_result result;
    size_t n = 0;
    tsr_progress_begin(&progress, task->n_left);
    while (n < task->n_left && read_result(fd, &result)) {
        results[result.index] = result;
        tsr_progress_show(&progress, ++n, "what-ifs");
    }
    tsr_progress_end(&progress);
}

/* The variant that a process was at when it died: the first one of its own without a result. */
static void blame(const struct task *task, size_t worker, size_t n_workers, int end,
                  struct tsr_what_if_result *results)
{
    for (size_t i = worker; i < task->n_left; i += n_workers) {
        struct tsr_what_if_result *result = &results[task->left[i]];
        if (result->index != NO_RESULT)
            continue;
        *result = (struct tsr_what_if_result){
            .index = task->left[i], .status = TSR_EXIT_MACHINE, .step_s = -1, .exposed_s = -1};
        snprintf(result->failure, sizeof result->failure, "its emission ended by %s %d",
                 WIFSIGNALED(end) ? "signal" : "status",
                 WIFSIGNALED(end) ? WTERMSIG(end) : WEXITSTATUS(end));
        return;
    }
}

static void reap(const struct task *task, const struct workers *workers, bool failed,
                 struct tsr_what_if_result *results)
{
    for (size_t i = 0; i < workers->n; i++) {
        int end = 0;
        if (failed)
            kill(workers->pids[i], SIGTERM);
        while (waitpid(workers->pids[i], &end, 0) < 0 && errno == EINTR)
            continue;
        tsr_interrupt_reaped(workers->pids[i]);
        if (!failed && (!WIFEXITED(end) || WEXITSTATUS(end) != TSR_EXIT_OK))
            blame(task, i, workers->n, end, results);
    }
}

/* One round: a result for all that are left, but for those after one in which a process died. */
static tsr_status run_round(const struct task *task, uint64_t jobs,
                            struct tsr_what_if_result *results)
{
    struct workers workers = {.n = 0};
    uint64_t n = tsr_min_u64(tsr_min_u64(jobs, MAX_WORKERS), task->n_left);
    int fds[2];
    if (pipe(fds) != 0)
        return tsr_fail(TSR_EIO, "pipe: %s", strerror(errno));
    tsr_status status = start(task, (size_t)n, fds, &workers);
    close(fds[1]);
    if (status == TSR_OK)
        collect(task, fds[0], results);
    close(fds[0]);
    reap(task, &workers, status != TSR_OK, results);
    return status;
}

static size_t keep_left(struct task *task, const struct tsr_what_if_result *results)
{
    size_t n = 0;
    for (size_t i = 0; i < task->n_left; i++)
        if (results[task->left[i]].index == NO_RESULT)
            task->left[n++] = task->left[i];
    return n;
}

tsr_status tsr_what_if_run(struct tsr_experiment *experiment, const struct tsr_strategy *from,
                           const struct tsr_variant *const *variants, size_t n, uint64_t jobs,
                           bool simulate, struct tsr_what_if_result *results)
{
    struct task task = {experiment, from, variants, simulate, NULL, n};
    task.left = calloc(n + 1, sizeof *task.left);
    if (!task.left)
        return tsr_fail(TSR_ENOMEM, "out of memory: what-ifs");
    for (size_t i = 0; i < n; i++) {
        task.left[i] = (uint32_t)i;
        results[i].index = NO_RESULT;
    }
    tsr_status status = TSR_OK;
    while (task.n_left && status == TSR_OK) {
        size_t before = task.n_left;
        status = run_round(&task, jobs, results);
        task.n_left = keep_left(&task, results);
        if (status == TSR_OK && task.n_left == before)
            status = tsr_fail(TSR_EBACKEND, "what-ifs of %s: no process gave a result", from->name);
    }
    free(task.left);
    return status;
}
