/* plan_search.c: which configurations are emitted, which are simulated, which are shown (plan.h).
 *
 * Why leaving out loses nothing:
 *  - A configuration is not emitted when one that differs only by a smaller batch or seq holds, at
 *    one moment, tensors of more bytes than the budget. The larger one runs the same operations on
 *    larger tensors, and no allocator holds fewer bytes than its tensors ask for.
 *  - A configuration is not simulated when its bound alone puts it behind the N fastest, and behind
 *    a simulated one that needs no more memory.
 *  - Of configurations with equal programs and memory one is simulated.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "experiments/study/base/exit_status.h"
#include "experiments/study/base/pool.h"
#include "experiments/study/plan/plan.h"

enum {
    ROUND = 8
}; /* simulated between two looks at what can be left out; not the jobs: the
      result must not depend on them */

/* A sum of doubles is not exact; a bound must not be above what it bounds. */
static const double ROUNDING = 1.0 - 1e-9;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool emitted(const struct tsr_plan_point *point)
{
    return point->state == TSR_PLAN_EMITTED || point->state == TSR_PLAN_SIMULATED;
}

/* ---- work in children -------------------------------------------------------------------- */

struct batch {
    struct tsr_plan *plan;
    const size_t *items;
    bool simulates;
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

static const char *name_item(void *user, size_t item)
{
    struct batch *batch = user;
    tsr_plan_words(&batch->plan->space, batch->items[item], batch->name, sizeof batch->name);
    return batch->name;
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

static void take_memory(struct tsr_plan *plan, struct tsr_plan_point *point,
                        const struct tsr_plan_measure *m)
{
    point->m = *m;
    if (m->row.failure[0]) {
        bool oom = m->row.failure_status == TSR_EXIT_UNFIT;
        point->state = oom ? TSR_PLAN_OOM : TSR_PLAN_IMPOSSIBLE;
        plan->counts.impossible += !oom;
        plan->counts.emitted += oom;
        return;
    }
    point->state = TSR_PLAN_EMITTED;
    point->need = tsr_plan_need(&m->row);
    point->fits = point->need <= plan->budget;
    plan->counts.emitted++;
}

static tsr_status take_item(void *user, size_t item, const void *result, const char *end)
{
    struct batch *batch = user;
    struct tsr_plan_point *point = &batch->plan->points[batch->items[item]];
    const struct tsr_plan_measure *m = result;
    if (end)
        return tsr_fail(TSR_EBACKEND, "%s with %s ended by %s",
                        batch->simulates ? "the simulation" : "the emission", name_item(user, item),
                        end);
    TSR_TRY(check_row(batch, &m->row));
    if (!batch->simulates) {
        take_memory(batch->plan, point, m);
        return TSR_OK;
    }
    point->m.row = m->row;
    point->state = TSR_PLAN_SIMULATED;
    batch->plan->counts.simulated++;
    return TSR_OK;
}

static tsr_status run_batch(struct tsr_plan *plan, const size_t *items, size_t n, bool simulates)
{
    struct batch batch = {.plan = plan, .items = items, .simulates = simulates};
    struct tsr_pool_work work = {.n = n,
                                 .result_bytes = sizeof(struct tsr_plan_measure),
                                 .user = &batch,
                                 .run = run_item,
                                 .take = take_item,
                                 .name = name_item};
    return n ? tsr_pool_each(&work, plan->options.jobs) : TSR_OK;
}

/* ---- emission ---------------------------------------------------------------------------- */

/* Sizes come from small to large: level 0 has the smallest batch and seq. */
static size_t level_of(const struct tsr_plan_space *space, size_t i)
{
    size_t level = 0;
    for (size_t k = 0; k < space->n_axes; k++)
        if (space->axes[k].is_size)
            level += space->axes[k].values[tsr_plan_pick(space, i, k)].rank;
    return level;
}

static size_t value_of_rank(const struct tsr_plan_axis *axis, size_t rank)
{
    size_t i = 0;
    while (i < axis->n && axis->values[i].rank != rank)
        i++;
    return i;
}

/* Is it known of the next smaller size that nothing can make it fit? */
static bool is_too_large(const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_space *space = &plan->space;
    for (size_t k = 0; k < space->n_axes; k++) {
        const struct tsr_plan_axis *axis = &space->axes[k];
        size_t rank = axis->is_size ? axis->values[tsr_plan_pick(space, i, k)].rank : 0;
        if (!rank)
            continue;
        size_t smaller = tsr_plan_with(space, i, k, value_of_rank(axis, rank - 1));
        const struct tsr_plan_point *point = &plan->points[smaller];
        if (point->state == TSR_PLAN_TOO_LARGE ||
            (emitted(point) && point->m.row.most_requested > plan->budget))
            return true;
    }
    return false;
}

static tsr_status emit_level(struct tsr_plan *plan, size_t level, size_t *items)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->space.n; i++) {
        if (level_of(&plan->space, i) != level)
            continue;
        if (!plan->options.exhaustive && is_too_large(plan, i)) {
            plan->points[i].state = TSR_PLAN_TOO_LARGE;
            plan->counts.too_large++;
        } else {
            items[n++] = i;
        }
    }
    return run_batch(plan, items, n, false);
}

