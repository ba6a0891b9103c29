/* diff_report.c: what differs between two runs, as a JSON object. Differences are b minus a. */
#include "experiments/study/diff/diff_parts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/job/owner.h"

static json_int_t minus(uint64_t b, uint64_t a)
{
    return (json_int_t)(b - a);
}

static json_int_t magnitude(json_int_t change)
{
    return change < 0 ? -change : change;
}

static json_t *place_json(const struct tsr_diff_run *run, size_t i)
{
    const struct tsr_diff_point *p = &run->points[i];
    return json_pack("{s:s, s:i, s:s, s:s, s:s, s:I, s:I}", "phase", i ? p->phase : "start",
                     "micro_batch", p->micro, "module", p->module, "hook", p->hook, "operation",
                     p->operation, "allocated_bytes", (json_int_t)p->total, "reserved_bytes",
                     (json_int_t)p->reserved);
}

static json_t *run_json(const struct tsr_diff_run *run)
{
    uint64_t reserved = 0;
    for (size_t i = 0; i < run->n; i++)
        reserved = tsr_max_u64(reserved, run->points[i].reserved);
    return json_pack("{s:s, s:s, s:b, s:I, s:o, s:I}", "run", run->label, "kind", run->kind,
                     "has_owners", run->has_owners, "changes", (json_int_t)(run->n - 1), "peak",
                     place_json(run, run->peak), "peak_reserved_bytes", (json_int_t)reserved);
}

static json_t *categories_json(const uint64_t *a, const uint64_t *b)
{
    json_t *list = json_array();
    bool done[TSR_N_CATEGORIES] = {false};
    for (;;) {
        int best = -1;
        for (int c = 0; c < TSR_N_CATEGORIES; c++)
            if (!done[c] && (a[c] || b[c]) &&
                (best < 0 || magnitude(minus(b[c], a[c])) > magnitude(minus(b[best], a[best]))))
                best = c;
        if (best < 0)
            return list;
        done[best] = true;
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I}", "category",
                                              tsr_category_name(best), "a_bytes",
                                              (json_int_t)a[best], "b_bytes", (json_int_t)b[best],
                                              "difference_bytes", minus(b[best], a[best])));
    }
}

/* ---- where they part ------------------------------------------------------------------------- */

/* What the change before point i did: its bytes by category. */
static bool same_change(const struct tsr_diff_point *a, const struct tsr_diff_point *b)
{
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
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

static json_t *change_json(const struct tsr_diff_run *run, size_t i)
{
    if (i >= run->n)
        return json_null();
    json_t *out = place_json(run, i);
    const struct tsr_diff_point *p = &run->points[i];
    int most = 0;
    json_int_t moved[TSR_N_CATEGORIES];
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        moved[c] = minus(p->by_category[c], p[-1].by_category[c]);
        if (magnitude(moved[c]) > magnitude(moved[most]))
            most = c;
    }
    json_object_set_new(out, "category", json_string(moved[most] ? tsr_category_name(most) : ""));
    json_object_set_new(out, "change_bytes", json_integer(moved[most]));
    return out;
}

static json_t *part_json(const struct tsr_diff_run *a, const struct tsr_diff_run *b)
{
    size_t at = find_part(a, b);
    if (at == SIZE_MAX)
        return json_null();
    return json_pack("{s:I, s:o, s:o}", "change", (json_int_t)at, "a", change_json(a, at), "b",
                     change_json(b, at));
}

/* ---- where the gap opens and closes ---------------------------------------------------------- */

struct gap {
    const char *phase;
    uint16_t micro;
    char unit[256];
    size_t n;
    json_int_t change;
};

struct gaps {
    struct gap *items;
    size_t n, cap;
};

static tsr_status add_gap(struct gaps *gaps, const struct tsr_diff_point *place, json_int_t change)
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
    return tsr_fail(TSR_ENOMEM, "out of memory: differences of two runs");
}

static int by_change(const void *a, const void *b)
{
    json_int_t x = magnitude(((const struct gap *)a)->change);
    json_int_t y = magnitude(((const struct gap *)b)->change);
    return (x < y) - (x > y);
}

