/* plan_search.c: which configurations are emitted, which are simulated, which are shown (plan.h).
 *
 * Why leaving out loses nothing (README.md has the arguments):
 *  - A configuration is not emitted when it certainly needs more than the budget: its activations
 * and what parameters and optimizer keep, or the tensors of a smaller batch or seq, exceed it.
 *  - A configuration is not emitted, and one that was emitted is not simulated, when its bound puts
 * it behind the N fastest, and behind a simulated one that needs no more memory.
 *  - Of configurations with equal programs and memory one is simulated.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_fits.h"

enum {
    ROUND = 8
}; /* simulated between two looks at what can be left out; not the jobs: the
      result must not depend on them */

static bool stop(void)
{
    return tsr_interrupt_asked() != 0;
}

/* Sizes come from small to large: level 0 has the smallest batch and seq. */
static size_t level_of(const struct tsr_plan_space *space, size_t i)
{
    size_t level = 0;
    for (size_t k = 0; k < space->n_axes; k++)
        if (space->axes[k].is_size)
            level += space->axes[k].values[tsr_plan_pick(space, i, k)].rank;
    return level;
}

/* ---- what is left out -------------------------------------------------------------------- */

/* The least time per token that a configuration can have. */
static double least_time(const struct tsr_plan *plan, size_t i)
{
    double tokens = tsr_plan_tokens(plan, i);
    return tokens > 0 ? tsr_plan_round(tsr_plan_least_step(plan, i) / tokens) : 0;
}

/* What was simulated and fits. */
struct results {
    struct tsr_plan_place *items;
    size_t n;
};

/* No place among the fastest, none on the front? What is marked is on no front, and takes no place
 * from what is not. */
static bool is_beaten(const struct tsr_plan *plan, size_t i, const struct results *done)
{
    double least = least_time(plan, i);
    uint64_t need = tsr_plan_least_need(plan, i);
    size_t faster = 0;
    bool behind = plan->points[i].is_marked;
    for (size_t k = 0; k < done->n && !(behind && faster >= plan->options.top); k++) {
        const struct tsr_plan_place *other = &done->items[k];
        if (other->is_marked && !plan->points[i].is_marked)
            continue;
        faster += other->is_new && other->time < least;
        behind = behind || (other->time < least && other->need <= need) ||
                 (other->time <= least && other->need < need);
    }
    return behind && faster >= plan->options.top;
}

static size_t value_of_rank(const struct tsr_plan_axis *axis, size_t rank)
{
    size_t i = 0;
    while (i < axis->n && axis->values[i].rank != rank)
        i++;
    return i;
}

/* Is it known of the next smaller size that nothing can make it fit? */
static bool is_smaller_too_large(const struct tsr_plan *plan, size_t i)
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
            (tsr_plan_is_emitted(point) && point->m->row.most_requested > plan->budget))
            return true;
    }
    return false;
}

/* Takes a configuration out of the search if nothing can come of it. */
static bool leave_out(struct tsr_plan *plan, size_t i, const struct results *done)
{
    struct tsr_plan_point *point = &plan->points[i];
    if (tsr_plan_least_need(plan, i) > plan->budget || is_smaller_too_large(plan, i)) {
        point->state = TSR_PLAN_TOO_LARGE;
        plan->counts.too_large++;
    } else if (is_beaten(plan, i, done)) {
        point->state = TSR_PLAN_BEATEN;
        plan->counts.beaten++;
    }
    return point->state != TSR_PLAN_NEW;
}

/* ---- the search -------------------------------------------------------------------------- */

static void add_place(struct results *done, struct tsr_plan_place place)
{
    place.is_new = true;
    for (size_t k = 0; k < done->n && place.is_new; k++)
        place.is_new = !tsr_plan_same_figures(&done->items[k], &place);
    done->items[done->n++] = place;
}

/* Counts what is not ruled out: what the estimate of the time that is left begins with. */
static void count_left(struct tsr_plan *plan, const struct results *done)
{
    struct tsr_plan_left *left = &plan->left;
    left->open = left->waiting = 0;
    for (size_t i = 0; i < plan->space.n; i++) {
        const struct tsr_plan_point *point = &plan->points[i];
        bool is_new = point->state == TSR_PLAN_NEW;
        if (!is_new && !(point->state == TSR_PLAN_EMITTED && point->fits))
            continue;
        if (tsr_plan_least_need(plan, i) > plan->budget || is_beaten(plan, i, done))
            continue;
        left->open += is_new;
        left->waiting += !is_new;
    }
}

/* For each model, or state, of which nothing is known one configuration that it is learned from:
 * the one that changes least. `by`: where it will be known; best[by]: 1 + the configuration. */
