/* diff_report.c: what differs between two runs, and that as a JSON object. Differences are b
 * minus a. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/diff/diff.h"
#include "experiments/study/diff/diff_parts.h"
#include "experiments/study/job/owner.h"

const char *tsr_diff_category_name(int category)
{
    return category == TSR_DIFF_UNKNOWN ? "Unknown" : tsr_category_name(category);
}

static int64_t minus(uint64_t b, uint64_t a)
{
    return (int64_t)(b - a);
}

static int64_t magnitude(int64_t change)
{
    return change < 0 ? -change : change;
}

static void list_categories(const uint64_t *a, const uint64_t *b,
                            struct tsr_diff_category out[TSR_DIFF_CATEGORIES], size_t *n)
{
    bool done[TSR_DIFF_CATEGORIES] = {false};
    for (;;) {
        int best = -1;
        for (int c = 0; c < TSR_DIFF_CATEGORIES; c++)
            if (!done[c] && (a[c] || b[c]) &&
                (best < 0 || magnitude(minus(b[c], a[c])) > magnitude(minus(b[best], a[best]))))
                best = c;
        if (best < 0)
            return;
        done[best] = true;
        out[(*n)++] = (struct tsr_diff_category){tsr_diff_category_name(best), {a[best], b[best]}};
    }
}

/* ---- where they part ------------------------------------------------------------------------- */

/* What the change before point i did: its bytes by category. */
static bool same_change(const struct tsr_diff_point *a, const struct tsr_diff_point *b)
{
    for (int c = 0; c < TSR_DIFF_CATEGORIES; c++)
        if (a[0].by_category[c] - a[-1].by_category[c] !=
            b[0].by_category[c] - b[-1].by_category[c])
            return false;
    return true;
}

/* The index of the first change that is not the same in both; the shorter length if one of them
 * ends before; SIZE_MAX: none. */
static size_t find_part(const struct tsr_diff_run *a, const struct tsr_diff_run *b)
{
    size_t i = 1;
    while (i < a->n && i < b->n && same_change(&a->points[i], &b->points[i]))
        i++;
    return i == a->n && i == b->n ? SIZE_MAX : i;
}

static struct tsr_diff_change change_of(const struct tsr_diff_run *run, size_t i)
{
    struct tsr_diff_change out = {.there = i < run->n, .point = i, .category = ""};
    if (!out.there)
        return out;
    const struct tsr_diff_point *p = &run->points[i];
    int most = 0;
    int64_t moved[TSR_DIFF_CATEGORIES];
    for (int c = 0; c < TSR_DIFF_CATEGORIES; c++) {
        moved[c] = minus(p->by_category[c], p[-1].by_category[c]);
        if (magnitude(moved[c]) > magnitude(moved[most]))
            most = c;
    }
    out.bytes = moved[most];
    if (out.bytes)
        out.category = tsr_diff_category_name(most);
    return out;
}

static void add_part(struct tsr_diff *diff)
{
    diff->part_at = find_part(&diff->runs[0], &diff->runs[1]);
    diff->parts = diff->part_at != SIZE_MAX;
    for (int side = 0; side < 2 && diff->parts; side++)
        diff->part[side] = change_of(&diff->runs[side], diff->part_at);
}

/* ---- where the gap opens and closes ---------------------------------------------------------- */

struct gap {
    const char *phase;
    uint16_t micro;
    char unit[256];
    size_t n;
    int64_t change;
};

struct gaps {
    struct gap *items;
    size_t n, cap;
};

static tsr_status add_gap(struct gaps *gaps, const struct tsr_diff_point *place, int64_t change)
{
    char unit[256], block[256];
    snprintf(block, sizeof block, "%.*s", (int)tsr_diff_unit_length(place), place->module);
    tsr_owner_pattern(block, unit, sizeof unit);
    for (size_t i = 0; i < gaps->n; i++) {
        struct gap *known = &gaps->items[i];
        if (known->micro == place->micro && !strcmp(known->phase, place->phase) &&
            !strcmp(known->unit, unit)) {
            known->n++;
            known->change += change;
            return TSR_OK;
        }
    }
    struct gap gap = {.phase = place->phase, .micro = place->micro, .n = 1, .change = change};
    memcpy(gap.unit, unit, sizeof gap.unit);
    if (TSR_PUSH(gaps->items, gaps->n, gaps->cap, gap))
        return TSR_OK;
    return tsr_no_memory("differences of two runs");
}

static int by_change(const void *a, const void *b)
{
    int64_t x = magnitude(((const struct gap *)a)->change);
    int64_t y = magnitude(((const struct gap *)b)->change);
    return (x < y) - (x > y);
}

