/* plan_order.c: the order of configurations by time and memory, those that are equal, and which are
 * shown (plan.h). */
#include <stdio.h>
#include <stdlib.h>

#include "experiments/study/plan/plan.h"

/* ---- places ---------------------------------------------------------------------------------- */

double tsr_plan_round(double seconds)
{
    char text[32];
    snprintf(text, sizeof text, "%.6e", seconds);
    return strtod(text, NULL);
}

struct tsr_plan_place tsr_plan_place_of(const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_point *point = &plan->points[i];
    return (struct tsr_plan_place){.time = tsr_plan_round(tsr_plan_time(&point->m->row)),
                                   .need = point->need,
                                   .allocated = tsr_plan_allocated(&point->m->row),
                                   .changes = point->changes,
                                   .index = i,
                                   .is_marked = point->is_marked};
}

bool tsr_plan_same_figures(const struct tsr_plan_place *a, const struct tsr_plan_place *b)
{
    return !(a->time < b->time || a->time > b->time) && a->need == b->need &&
           a->allocated == b->allocated;
}

int tsr_plan_compare_places(const void *a, const void *b)
{
    const struct tsr_plan_place *x = a, *y = b;
    if (x->time < y->time || x->time > y->time)
        return x->time < y->time ? -1 : 1;
    if (x->need != y->need)
        return x->need < y->need ? -1 : 1;
    if (x->allocated != y->allocated)
        return x->allocated < y->allocated ? -1 : 1;
    if (x->is_marked != y->is_marked)
        return x->is_marked - y->is_marked;
    if (x->changes != y->changes)
        return x->changes < y->changes ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* ---- equal programs -------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    const struct tsr_plan_place *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->changes != y->changes)
        return x->changes < y->changes ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

void tsr_plan_find_equals(struct tsr_plan *plan, struct tsr_plan_place *places)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->space.n; i++) {
        struct tsr_plan_point *point = &plan->points[i];
        if (tsr_plan_is_emitted(point))
            places[n++] = (struct tsr_plan_place){
                .key = point->m->key, .changes = point->changes, .index = i};
    }
    if (n)
        qsort(places, n, sizeof *places, by_key);
    for (size_t i = 0; i < n; i++) {
        struct tsr_plan_point *point = &plan->points[places[i].index];
        bool first = i == 0 || places[i].key != places[i - 1].key;
        point->like = first ? places[i].index : plan->points[places[i - 1].index].like;
        plan->counts.distinct += first;
        plan->counts.fitting += first && point->fits;
    }
}

/* ---- what is shown --------------------------------------------------------------------------- */

/* Appends to plan->shown the places of one kind that are shown, the fastest first. */
static void show(struct tsr_plan *plan, const struct tsr_plan_place *done, size_t n, bool marked)
{
    uint64_t least = UINT64_MAX;
    size_t before = 0; /* different figures that are faster, of those that count */
    const struct tsr_plan_place *first = NULL;
    for (size_t k = 0; k < n; k++) {
        struct tsr_plan_point *point = &plan->points[done[k].index];
        if (first && tsr_plan_same_figures(first, &done[k]))
            continue;
        first = &done[k];
        if (done[k].is_marked == marked) {
            point->front = !marked && done[k].need < least;
            least = point->front ? done[k].need : least;
            if (before < plan->options.top || point->front)
                plan->shown[plan->n_shown++] = done[k].index;
        }
        before += marked || !done[k].is_marked;
    }
}

tsr_status tsr_plan_choose(struct tsr_plan *plan, struct tsr_plan_place *done, size_t n)
{
    const struct tsr_plan_place *first = NULL;
    if (n)
        qsort(done, n, sizeof *done, tsr_plan_compare_places);
    plan->shown = calloc(n + 1, sizeof *plan->shown);
    if (!plan->shown)
        return tsr_no_memory(NULL);
    for (size_t k = 0; k < n; k++) {
        first = first && tsr_plan_same_figures(first, &done[k]) ? first : &done[k];
        plan->points[first->index].n_like++;
    }
    show(plan, done, n, false);
    plan->n_ranked = plan->n_shown;
    show(plan, done, n, true);
    return TSR_OK;
}