static size_t choose_unknown(const struct tsr_plan *plan, size_t level,
                             size_t (*unknown)(const struct tsr_plan *, size_t), size_t *best,
                             size_t *items)
{
    size_t n = 0;
    memset(best, 0, plan->space.n * sizeof *best);
    for (size_t i = 0; i < plan->space.n; i++) {
        if (plan->points[i].state != TSR_PLAN_NEW || level_of(&plan->space, i) != level)
            continue;
        size_t by = unknown(plan, i);
        if (by != SIZE_MAX &&
            (!best[by] || plan->points[best[by] - 1].changes > plan->points[i].changes))
            best[by] = i + 1;
    }
    for (size_t i = 0; i < plan->space.n; i++)
        if (best[i])
            items[n++] = best[i] - 1;
    return n;
}

/* The figures of an equal configuration that was simulated. */
static bool take_equal(struct tsr_plan *plan, size_t i, const struct results *done)
{
    for (size_t k = 0; k < done->n; k++) {
        const struct tsr_plan_point *other = &plan->points[done->items[k].index];
        if (other->m->key != plan->points[i].m->key)
            continue;
        plan->points[i].m->row = other->m->row;
        plan->points[i].state = TSR_PLAN_SIMULATED;
        return true;
    }
    return false;
}

/* What may still win, by its bound: those with the least first. */
static size_t choose_promising(struct tsr_plan *plan, const struct results *done, size_t *items)
{
    struct tsr_plan_place best[ROUND];
    size_t n = 0;
    plan->left.open = plan->left.waiting = 0;
    for (size_t i = 0; i < plan->space.n; i++) {
        struct tsr_plan_point *point = &plan->points[i];
        bool is_new = point->state == TSR_PLAN_NEW;
        if (!is_new && !(point->state == TSR_PLAN_EMITTED && point->fits))
            continue;
        if (is_new ? leave_out(plan, i, done) : is_beaten(plan, i, done))
            continue;
        plan->left.open += is_new;
        plan->left.waiting += !is_new;
        struct tsr_plan_place place = {.time = least_time(plan, i),
                                       .need = tsr_plan_least_need(plan, i),
                                       .changes = point->changes,
                                       .index = i};
        if (n == ROUND && tsr_plan_compare_places(&place, &best[ROUND - 1]) >= 0)
            continue;
        size_t at = n < ROUND ? n++ : ROUND - 1;
        for (; at > 0 && tsr_plan_compare_places(&place, &best[at - 1]) < 0; at--)
            best[at] = best[at - 1];
        best[at] = place;
    }
    for (size_t k = 0; k < n; k++)
        items[k] = best[k].index;
    return n;
}

/* One round: what is new is emitted, what was emitted is simulated, once for all with equal
 * programs. */
static tsr_status go_on(struct tsr_plan *plan, const size_t *items, size_t n, struct results *done)
{
    size_t fresh[ROUND], timed[ROUND], n_fresh = 0, n_timed = 0;
    for (size_t k = 0; k < n; k++) {
        size_t i = items[k];
        bool is_new = plan->points[i].state == TSR_PLAN_NEW, waits = false;
        for (size_t j = 0; j < n_timed && !is_new; j++)
            waits = waits || plan->points[timed[j]].m->key == plan->points[i].m->key;
        if (is_new)
            fresh[n_fresh++] = i;
        else if (take_equal(plan, i, done))
            add_place(done, tsr_plan_place_of(plan, i));
        else if (!waits)
            timed[n_timed++] = i;
    }
    double start = tsr_plan_now();
    TSR_TRY(tsr_plan_run(plan, fresh, n_fresh, false));
    plan->counts.emit_s += tsr_plan_now() - start;
    start = tsr_plan_now();
    TSR_TRY(tsr_plan_run(plan, timed, n_timed, true));
    plan->counts.sim_s += tsr_plan_now() - start;
    for (size_t k = 0; k < n_timed; k++)
        if (plan->points[timed[k]].state == TSR_PLAN_SIMULATED)
            add_place(done, tsr_plan_place_of(plan, timed[k]));
    return TSR_OK;
}

/* The two most promising of those that were emitted: an early interruption has something to show.
 */
static size_t choose_seen(const struct tsr_plan *plan, const struct results *done, size_t *items)
{
    struct tsr_plan_place best[2];
    size_t n = 0;
    for (size_t i = 0; i < plan->space.n && !stop(); i++) {
        const struct tsr_plan_point *point = &plan->points[i];
        if (point->state != TSR_PLAN_EMITTED || !point->fits || is_beaten(plan, i, done))
            continue;
        struct tsr_plan_place place = {.time = least_time(plan, i),
                                       .need = point->need,
                                       .changes = point->changes,
                                       .index = i};
        if (n < 2 || tsr_plan_compare_places(&place, &best[1]) < 0)
            best[n < 2 ? n++ : 1] = place;
        if (n == 2 && tsr_plan_compare_places(&best[1], &best[0]) < 0) {
            place = best[0];
            best[0] = best[1];
            best[1] = place;
        }
    }
    for (size_t k = 0; k < n; k++)
        items[k] = best[k].index;
    return n;
}