static tsr_status emit_all(struct tsr_plan *plan, size_t *items)
{
    size_t levels = 1;
    double start = now();
    for (size_t k = 0; k < plan->space.n_axes; k++)
        levels += plan->space.axes[k].is_size ? plan->space.axes[k].n - 1 : 0;
    for (size_t level = 0; level < levels; level++)
        TSR_TRY(emit_level(plan, level, items));
    plan->counts.emit_s = now() - start;
    return TSR_OK;
}

/* A value that every combination refuses is a mistake, and the first refusal says why. */
static tsr_status check_values(struct tsr_plan *plan)
{
    struct tsr_plan_space *space = &plan->space;
    for (size_t i = 0; i < space->n; i++)
        for (size_t k = 0; k < space->n_axes && plan->points[i].state != TSR_PLAN_IMPOSSIBLE; k++)
            space->axes[k].values[tsr_plan_pick(space, i, k)].was_possible = true;
    for (size_t i = 0; i < space->n; i++) {
        const struct tsr_plan_point *point = &plan->points[i];
        for (size_t k = 0; k < space->n_axes; k++) {
            const struct tsr_plan_axis *axis = &space->axes[k];
            const struct tsr_plan_value *value = &axis->values[tsr_plan_pick(space, i, k)];
            if (value->was_possible)
                continue;
            if (!axis->at)
                return tsr_fail(TSR_ECONFIG, "%s", point->m.row.failure);
            return tsr_node_error(axis->at, "plan.space.%s: %s is refused in every combination: %s",
                                  axis->key, value->text, point->m.row.failure);
        }
    }
    return TSR_OK;
}

/* ---- equal programs ---------------------------------------------------------------------- */

/* What an order needs to know of a configuration, for qsort(). */
struct place {
    double time; /* per token, rounded: see rounded() */
    uint64_t need, allocated, key;
    size_t changes, index;
    bool is_new; /* nothing before it has the same figures */
};

/* Six digits: what prefetching changes in the twelfth digit is no difference. Rounding is
 * monotonic, so a bound stays a bound. */
static double rounded(double seconds)
{
    char text[32];
    snprintf(text, sizeof text, "%.6e", seconds);
    return strtod(text, NULL);
}

static struct place place_of(const struct tsr_plan_point *point, size_t i)
{
    return (struct place){.time = rounded(tsr_plan_time(&point->m.row)),
                          .need = point->need,
                          .allocated = tsr_plan_allocated(&point->m.row),
                          .changes = point->changes,
                          .index = i};
}

static bool same_figures(const struct place *a, const struct place *b)
{
    return !(a->time < b->time || a->time > b->time) && a->need == b->need &&
           a->allocated == b->allocated;
}

static int by_key(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->changes != y->changes)
        return x->changes < y->changes ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static int by_time(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->time < y->time || x->time > y->time)
        return x->time < y->time ? -1 : 1;
    if (x->need != y->need)
        return x->need < y->need ? -1 : 1;
    if (x->allocated != y->allocated)
        return x->allocated < y->allocated ? -1 : 1;
    if (x->changes != y->changes)
        return x->changes < y->changes ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Of those with equal keys the one with the fewest changes stands for all. */
