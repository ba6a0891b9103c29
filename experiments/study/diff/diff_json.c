/* diff_json.c: what differs between two runs, as a JSON object. */
#include <jansson.h>

#include "experiments/study/diff/diff.h"

static json_int_t minus(const uint64_t bytes[2])
{
    return (json_int_t)(bytes[1] - bytes[0]);
}

static json_t *place_json(const struct tsr_diff_run *run, size_t i)
{
    const struct tsr_diff_point *p = &run->points[i];
    return json_pack("{s:s, s:i, s:s, s:s, s:s, s:I, s:I}", "phase", i ? p->phase : "start",
                     "micro_batch", p->micro, "module", p->module, "hook", p->hook, "operation",
                     p->operation, "allocated_bytes", (json_int_t)p->total, "reserved_bytes",
                     (json_int_t)p->reserved);
}

static json_t *run_json(const struct tsr_diff *diff, int side)
{
    const struct tsr_diff_run *run = &diff->runs[side];
    return json_pack("{s:s, s:s, s:b, s:I, s:o, s:I}", "run", run->label, "kind", run->kind,
                     "has_owners", (int)run->has_owners, "changes", (json_int_t)(run->n - 1),
                     "peak", place_json(run, run->peak), "peak_reserved_bytes",
                     (json_int_t)diff->peak_reserved[side]);
}

static json_t *categories_json(const struct tsr_diff_category *categories, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:I}", "category", categories[i].category,
                                        "a_bytes", (json_int_t)categories[i].bytes[0], "b_bytes",
                                        (json_int_t)categories[i].bytes[1], "difference_bytes",
                                        minus(categories[i].bytes)));
    return list;
}

static json_t *change_json(const struct tsr_diff_run *run, const struct tsr_diff_change *change)
{
    if (!change->there)
        return json_null();
    json_t *out = place_json(run, change->point);
    json_object_set_new(out, "category", json_string(change->category));
    json_object_set_new(out, "change_bytes", json_integer(change->bytes));
    return out;
}

static json_t *part_json(const struct tsr_diff *diff)
{
    if (!diff->parts)
        return json_null();
    return json_pack("{s:I, s:o, s:o}", "change", (json_int_t)diff->part_at, "a",
                     change_json(&diff->runs[0], &diff->part[0]), "b",
                     change_json(&diff->runs[1], &diff->part[1]));
}

static json_t *gaps_json(const struct tsr_diff *diff)
{
    json_t *list = json_array();
    for (size_t i = 0; i < diff->n_gaps; i++) {
        const struct tsr_diff_gap *gap = &diff->gaps[i];
        json_array_append_new(list, json_pack("{s:s, s:i, s:s, s:I, s:I}", "phase", gap->phase,
                                              "micro_batch", gap->micro, "module", gap->module,
                                              "places", (json_int_t)gap->n, "change_bytes",
                                              (json_int_t)gap->change));
    }
    return list;
}

static json_t *owners_json(const struct tsr_diff *diff)
{
    if (!diff->has_owners)
        return json_null();
    json_t *list = json_array();
    for (size_t i = 0; i < diff->n_owners; i++) {
        const struct tsr_diff_owned *o = &diff->owners[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:I}", "category", o->category,
                                              "owner", o->owner, "a_bytes", (json_int_t)o->bytes[0],
                                              "b_bytes", (json_int_t)o->bytes[1],
                                              "difference_bytes", minus(o->bytes)));
    }
    return list;
}

static json_t *maybe(bool known, json_int_t value)
{
    return known ? json_integer(value) : json_null();
}

static json_t *phases_json(const struct tsr_diff *diff)
{
    json_t *list = json_array();
    for (size_t i = 0; i < diff->n_phases; i++) {
        const struct tsr_diff_phase *p = &diff->phases[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o}", "phase", p->phase, "micro_batch",
                      p->micro, "a_allocated_bytes", maybe(p->in[0], (json_int_t)p->allocated[0]),
                      "b_allocated_bytes", maybe(p->in[1], (json_int_t)p->allocated[1]),
                      "a_reserved_bytes", maybe(p->in[0], (json_int_t)p->reserved[0]),
                      "b_reserved_bytes", maybe(p->in[1], (json_int_t)p->reserved[1]),
                      "difference_bytes", maybe(p->in[0] && p->in[1], minus(p->allocated))));
    }
    return list;
}

/* ---- exposed communication ------------------------------------------------------------------- */

static json_t *reason_json(const double why[TSR_N_EXPOSURES])
{
    enum tsr_exposure main = tsr_overlap_main_reason(why);
    return main == TSR_N_EXPOSURES ? json_null() : json_string(tsr_exposure_key(main));
}

static json_t *exposure_json(const struct tsr_diff_exposure *p)
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

static json_t *overlap_json(const struct tsr_diff *diff)
{
    const struct tsr_overlap_table *a = &diff->runs[0].overlap, *b = &diff->runs[1].overlap;
    if (!diff->has_exposures)
        return json_null();
    json_t *changed = json_array();
    for (size_t i = 0; i < diff->n_exposures; i++)
        json_array_append_new(changed, exposure_json(&diff->exposures[i]));
    return json_pack("{s:o, s:o, s:f, s:o}", "a", side_json(a), "b", side_json(b),
                     "exposed_difference_s", b->exposed_s - a->exposed_s, "changed", changed);
}

/* ---- all of it ------------------------------------------------------------------------------- */

json_t *tsr_diff_json(const struct tsr_diff *diff)
{
    const struct tsr_diff_run *a = &diff->runs[0], *b = &diff->runs[1];
    const uint64_t start[2] = {a->points[0].total, b->points[0].total};
    const uint64_t peak[2] = {a->points[a->peak].total, b->points[b->peak].total};
    json_t *out = json_object();
    if (!out)
        return NULL;
    json_object_set_new(out, "total",
                        json_pack("{s:I, s:I}", "allocated_difference_bytes", minus(peak),
                                  "reserved_difference_bytes", minus(diff->peak_reserved)));
    json_object_set_new(out, "a", run_json(diff, 0));
    json_object_set_new(out, "b", run_json(diff, 1));
    json_object_set_new(out, "start",
                        json_pack("{s:I, s:I, s:I, s:o}", "a_bytes", (json_int_t)start[0],
                                  "b_bytes", (json_int_t)start[1], "difference_bytes", minus(start),
                                  "categories", categories_json(diff->start, diff->n_start)));
    json_object_set_new(out, "part_first", part_json(diff));
    json_object_set_new(out, "categories", categories_json(diff->peak, diff->n_peak));
    json_object_set_new(out, "owners", owners_json(diff));
    json_object_set_new(out, "gap", gaps_json(diff));
    json_object_set_new(out, "phases", phases_json(diff));
    json_object_set_new(out, "overlap", overlap_json(diff));
    return out;
}