/* The gap is that of the levels at the ends of aligned sections. */
static tsr_status collect_gaps(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                               const struct tsr_diff_alignment *al, struct gaps *gaps)
{
    uint64_t level_a = a->points[0].total, level_b = b->points[0].total;
    json_int_t gap = minus(level_b, level_a);
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
        json_int_t now = minus(level_b, level_a);
        if (now != gap)
            TSR_TRY(add_gap(gaps, place, now - gap));
        gap = now;
    }
    return TSR_OK;
}

static tsr_status gaps_json(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                            json_t **out)
{
    struct tsr_diff_alignment alignment;
    struct gaps gaps = {0};
    *out = json_array();
    if (find_part(a, b) == SIZE_MAX)
        return TSR_OK; /* where a folder puts a change may differ; the changes do not */
    TSR_TRY(tsr_diff_align(a, b, &alignment));
    tsr_status status = collect_gaps(a, b, &alignment, &gaps);
    tsr_diff_alignment_fini(&alignment);
    if (gaps.n)
        qsort(gaps.items, gaps.n, sizeof *gaps.items, by_change);
    for (size_t i = 0; i < gaps.n && status == TSR_OK; i++) {
        const struct gap *gap = &gaps.items[i];
        if (gap->change)
            json_array_append_new(*out, json_pack("{s:s, s:i, s:s, s:I, s:I}", "phase", gap->phase,
                                                  "micro_batch", gap->micro, "module", gap->unit,
                                                  "places", (json_int_t)gap->n, "change_bytes",
                                                  gap->change));
    }
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

static json_t *owner_json(const struct tsr_diff_owner *owner, uint64_t a, uint64_t b)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I}", "category", tsr_category_name(owner->category),
                     "owner", owner->name, "a_bytes", (json_int_t)a, "b_bytes", (json_int_t)b,
                     "difference_bytes", minus(b, a));
}

static int by_difference(const void *a, const void *b)
{
    json_int_t x =
        magnitude(json_integer_value(json_object_get(*(json_t *const *)a, "difference_bytes")));
    json_int_t y =
        magnitude(json_integer_value(json_object_get(*(json_t *const *)b, "difference_bytes")));
    if (x != y)
        return (x < y) - (x > y);
    return strcmp(json_string_value(json_object_get(*(json_t *const *)a, "owner")),
                  json_string_value(json_object_get(*(json_t *const *)b, "owner")));
}

static tsr_status owners_json(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                              json_t **out)
{
    if (!a->has_owners || !b->has_owners) {
        *out = json_null();
        return TSR_OK;
    }
    json_t **rows = calloc(a->n_owners + b->n_owners + 1, sizeof(json_t *));
    size_t n = 0;
    *out = json_array();
    if (!rows)
        return tsr_fail(TSR_ENOMEM, "out of memory: owners");
    for (size_t i = 0; i < a->n_owners; i++) {
        const struct tsr_diff_owner *other = find_owner(b, &a->owners[i]);
        rows[n++] = owner_json(&a->owners[i], a->owners[i].bytes, other ? other->bytes : 0);
    }
    for (size_t i = 0; i < b->n_owners; i++)
        if (!find_owner(a, &b->owners[i]))
            rows[n++] = owner_json(&b->owners[i], 0, b->owners[i].bytes);
    qsort(rows, n, sizeof *rows, by_difference);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(*out, rows[i]);
    free(rows);
    return TSR_OK;
}

/* ---- phases ---------------------------------------------------------------------------------- */

struct phase {
    const char *name;
    uint16_t micro;
    bool in[2];
    uint64_t allocated[2], reserved[2];
};

struct phases {
    struct phase *items;
    size_t n, cap;
};

static struct phase *find_phase(struct phases *phases, const struct tsr_diff_point *point)
{
    for (size_t i = 0; i < phases->n; i++)
        if (phases->items[i].micro == point->micro && !strcmp(phases->items[i].name, point->phase))
            return &phases->items[i];
    struct phase phase = {.name = point->phase, .micro = point->micro};
    return TSR_PUSH(phases->items, phases->n, phases->cap, phase) ? &phases->items[phases->n - 1]
                                                                  : NULL;
}