/* The gap is that of the levels at the ends of aligned sections. */
static tsr_status collect_gaps(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                               const struct tsr_diff_alignment *al, struct gaps *gaps)
{
    uint64_t level_a = a->points[0].total, level_b = b->points[0].total;
    int64_t gap = minus(level_b, level_a);
    for (size_t i = 0; i < al->n; i++) {
        const struct tsr_diff_pair *pair = &al->pairs[i];
        const struct tsr_diff_point *place = NULL;
        if (pair->b != SIZE_MAX) {
            const struct tsr_diff_section *s = &al->sections[1][pair->b];
            level_b = b->points[s->end - 1].total;
            place = &b->points[s->first];
        }
        if (pair->a != SIZE_MAX) {
            const struct tsr_diff_section *s = &al->sections[0][pair->a];
            level_a = a->points[s->end - 1].total;
            place = &a->points[s->first];
        }
        int64_t now = minus(level_b, level_a);
        if (now != gap)
            TSR_TRY(add_gap(gaps, place, now - gap));
        gap = now;
    }
    return TSR_OK;
}

static tsr_status keep_gaps(const struct gaps *gaps, struct tsr_diff *diff)
{
    diff->gaps = tsr_arena_alloc(&diff->arena, (gaps->n + 1) * sizeof *diff->gaps);
    if (!diff->gaps)
        return tsr_no_memory("the report");
    for (size_t i = 0; i < gaps->n; i++) {
        const struct gap *gap = &gaps->items[i];
        if (!gap->change)
            continue;
        const char *module = tsr_arena_strdup(&diff->arena, gap->unit);
        if (!module)
            return tsr_no_memory("the report");
        diff->gaps[diff->n_gaps++] =
            (struct tsr_diff_gap){gap->phase, module, gap->micro, gap->n, gap->change};
    }
    return TSR_OK;
}

static tsr_status add_gaps(struct tsr_diff *diff)
{
    struct tsr_diff_alignment alignment;
    struct gaps gaps = {0};
    const struct tsr_diff_run *a = &diff->runs[0], *b = &diff->runs[1];
    if (!diff->parts)
        return TSR_OK; /* where a folder puts a change may differ; the changes do not */
    TSR_TRY(tsr_diff_align(a, b, &alignment));
    tsr_status status = collect_gaps(a, b, &alignment, &gaps);
    tsr_diff_alignment_fini(&alignment);
    if (gaps.n)
        qsort(gaps.items, gaps.n, sizeof *gaps.items, by_change);
    if (status == TSR_OK)
        status = keep_gaps(&gaps, diff);
    free(gaps.items);
    return status;
}

/* ---- owners at the peaks --------------------------------------------------------------------- */

static const struct tsr_diff_owner *find_owner(const struct tsr_diff_run *run,
                                               const struct tsr_diff_owner *owner)
{
    for (size_t i = 0; i < run->n_owners; i++)
        if (run->owners[i].category == owner->category && !strcmp(run->owners[i].name, owner->name))
            return &run->owners[i];
    return NULL;
}

static int by_difference(const void *a, const void *b)
{
    const struct tsr_diff_owned *p = a, *q = b;
    int64_t x = magnitude(minus(p->bytes[1], p->bytes[0]));
    int64_t y = magnitude(minus(q->bytes[1], q->bytes[0]));
    return x != y ? (x < y) - (x > y) : strcmp(p->owner, q->owner);
}

static void put_owner(struct tsr_diff *diff, const struct tsr_diff_owner *owner, uint64_t a,
                      uint64_t b)
{
    diff->owners[diff->n_owners++] =
        (struct tsr_diff_owned){tsr_diff_category_name(owner->category), owner->name, {a, b}};
}

static tsr_status add_owners(struct tsr_diff *diff)
{
    const struct tsr_diff_run *a = &diff->runs[0], *b = &diff->runs[1];
    diff->has_owners = a->has_owners && b->has_owners;
    if (!diff->has_owners)
        return TSR_OK;
    diff->owners =
        tsr_arena_alloc(&diff->arena, (a->n_owners + b->n_owners + 1) * sizeof *diff->owners);
    if (!diff->owners)
        return tsr_no_memory("owners");
    for (size_t i = 0; i < a->n_owners; i++) {
        const struct tsr_diff_owner *other = find_owner(b, &a->owners[i]);
        put_owner(diff, &a->owners[i], a->owners[i].bytes, other ? other->bytes : 0);
    }
    for (size_t i = 0; i < b->n_owners; i++)
        if (!find_owner(a, &b->owners[i]))
            put_owner(diff, &b->owners[i], 0, b->owners[i].bytes);
    qsort(diff->owners, diff->n_owners, sizeof *diff->owners, by_difference);
    return TSR_OK;
}

/* ---- phases ---------------------------------------------------------------------------------- */

struct phases {
    struct tsr_diff_phase *items;
    size_t n, cap;
};

static struct tsr_diff_phase *find_phase(struct phases *phases, const struct tsr_diff_point *point)
{
    for (size_t i = 0; i < phases->n; i++)
        if (phases->items[i].micro == point->micro && !strcmp(phases->items[i].phase, point->phase))
            return &phases->items[i];
    struct tsr_diff_phase phase = {.phase = point->phase, .micro = point->micro};
    return TSR_PUSH(phases->items, phases->n, phases->cap, phase) ? &phases->items[phases->n - 1]
                                                                  : NULL;
}

