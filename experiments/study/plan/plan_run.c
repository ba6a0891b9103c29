/* plan_run.c: configurations are emitted and simulated in child processes, or taken from the search
 * that this one resumes; and values that none can have are found (plan.h). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "experiments/study/base/exit_status.h"
#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/base/pool.h"
#include "experiments/study/plan/plan.h"

double tsr_plan_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- work in children -------------------------------------------------------------------- */

struct batch {
    struct tsr_plan *plan;
    const size_t *items;
    bool simulates;
    size_t n_done;
    double start; /* seconds, tsr_plan_now() */
    char name[160];
};

static void run_item(void *user, size_t item, void *result)
{
    struct batch *batch = user;
    struct tsr_plan_measure *out = result;
    const char *sets[TSR_PLAN_MAX_AXES];
    size_t n = tsr_plan_sets(&batch->plan->space, batch->items[item], sets);
    tsr_status status = batch->simulates ? tsr_plan_simulate(batch->plan, sets, n, &out->row)
                                         : tsr_plan_measure(batch->plan, sets, n, true, out);
    (void)status; /* the row says it */
}

static bool stop(void *user)
{
    (void)user;
    return tsr_interrupt_asked() != 0;
}

/* A child that failed by the machine's fault, or found a defect, ends the search. */
static tsr_status check_row(const struct batch *batch, const struct tsr_row *row)
{
    if (!row->failure[0])
        return TSR_OK;
    if (row->failure_status == TSR_EXIT_MACHINE)
        return tsr_fail(TSR_EBACKEND, "%s", row->failure);
    if (row->failure_status == TSR_EXIT_DEFECT)
        return tsr_fail(TSR_EDEFECT, "%s", row->failure);
    return batch->simulates ? tsr_fail(TSR_ECONFIG, "%s", row->failure) : TSR_OK;
}

static tsr_status take_memory(struct tsr_plan *plan, size_t i, const struct tsr_plan_measure *m)
{
    struct tsr_plan_point *point = &plan->points[i];
    if (!point->m && !(point->m = malloc(sizeof *point->m)))
        return tsr_no_memory(NULL);
    *point->m = *m;
    if (m->row.failure[0]) {
        bool oom = m->row.failure_status == TSR_EXIT_UNFIT;
        point->state = oom ? TSR_PLAN_OOM : TSR_PLAN_IMPOSSIBLE;
        plan->counts.impossible += !oom;
        plan->counts.emitted += oom;
        return TSR_OK;
    }
    point->state = TSR_PLAN_EMITTED;
    point->need = tsr_plan_need(&m->row);
    point->fits = m->row.fits > TSR_FITS_NO;
    plan->counts.emitted++;
    tsr_plan_learn(plan, i);
    return TSR_OK;
}

static tsr_status take_time(struct tsr_plan *plan, size_t i, const struct tsr_row *row)
{
    plan->points[i].m->row = *row;
    plan->points[i].state = TSR_PLAN_SIMULATED;
    plan->counts.simulated++;
    return TSR_OK;
}

/* Tells how much is settled and how many seconds are left, after `batch->n_done` of a batch. */
static void tell(const struct batch *batch)
{
    const struct tsr_plan *plan = batch->plan;
    struct tsr_plan_eta eta = plan->eta;
    struct tsr_plan_left left = plan->left;
    size_t *from = batch->simulates ? &left.waiting : &left.open;
    size_t n = plan->space.n, settled = n - (plan->left.open < n ? plan->left.open : n);
    char text[64];
    tsr_plan_eta_add(&eta, batch->simulates ? TSR_PLAN_SIMULATES : TSR_PLAN_EMITS, left.learning,
                     batch->n_done, tsr_plan_now() - batch->start, plan->options.jobs);
    *from -= *from < batch->n_done ? *from : batch->n_done;
    snprintf(text, sizeof text, "%zu emitted, %zu simulated, %.0f s left", plan->counts.emitted,
             plan->counts.simulated, tsr_plan_eta_seconds(&eta, &left, plan->options.jobs));
    tsr_tell_progress(settled + (batch->simulates ? 0 : batch->n_done), n, text);
}

/* After a batch: its costs are known, and what it did is no longer left. */
static void count_batch(const struct batch *batch)
{
    struct tsr_plan *plan = batch->plan;
    struct tsr_plan_left *left = &plan->left;
    size_t *from = batch->simulates ? &left->waiting : &left->open;
    tsr_plan_eta_add(&plan->eta, batch->simulates ? TSR_PLAN_SIMULATES : TSR_PLAN_EMITS,
                     left->learning, batch->n_done, tsr_plan_now() - batch->start,
                     plan->options.jobs);
    *from -= *from < batch->n_done ? *from : batch->n_done;
}