/* The level at the start of a phase counts, as in PyTorch's statistics. */
static tsr_status add_phases(const struct tsr_diff_run *run, int side, struct phases *phases)
{
    for (size_t i = 1; i < run->n; i++) {
        const struct tsr_diff_point *p = &run->points[i], *before = p - 1;
        struct phase *phase = find_phase(phases, p);
        if (!phase)
            return tsr_fail(TSR_ENOMEM, "out of memory: phases");
        bool begins = i == 1 || p->micro != before->micro || strcmp(p->phase, before->phase) != 0;
        uint64_t level = begins ? tsr_max_u64(p->total, before->total) : p->total;
        phase->in[side] = true;
        phase->allocated[side] = tsr_max_u64(phase->allocated[side], level);
        phase->reserved[side] = tsr_max_u64(phase->reserved[side], p->reserved);
    }
    return TSR_OK;
}

static json_t *maybe(bool known, json_int_t value)
{
    return known ? json_integer(value) : json_null();
}

static tsr_status phases_json(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                              json_t **out)
{
    struct phases phases = {0};
    *out = json_array();
    tsr_status status = add_phases(a, 0, &phases);
    if (status == TSR_OK)
        status = add_phases(b, 1, &phases);
    for (size_t i = 0; i < phases.n && status == TSR_OK; i++) {
        const struct phase *p = &phases.items[i];
        json_array_append_new(
            *out, json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o}", "phase", p->name, "micro_batch",
                            p->micro, "a_allocated_bytes",
                            maybe(p->in[0], (json_int_t)p->allocated[0]), "b_allocated_bytes",
                            maybe(p->in[1], (json_int_t)p->allocated[1]), "a_reserved_bytes",
                            maybe(p->in[0], (json_int_t)p->reserved[0]), "b_reserved_bytes",
                            maybe(p->in[1], (json_int_t)p->reserved[1]), "difference_bytes",
                            maybe(p->in[0] && p->in[1], minus(p->allocated[1], p->allocated[0]))));
    }
    free(phases.items);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void add_totals(const struct tsr_diff_run *a, const struct tsr_diff_run *b, json_t *out)
{
    const struct tsr_diff_point *first_a = &a->points[0], *first_b = &b->points[0];
    const struct tsr_diff_point *peak_a = &a->points[a->peak], *peak_b = &b->points[b->peak];
    json_t *run_a = run_json(a), *run_b = run_json(b);
    json_object_set_new(
        out, "total",
        json_pack("{s:I, s:I}", "allocated_difference_bytes", minus(peak_b->total, peak_a->total),
                  "reserved_difference_bytes",
                  json_integer_value(json_object_get(run_b, "peak_reserved_bytes")) -
                      json_integer_value(json_object_get(run_a, "peak_reserved_bytes"))));
    json_object_set_new(out, "a", run_a);
    json_object_set_new(out, "b", run_b);
    json_object_set_new(out, "start",
                        json_pack("{s:I, s:I, s:I, s:o}", "a_bytes", (json_int_t)first_a->total,
                                  "b_bytes", (json_int_t)first_b->total, "difference_bytes",
                                  minus(first_b->total, first_a->total), "categories",
                                  categories_json(first_a->by_category, first_b->by_category)));
    json_object_set_new(out, "part_first", part_json(a, b));
    json_object_set_new(out, "categories",
                        categories_json(peak_a->by_category, peak_b->by_category));
}

tsr_status tsr_diff_report(const struct tsr_diff *diff, json_t **out)
{
    const struct tsr_diff_run *a = &diff->a, *b = &diff->b;
    json_t *owners = NULL, *gaps = NULL, *phases = NULL, *overlap = NULL;
    *out = json_object();
    if (!*out)
        return tsr_fail(TSR_ENOMEM, "out of memory: the report");
    add_totals(a, b, *out);
    tsr_status status = owners_json(a, b, &owners);
    if (status == TSR_OK)
        status = gaps_json(a, b, &gaps);
    if (status == TSR_OK)
        status = phases_json(a, b, &phases);
    if (status == TSR_OK)
        status = tsr_diff_overlap(a, b, &overlap);
    json_object_set_new(*out, "owners", owners);
    json_object_set_new(*out, "gap", gaps);
    json_object_set_new(*out, "phases", phases);
    json_object_set_new(*out, "overlap", overlap);
    if (status != TSR_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}