static void find_equals(struct tsr_plan *plan, struct place *places)
{
    const char *sets[TSR_PLAN_MAX_AXES];
    size_t n = 0;
    for (size_t i = 0; i < plan->space.n; i++) {
        struct tsr_plan_point *point = &plan->points[i];
        point->changes = tsr_plan_sets(&plan->space, i, sets);
        point->like = i;
        if (emitted(point))
            places[n++] =
                (struct place){.key = point->m.key, .changes = point->changes, .index = i};
    }
    if (n)
        qsort(places, n, sizeof *places, by_key);
    for (size_t i = 0; i < n; i++) {
        struct tsr_plan_point *point = &plan->points[places[i].index];
        bool first = i == 0 || places[i].key != places[i - 1].key;
        point->like = first ? places[i].index : plan->points[places[i - 1].index].like;
        plan->points[point->like].n_like++;
        plan->counts.distinct += first;
        plan->counts.fitting += first && point->fits;
    }
}

/* ---- time -------------------------------------------------------------------------------- */

/* The least time per token that a configuration can have. */
static double least_time(const struct tsr_plan_point *point)
{
    const struct tsr_row *row = &point->m.row;
    double seconds = point->m.bound_s * ROUNDING;
    return row->tokens_per_rank ? rounded(seconds / (double)row->tokens_per_rank) : 0;
}

/* No place among the fastest, none on the front? `done` holds what was simulated. */
static bool is_beaten(const struct tsr_plan *plan, size_t i, const struct place *done, size_t n)
{
    const struct tsr_plan_point *point = &plan->points[i];
    double least = least_time(point);
    size_t faster = 0;
    bool behind = false;
    for (size_t k = 0; k < n; k++) {
        faster += done[k].is_new && done[k].time < least;
        behind = behind || (done[k].time < least && done[k].need <= point->need) ||
                 (done[k].time <= least && done[k].need < point->need);
    }
    return behind && faster >= plan->options.top;
}

static void add_place(struct place *done, size_t *n, struct place place)
{
    place.is_new = true;
    for (size_t k = 0; k < *n && place.is_new; k++)
        place.is_new = !same_figures(&done[k], &place);
    done[(*n)++] = place;
}

/* Candidates in the order of their bounds; each round takes those that may still win. */
static tsr_status simulate_promising(struct tsr_plan *plan, struct place *open, size_t n,
                                     struct place *done, size_t *n_done)
{
    size_t next = 0;
    qsort(open, n, sizeof *open, by_time);
    while (next < n) {
        size_t items[ROUND], taken = 0;
        for (; next < n && taken < ROUND; next++)
            if (!is_beaten(plan, open[next].index, done, *n_done))
                items[taken++] = open[next].index;
        TSR_TRY(run_batch(plan, items, taken, true));
        for (size_t k = 0; k < taken; k++)
            add_place(done, n_done, place_of(&plan->points[items[k]], items[k]));
    }
    return TSR_OK;
}

static tsr_status search_time(struct tsr_plan *plan, struct place *done, size_t *n_done)
{
    struct place *open = calloc(plan->space.n, sizeof *open);
    size_t n = 0;
    if (!open)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < plan->space.n; i++) {
        const struct tsr_plan_point *point = &plan->points[i];
        if (point->state == TSR_PLAN_EMITTED && point->fits && point->like == i)
            open[n++] = (struct place){.time = least_time(point), .need = point->need, .index = i};
    }
    tsr_status status = n ? simulate_promising(plan, open, n, done, n_done) : TSR_OK;
    free(open);
    return status;
}