/* Learns what bounds all configurations, from small sizes to large ones. Who refuses, or runs out
 * of memory, teaches nothing: the next one is asked. */
static tsr_status learn(struct tsr_plan *plan, size_t *best, size_t *items, struct results *done)
{
    size_t levels = 1;
    for (size_t k = 0; k < plan->space.n_axes; k++)
        levels += plan->space.axes[k].is_size ? plan->space.axes[k].n - 1 : 0;
    for (size_t level = 0; level < levels && !stop(); level++) {
        size_t n = 1;
        count_left(plan, done);
        while (n && !stop()) {
            for (size_t i = 0; i < plan->space.n; i++)
                if (plan->points[i].state == TSR_PLAN_NEW && level_of(&plan->space, i) == level)
                    (void)leave_out(plan, i, done);
            n = choose_unknown(plan, level, tsr_plan_unknown_state, best, items);
            if (!n)
                n = choose_unknown(plan, level, tsr_plan_unknown_hooks, best, items);
            if (!n)
                n = choose_unknown(plan, level, tsr_plan_unknown_model, best, items);
            TSR_TRY(tsr_plan_run(plan, items, n, false));
        }
        n = choose_seen(plan, done, items);
        TSR_TRY(go_on(plan, items, n, done));
    }
    return TSR_OK;
}

static tsr_status search_best(struct tsr_plan *plan, size_t *best, size_t *items,
                              struct results *done)
{
    double start = tsr_plan_now();
    size_t n = 1;
    plan->left.learning = true;
    plan->left.unbounded = plan->job.settings->api != TSR_API_FULLY_SHARD;
    tsr_status status = learn(plan, best, items, done);
    plan->left.learning = false;
    plan->counts.emit_s = tsr_plan_now() - start - plan->counts.sim_s;
    while (status == TSR_OK && n && !stop()) {
        n = choose_promising(plan, done, items);
        if (n)
            status = go_on(plan, items, n, done);
    }
    return status;
}

/* ---- brute force ------------------------------------------------------------------------- */

/* Brute force also proves what the search relies on: equal keys take equal time, and nothing is
 * below a bound. */
static tsr_status check_point(const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_point *a = &plan->points[i], *b = &plan->points[a->like];
    double x = a->m->row.steady.step_s, y = b->m->row.steady.step_s;
    double learned = tsr_plan_learned_step(plan, i), own = tsr_plan_least_step(plan, i);
    uint64_t need = tsr_plan_learned_need(plan, i);
    if (x < y || x > y)
        return tsr_fail(TSR_EDEFECT,
                        "defect: configurations %zu and %zu have the same programs, but take "
                        "%.17g and %.17g s",
                        i, a->like, x, y);
    if (x < own || x < learned)
        return tsr_fail(TSR_EDEFECT,
                        "defect: configuration %zu takes %.17g s, less than its bounds %.17g s and "
                        "%.17g s",
                        i, x, own, learned);
    if (a->need < need)
        return tsr_fail(TSR_EDEFECT,
                        "defect: configuration %zu needs %llu bytes, less than its bound %llu", i,
                        (unsigned long long)a->need, (unsigned long long)need);
    return TSR_OK;
}

static tsr_status try_everything(struct tsr_plan *plan, size_t *items, struct results *done)
{
    size_t n = 0;
    double start = tsr_plan_now();
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state == TSR_PLAN_NEW)
            items[n++] = i;
    plan->left = (struct tsr_plan_left){.open = n, .exhaustive = true};
    TSR_TRY(tsr_plan_run(plan, items, n, false));
    plan->counts.emit_s = tsr_plan_now() - start;
    start = tsr_plan_now();
    n = 0;
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state == TSR_PLAN_EMITTED)
            items[n++] = i;
    plan->left = (struct tsr_plan_left){.waiting = n, .exhaustive = true};
    TSR_TRY(tsr_plan_run(plan, items, n, true));
    plan->counts.sim_s = tsr_plan_now() - start;
    for (size_t k = 0; k < n; k++)
        if (plan->points[items[k]].state == TSR_PLAN_SIMULATED && plan->points[items[k]].fits)
            add_place(done, tsr_plan_place_of(plan, items[k]));
    return TSR_OK;
}

static tsr_status check_everything(const struct tsr_plan *plan)
{
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state == TSR_PLAN_SIMULATED)
            TSR_TRY(check_point(plan, i));
    return TSR_OK;
}

/* ---- the whole search ------------------------------------------------------------------ */

