/* what_if_run.c: emits many variants of a strategy in a few processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/exit_status.h"
#include "experiments/study/base/pool.h"
#include "experiments/study/explain/what_if.h"
#include "experiments/study/simulate/peak.h"
#include "experiments/study/simulate/simulate.h"

struct task {
    struct tsr_experiment *experiment;
    const struct tsr_strategy *from;
    const struct tsr_variant *const *variants;
    bool simulate;
    struct tsr_what_if_result *results;
};

/* ---- in a child ------------------------------------------------------------------------------ */

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

static void run_one(void *user, size_t i, void *result)
{
    const struct task *task = user;
    struct tsr_what_if_result *out = result;
    struct tsr_row row = {0};
    bool timed = false;
    memset(out, 0, sizeof(*out));
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

/* ---- in the parent --------------------------------------------------------------------------- */

static tsr_status take(void *user, size_t i, const void *result, const char *end)
{
    struct tsr_what_if_result *out = &((const struct task *)user)->results[i];
    if (!end) {
        memcpy(out, result, sizeof *out);
        return TSR_OK;
    }
    *out = (struct tsr_what_if_result){.status = TSR_EXIT_MACHINE, .step_s = -1, .exposed_s = -1};
    snprintf(out->failure, sizeof out->failure, "its emission ended by %s", end);
    return TSR_OK;
}

static const char *name(void *user, size_t i)
{
    (void)user;
    (void)i;
    return "what-ifs";
}

tsr_status tsr_what_if_run(struct tsr_experiment *experiment, const struct tsr_strategy *from,
                           const struct tsr_variant *const *variants, size_t n, uint64_t jobs,
                           bool simulate, struct tsr_what_if_result *results)
{
    struct task task = {experiment, from, variants, simulate, results};
    /* Emissions are short: the memory of one is there for the next. */
    struct tsr_pool_work work = {.n = n,
                                 .result_bytes = sizeof *results,
                                 .many = true,
                                 .quiet = true,
                                 .user = &task,
                                 .run = run_one,
                                 .take = take,
                                 .name = name};
    return tsr_pool_each(&work, jobs);
}