/* Brute force also proves what the search relies on: equal keys take equal time. */
static tsr_status check_equals(const struct tsr_plan *plan)
{
    for (size_t i = 0; i < plan->space.n; i++) {
        const struct tsr_plan_point *a = &plan->points[i], *b = &plan->points[a->like];
        if (a->state != TSR_PLAN_SIMULATED)
            continue;
        double x = a->m.row.steady.step_s, y = b->m.row.steady.step_s;
        if (x < y || x > y)
            return tsr_fail(TSR_EDEFECT,
                            "defect: configurations %zu and %zu have the same programs, but take "
                            "%.17g and %.17g s",
                            i, a->like, x, y);
        if (x < a->m.bound_s * ROUNDING)
            return tsr_fail(TSR_EDEFECT,
                            "defect: configuration %zu takes %.17g s, less than its bound %.17g s",
                            i, x, a->m.bound_s);
    }
    return TSR_OK;
}

static tsr_status simulate_everything(struct tsr_plan *plan, size_t *items, struct place *done,
                                      size_t *n_done)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state == TSR_PLAN_EMITTED)
            items[n++] = i;
    TSR_TRY(run_batch(plan, items, n, true));
    for (size_t k = 0; k < n; k++) {
        const struct tsr_plan_point *point = &plan->points[items[k]];
        if (point->fits && point->like == items[k])
            done[(*n_done)++] = place_of(point, items[k]);
    }
    return check_equals(plan);
}

/* ---- what is shown ----------------------------------------------------------------------- */

/* The fastest first: who needs less than all before is on the front. Of equal figures the first,
 * which changes least, is shown. */
static tsr_status choose(struct tsr_plan *plan, struct place *done, size_t n)
{
    uint64_t least = UINT64_MAX;
    size_t different = 0;
    const struct place *first = NULL;
    if (n)
        qsort(done, n, sizeof *done, by_time);
    plan->shown = calloc(n + 1, sizeof *plan->shown);
    if (!plan->shown)
        return tsr_no_memory(NULL);
    for (size_t k = 0; k < n; k++) {
        struct tsr_plan_point *point = &plan->points[done[k].index];
        if (first && same_figures(first, &done[k])) {
            plan->points[first->index].n_like += point->n_like;
            continue;
        }
        first = &done[k];
        point->front = done[k].need < least;
        least = point->front ? done[k].need : least;
        if (different++ < plan->options.top || point->front)
            plan->shown[plan->n_shown++] = done[k].index;
    }
    return TSR_OK;
}

static tsr_status search(struct tsr_plan *plan, size_t *items, struct place *places)
{
    size_t n_done = 0;
    TSR_TRY(emit_all(plan, items));
    TSR_TRY(check_values(plan));
    find_equals(plan, places);
    double start = now();
    TSR_TRY(plan->options.exhaustive ? simulate_everything(plan, items, places, &n_done)
                                     : search_time(plan, places, &n_done));
    plan->counts.sim_s = now() - start;
    return choose(plan, places, n_done);
}

tsr_status tsr_plan_search(struct tsr_plan *plan)
{
    TSR_TRY(tsr_plan_space_read(&plan->experiment, &plan->job, &plan->space));
    size_t n = plan->space.n;
    plan->points = calloc(n, sizeof *plan->points);
    size_t *items = calloc(n, sizeof *items);
    struct place *places = calloc(n, sizeof *places);
    tsr_status status =
        plan->points && items && places ? search(plan, items, places) : tsr_no_memory(NULL);
    free(items);
    free(places);
    return status;
}

tsr_status tsr_plan_nothing_fits(const struct tsr_plan *plan)
{
    const struct tsr_plan_point *least = NULL;
    char words[512] = "";
    for (size_t i = 0; i < plan->space.n; i++) {
        const struct tsr_plan_point *point = &plan->points[i];
        if (!emitted(point) || (least && point->need >= least->need))
            continue;
        least = point;
        tsr_plan_words(&plan->space, point->like, words, sizeof words);
    }
    double budget = (double)plan->budget / 1073741824.0;
    if (!least)
        return tsr_fail(TSR_EOOM,
                        "plan: nothing fits into %.2f GiB: the allocator ran out of memory "
                        "in all of %zu configurations (allocator.limit)",
                        budget, plan->counts.emitted);
    return tsr_fail(TSR_EOOM,
                    "plan: nothing fits into %.2f GiB: the smallest that was found needs "
                    "%.2f GiB, strategy %s, %s",
                    budget, (double)least->need / 1073741824.0, plan->base->name, words);
}