/* What the default space leaves out, and how many settings each one changes. */
static void begin(struct tsr_plan *plan)
{
    const char *sets[TSR_PLAN_MAX_AXES];
    plan->own = SIZE_MAX;
    for (size_t i = 0; i < plan->space.n; i++) {
        plan->points[i].changes = tsr_plan_sets(&plan->space, i, sets);
        plan->points[i].like = i;
        plan->points[i].is_marked = tsr_plan_needs(&plan->space, i) & ~plan->space.allowed;
        if (tsr_plan_repeats(&plan->space, i)) {
            plan->points[i].state = TSR_PLAN_REPEATS;
            plan->counts.repeats++;
            continue;
        }
        if (!plan->points[i].changes)
            plan->own = i;
        if (!tsr_plan_excludes(plan, i))
            continue;
        plan->points[i].state = TSR_PLAN_IMPOSSIBLE;
        plan->counts.impossible++;
    }
}

/* The settings of the file are what the winner is compared with: they are simulated if they fit. */
static tsr_status look_at_own(struct tsr_plan *plan)
{
    struct tsr_plan_point *own = plan->own < plan->space.n ? &plan->points[plan->own] : NULL;
    if (!own || stop())
        return TSR_OK;
    if (own->state == TSR_PLAN_BEATEN) {
        plan->counts.beaten--;
        TSR_TRY(tsr_plan_run(plan, &plan->own, 1, false));
    }
    return own->state == TSR_PLAN_EMITTED && own->fits ? tsr_plan_run(plan, &plan->own, 1, true)
                                                       : TSR_OK;
}

static tsr_status search(struct tsr_plan *plan, size_t *best, size_t *items, struct results *done)
{
    begin(plan);
    tsr_interrupt_ask(true);
    tsr_status status = plan->options.exhaustive ? try_everything(plan, items, done)
                                                 : search_best(plan, best, items, done);
    if (status == TSR_OK)
        status = look_at_own(plan);
    if (status == TSR_OK)
        status = tsr_plan_check_values(plan);
    /* Who left out everything has seen nothing: the smallest that was found is to be named. */
    for (size_t i = 0; i < plan->space.n && status == TSR_OK && !plan->counts.emitted && !stop();
         i++)
        if (plan->points[i].state == TSR_PLAN_TOO_LARGE && level_of(&plan->space, i) == 0) {
            plan->counts.too_large--;
            status = tsr_plan_run(plan, &i, 1, false);
        }
    plan->counts.interrupted = tsr_interrupt_asked();
    tsr_interrupt_ask(false);
    tsr_tell_progress(1, 1, NULL);
    for (size_t i = 0; i < plan->space.n; i++)
        plan->counts.left += plan->points[i].state == TSR_PLAN_NEW;
    if (status == TSR_OK)
        status = tsr_plan_keep(plan);
    return status;
}

tsr_status tsr_plan_search(struct tsr_plan *plan)
{
    TSR_TRY(tsr_plan_space_read(&plan->experiment, &plan->job, &plan->space));
    size_t n = plan->space.n;
    struct results done = {.items = calloc(n, sizeof *done.items)};
    size_t *best = calloc(n, sizeof *best), *items = calloc(n, sizeof *items);
    struct tsr_plan_place *places = calloc(n, sizeof *places);
    plan->points = calloc(n, sizeof *plan->points);
    tsr_status status = plan->points && best && items && places && done.items
                            ? tsr_plan_bounds_create(plan)
                            : tsr_no_memory(NULL);
    if (status == TSR_OK)
        status = tsr_plan_resume(plan);
    if (status == TSR_OK)
        status = search(plan, best, items, &done);
    if (status == TSR_OK) {
        tsr_plan_find_equals(plan, places);
        status = plan->options.exhaustive ? check_everything(plan) : TSR_OK;
    }
    if (status == TSR_OK)
        status = tsr_plan_choose(plan, done.items, done.n);
    free(best);
    free(items);
    free(places);
    free(done.items);
    return status;
}

tsr_status tsr_plan_nothing_fits(const struct tsr_plan *plan)
{
    const struct tsr_plan_point *least = NULL;
    char words[512] = "";
    for (size_t i = 0; i < plan->space.n; i++) {
        const struct tsr_plan_point *point = &plan->points[i];
        if (!tsr_plan_is_emitted(point) || (least && point->need >= least->need))
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
    if (tsr_plan_lacks_host(&least->m->row)) {
        char host[160];
        tsr__host_words(&least->m->row.node_host, host, sizeof host);
        return tsr_fail(TSR_EOOM,
                        "plan: nothing fits: of the smallest that was found, strategy %s, %s, the "
                        "ranks of a node need more memory than its host has: %s",
                        plan->base->name, words, host);
    }
    return tsr_fail(TSR_EOOM,
                    "plan: nothing fits into %.2f GiB: the smallest that was found needs "
                    "%.2f GiB, strategy %s, %s",
                    budget, (double)least->need / 1073741824.0, plan->base->name, words);
}