static tsr_status take_item(void *user, size_t item, const void *result, const char *end)
{
    struct batch *batch = user;
    struct tsr_plan *plan = batch->plan;
    size_t i = batch->items[item];
    const struct tsr_plan_measure *m = result;
    if (tsr_interrupt_asked() && end) /* the terminal told the child, too */
        return TSR_OK;
    if (end) {
        tsr_plan_words(&plan->space, i, batch->name, sizeof batch->name);
        return tsr_fail(TSR_EBACKEND, "%s with %s ended by %s",
                        batch->simulates ? "the simulation" : "the emission", batch->name, end);
    }
    TSR_TRY(check_row(batch, &m->row));
    TSR_TRY(batch->simulates ? take_time(plan, i, &m->row) : take_memory(plan, i, m));
    batch->n_done++;
    tell(batch);
    return TSR_OK;
}

/* What a resumed search has found already is taken from it. */
static tsr_status take_kept(struct tsr_plan *plan, const size_t *items, size_t n, bool simulates,
                            size_t *left, size_t *n_left)
{
    *n_left = 0;
    for (size_t k = 0; k < n; k++) {
        const struct tsr_plan_measure *kept = tsr_plan_kept_of(plan, items[k], simulates);
        if (!kept)
            left[(*n_left)++] = items[k];
        else
            TSR_TRY(simulates ? take_time(plan, items[k], &kept->row)
                              : take_memory(plan, items[k], kept));
        plan->counts.taken += kept != NULL;
    }
    return TSR_OK;
}

tsr_status tsr_plan_run(struct tsr_plan *plan, const size_t *items, size_t n, bool simulates)
{
    struct batch batch = {.plan = plan, .simulates = simulates};
    struct tsr_pool_work work = {.result_bytes = sizeof(struct tsr_plan_measure),
                                 .many = true,
                                 .user = &batch,
                                 .run = run_item,
                                 .take = take_item,
                                 .stop = stop};
    size_t *left = malloc((n + 1) * sizeof *left);
    if (!left)
        return tsr_no_memory(NULL);
    batch.items = left;
    tsr_status status = take_kept(plan, items, n, simulates, left, &work.n);
    batch.start = tsr_plan_now();
    if (work.n && simulates)
        tsr_sim_prepare();
    if (status == TSR_OK && work.n)
        status = tsr_pool_each(&work, plan->options.jobs);
    count_batch(&batch);
    free(left);
    return status;
}

/* ---- values that are possible ------------------------------------------------------------ */

static bool is_open(const struct tsr_plan_point *point)
{
    return point->state == TSR_PLAN_NEW || point->state == TSR_PLAN_BEATEN ||
           point->state == TSR_PLAN_TOO_LARGE;
}

/* Has some combination with the value been built? *refused: one that was not. */
static bool was_built(const struct tsr_plan *plan, size_t k, size_t value, size_t *refused)
{
    *refused = SIZE_MAX;
    for (size_t i = 0; i < plan->space.n; i++) {
        if (tsr_plan_pick(&plan->space, i, k) != value)
            continue;
        enum tsr_plan_state state = plan->points[i].state;
        if (tsr_plan_is_emitted(&plan->points[i]) || state == TSR_PLAN_OOM)
            return true;
        if (state == TSR_PLAN_IMPOSSIBLE && plan->points[i].m && *refused == SIZE_MAX)
            *refused = i;
    }
    return false;
}

/* A value that every combination refuses is a mistake, and the first refusal says why. What the
 * search has left out is tried where all else was refused. */
static tsr_status check_value(struct tsr_plan *plan, size_t k, size_t value)
{
    size_t refused = SIZE_MAX;
    const struct tsr_plan_axis *axis = &plan->space.axes[k];
    if (was_built(plan, k, value, &refused) || refused == SIZE_MAX)
        return TSR_OK;
    for (size_t i = 0; i < plan->space.n && !stop(NULL); i++) {
        enum tsr_plan_state before = plan->points[i].state;
        if (tsr_plan_pick(&plan->space, i, k) != value || !is_open(&plan->points[i]))
            continue;
        plan->counts.too_large -= before == TSR_PLAN_TOO_LARGE;
        plan->counts.beaten -= before == TSR_PLAN_BEATEN;
        TSR_TRY(tsr_plan_run(plan, &i, 1, false));
        if (plan->points[i].state != TSR_PLAN_IMPOSSIBLE)
            return TSR_OK;
    }
    const char *why = plan->points[refused].m->row.failure;
    if (!axis->at)
        return tsr_fail(TSR_ECONFIG, "%s", why);
    return tsr_node_error(axis->at, "plan.space.%s: %s is refused in every combination: %s",
                          axis->key, axis->values[value].text, why);
}

tsr_status tsr_plan_check_values(struct tsr_plan *plan)
{
    for (size_t k = 0; k < plan->space.n_axes; k++)
        for (size_t v = 0; v < plan->space.axes[k].n; v++)
            TSR_TRY(check_value(plan, k, v));
    return TSR_OK;
}
