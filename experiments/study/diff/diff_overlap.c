/* diff_overlap.c: collectives whose exposure differs between two runs. Differences are b minus a.
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/diff/diff_parts.h"
#include "experiments/study/job/owner.h"

/* Exposed seconds that differ by less are the same: a nanosecond. */
static const double LEAST_S = 1e-9;

/* The collectives of one kind and one pattern of names: "AG layers.*". */
struct place {
    uint8_t kind;
    char name[160];
    size_t n[2];
    double exposed[2], why[2][TSR_N_EXPOSURES];
};

struct places {
    struct place *items;
    size_t n, cap;
};

static struct place *find_place(struct places *places, const struct tsr_overlap_row *row)
{
    struct place place = {.kind = row->kind};
    tsr_owner_pattern(row->name, place.name, sizeof place.name);
    for (size_t i = 0; i < places->n; i++)
        if (places->items[i].kind == place.kind && !strcmp(places->items[i].name, place.name))
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
            return tsr_fail(TSR_ENOMEM, "out of memory: collectives of two runs");
        place->n[side]++;
        place->exposed[side] += row->exposed;
        for (int k = 0; k < TSR_N_EXPOSURES; k++)
            place->why[side][k] += row->why[k];
    }
    return TSR_OK;
}

static int by_change(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    double p = fabs(x->exposed[1] - x->exposed[0]), q = fabs(y->exposed[1] - y->exposed[0]);
    return p != q ? (p < q) - (p > q) : strcmp(x->name, y->name);
}

static json_t *reason_json(const double why[TSR_N_EXPOSURES])
{
    enum tsr_exposure main = tsr_overlap_main_reason(why);
    return main == TSR_N_EXPOSURES ? json_null() : json_string(tsr_exposure_key(main));
}

static json_t *place_json(const struct place *p)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:o, s:o}", "kind",
                     tsr_overlap_kind_key(p->kind), "name", p->name, "a_collectives",
                     (json_int_t)p->n[0], "b_collectives", (json_int_t)p->n[1], "a_exposed_s",
                     p->exposed[0], "b_exposed_s", p->exposed[1], "difference_s",
                     p->exposed[1] - p->exposed[0], "a_reason", reason_json(p->why[0]), "b_reason",
                     reason_json(p->why[1]));
}

static json_t *side_json(const struct tsr_overlap_table *table)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "step_s", table->step_s, "compute_s", table->compute_s,
                     "exposed_s", table->exposed_s, "host_bound_s", table->host_bound_s);
}

tsr_status tsr_diff_overlap(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                            json_t **out)
{
    struct places places = {0};
    *out = json_null();
    if (!a->has_overlap || !b->has_overlap)
        return TSR_OK;
    tsr_status status = collect(&a->overlap, 0, &places);
    if (status == TSR_OK)
        status = collect(&b->overlap, 1, &places);
    json_t *changed = json_array();
    if (status == TSR_OK && places.n)
        qsort(places.items, places.n, sizeof *places.items, by_change);
    for (size_t i = 0; i < places.n && status == TSR_OK; i++)
        if (fabs(places.items[i].exposed[1] - places.items[i].exposed[0]) >= LEAST_S)
            json_array_append_new(changed, place_json(&places.items[i]));
    free(places.items);
    *out = json_pack("{s:o, s:o, s:f, s:o}", "a", side_json(&a->overlap), "b",
                     side_json(&b->overlap), "exposed_difference_s",
                     b->overlap.exposed_s - a->overlap.exposed_s, "changed", changed);
    return status == TSR_OK && !*out ? tsr_fail(TSR_ENOMEM, "out of memory: the report") : status;
}