/* The level at the start of a phase counts, as in PyTorch's statistics. */
static tsr_status add_phases(const struct tsr_diff_run *run, int side, struct phases *phases)
{
    for (size_t i = 1; i < run->n; i++) {
        const struct tsr_diff_point *p = &run->points[i], *before = p - 1;
        struct tsr_diff_phase *phase = find_phase(phases, p);
        if (!phase)
            return tsr_no_memory("phases");
        bool begins = i == 1 || p->micro != before->micro || strcmp(p->phase, before->phase) != 0;
        uint64_t level = begins ? tsr_max_u64(p->total, before->total) : p->total;
        phase->in[side] = true;
        phase->allocated[side] = tsr_max_u64(phase->allocated[side], level);
        phase->reserved[side] = tsr_max_u64(phase->reserved[side], p->reserved);
    }
    return TSR_OK;
}

static tsr_status keep_phases(struct tsr_diff *diff)
{
    struct phases phases = {0};
    tsr_status status = TSR_OK;
    for (int side = 0; side < 2; side++)
        TSR_GOTO(done, add_phases(&diff->runs[side], side, &phases));
    diff->phases = tsr_arena_alloc(&diff->arena, (phases.n + 1) * sizeof *diff->phases);
    if (!diff->phases)
        TSR_GOTO(done, tsr_no_memory("phases"));
    diff->n_phases = phases.n;
    if (phases.n)
        memcpy(diff->phases, phases.items, phases.n * sizeof *phases.items);
done:
    free(phases.items);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static uint64_t highest_reserved(const struct tsr_diff_run *run)
{
    uint64_t reserved = 0;
    for (size_t i = 0; i < run->n; i++)
        reserved = tsr_max_u64(reserved, run->points[i].reserved);
    return reserved;
}

tsr_status tsr_diff_runs(struct tsr_diff *diff)
{
    const struct tsr_diff_run *a = &diff->runs[0], *b = &diff->runs[1];
    tsr_arena_init(&diff->arena);
    for (int side = 0; side < 2; side++)
        diff->peak_reserved[side] = highest_reserved(&diff->runs[side]);
    list_categories(a->points[0].by_category, b->points[0].by_category, diff->start,
                    &diff->n_start);
    list_categories(a->points[a->peak].by_category, b->points[b->peak].by_category, diff->peak,
                    &diff->n_peak);
    add_part(diff);
    TSR_TRY(add_owners(diff));
    TSR_TRY(add_gaps(diff));
    TSR_TRY(keep_phases(diff));
    return tsr_diff_exposures(diff);
}

void tsr_diff_fini(struct tsr_diff *diff)
{
    for (int side = 0; side < 2; side++)
        tsr_diff_run_fini(&diff->runs[side]);
    tsr_arena_fini(&diff->arena);
    memset(diff, 0, sizeof *diff);
}

/* ---- as an object ---------------------------------------------------------------------------- */

static json_int_t difference(const uint64_t bytes[2])
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
    json_t *found = run->of_point ? json_integer((json_int_t)run->found) : json_null();
    return json_pack("{s:s, s:s, s:b, s:I, s:o, s:o, s:I}", "run", run->label, "kind", run->kind,
                     "has_owners", (int)run->has_owners, "changes", (json_int_t)(run->n - 1),
                     "changes_found", found, "peak", place_json(run, run->peak),
                     "peak_reserved_bytes", (json_int_t)diff->peak_reserved[side]);
}

static json_t *categories_json(const struct tsr_diff_category *categories, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:I}", "category", categories[i].category,
                                        "a_bytes", (json_int_t)categories[i].bytes[0], "b_bytes",
                                        (json_int_t)categories[i].bytes[1], "difference_bytes",
                                        difference(categories[i].bytes)));
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
                                              "difference_bytes", difference(o->bytes)));
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
                      "difference_bytes", maybe(p->in[0] && p->in[1], difference(p->allocated))));
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
                        json_pack("{s:I, s:I}", "allocated_difference_bytes", difference(peak),
                                  "reserved_difference_bytes", difference(diff->peak_reserved)));
    json_object_set_new(out, "a", run_json(diff, 0));
    json_object_set_new(out, "b", run_json(diff, 1));
    json_object_set_new(out, "start",
                        json_pack("{s:I, s:I, s:I, s:o}", "a_bytes", (json_int_t)start[0],
                                  "b_bytes", (json_int_t)start[1], "difference_bytes",
                                  difference(start), "categories",
                                  categories_json(diff->start, diff->n_start)));
    json_object_set_new(out, "part_first", part_json(diff));
    json_object_set_new(out, "categories", categories_json(diff->peak, diff->n_peak));
    json_object_set_new(out, "owners", owners_json(diff));
    json_object_set_new(out, "gap", gaps_json(diff));
    json_object_set_new(out, "phases", phases_json(diff));
    json_object_set_new(out, "overlap", overlap_json(diff));
    return out;
}
