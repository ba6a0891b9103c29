/* diff_overlap.c: collectives whose exposure differs between two runs. Differences are b minus a.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/diff/diff_parts.h"
#include "experiments/study/job/owner.h"

/* Exposed seconds that differ by less are the same: a nanosecond. */
static const double LEAST_S = 1e-9;

/* The collectives of one kind and one pattern of names: "AG layers.*"; sums.name is set at the end.
 */
struct place {
    char name[160];
    struct tsr_diff_exposure sums;
};

struct places {
    struct place *items;
    size_t n, cap;
};

static struct place *find_place(struct places *places, const struct tsr_overlap_row *row)
{
    struct place place = {.sums.kind = row->kind};
    tsr_owner_pattern(row->name, place.name, sizeof place.name);
    for (size_t i = 0; i < places->n; i++)
        if (places->items[i].sums.kind == place.sums.kind &&
            !strcmp(places->items[i].name, place.name))
            return &places->items[i];
    return TSR_PUSH(places->items, places->n, places->cap, place) ? &places->items[places->n - 1]
                                                                  : NULL;
}

static tsr_status collect(const struct tsr_overlap_table *table, int side, struct places *places)
{
    for (size_t i = 0; i < table->n; i++) {
        const struct tsr_overlap_row *row = &table->rows[i];
        struct place *place = find_place(places, row);
        if (!place)
            return tsr_no_memory("collectives of two runs");
        place->sums.n[side]++;
        place->sums.exposed[side] += row->exposed;
        for (int k = 0; k < TSR_N_EXPOSURES; k++)
            place->sums.why[side][k] += row->why[k];
    }
    return TSR_OK;
}

static double change_of(const struct place *p)
{
    return fabs(p->sums.exposed[1] - p->sums.exposed[0]);
}

static int by_change(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    double p = change_of(x), q = change_of(y);
    return p != q ? (p < q) - (p > q) : strcmp(x->name, y->name);
}

static tsr_status keep(const struct places *places, struct tsr_diff *diff)
{
    diff->exposures = tsr_arena_alloc(&diff->arena, (places->n + 1) * sizeof *diff->exposures);
    if (!diff->exposures)
        return tsr_no_memory("the report");
    for (size_t i = 0; i < places->n; i++) {
        const struct place *place = &places->items[i];
        struct tsr_diff_exposure *to = &diff->exposures[diff->n_exposures];
        if (change_of(place) < LEAST_S)
            continue;
        *to = place->sums;
        to->name = tsr_arena_strdup(&diff->arena, place->name);
        if (!to->name)
            return tsr_no_memory("the report");
        diff->n_exposures++;
    }
    diff->has_exposures = true;
    return TSR_OK;
}

tsr_status tsr_diff_exposures(struct tsr_diff *diff)
{
    struct places places = {0};
    tsr_status status = TSR_OK;
    if (!diff->runs[0].has_overlap || !diff->runs[1].has_overlap)
        return TSR_OK;
    for (int side = 0; side < 2; side++)
        TSR_GOTO(done, collect(&diff->runs[side].overlap, side, &places));
    if (places.n)
        qsort(places.items, places.n, sizeof *places.items, by_change);
    TSR_GOTO(done, keep(&places, diff));
done:
    free(places.items);
    return status;
}
