/* diff_recording.c: reads a recorded time line of PyTorch's allocator (NAME.timeline.json.gz of
 * tests/golden-memory, whose README has the format). The iteration that is shown is its last one.
 */
#include "experiments/study/diff/diff_parts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/gz.h"
#include "sim/base/json_load.h"

enum { EVENT_FREE, EVENT_ALLOC, EVENT_SEGMENT };

/* ---- the file -------------------------------------------------------------------------------- */

static tsr_status load_json(const char *path, json_t **out)
{
    char *text = NULL;
    size_t n = 0;
    json_error_t error;
    TSR_TRY(tsr_gz_load(path, TSR_GZ_RECORDING_BYTES, &text, &n));
    *out = tsr_json_loadb(text, n, TSR_TEXT_MANY_VALUES, &error);
    free(text);
    return *out ? TSR_OK : tsr_fail(TSR_ECONFIG, "%s:%d: %s", path, error.line, error.text);
}

/* ---- the events ------------------------------------------------------------------------------ */

struct recording {
    const char *path;
    const json_t *events;
    const json_t *phase, *module, *op, *category, *action; /* tables */
    json_int_t shown;                                      /* the iteration */
    uint64_t *bytes;                                       /* [n_ids], 0: dead */
    uint8_t *categories;
    const char **owners;
    size_t n_ids;
    uint64_t total, reserved, by_category[TSR_DIFF_CATEGORIES];
};

static tsr_status damaged(const struct recording *r, size_t event, const char *what)
{
    return tsr_fail(TSR_ECONFIG,
                    "%s: event %zu: %s; allowed: a time line as tests/golden-memory/README.md "
                    "describes it",
                    r->path, event, what);
}

static json_int_t field(const json_t *event, size_t i)
{
    const json_t *value = json_array_get(event, i);
    return json_is_integer(value) ? json_integer_value(value) : -2;
}

/* Fields of an event from its iteration on: iteration, phase, module, op. */
static size_t place_at(const json_t *event)
{
    static const size_t at[] = {[EVENT_FREE] = 2, [EVENT_ALLOC] = 6, [EVENT_SEGMENT] = 5};
    return at[field(event, 0)];
}

static const char *word(const json_t *table, json_int_t i)
{
    return i >= 0 ? json_string_value(json_array_get(table, (size_t)i)) : NULL;
}

static int category_of(const char *name)
{
    for (int c = 0; name && c < TSR_N_CATEGORIES; c++)
        if (!strcmp(tsr_category_name(c), name))
            return c;
    return -1;
}

static tsr_status check_event(const struct recording *r, size_t i)
{
    static const size_t sizes[] = {[EVENT_FREE] = 6, [EVENT_ALLOC] = 10, [EVENT_SEGMENT] = 9};
    const json_t *event = json_array_get(r->events, i);
    json_int_t kind = field(event, 0);
    if (kind < EVENT_FREE || kind > EVENT_SEGMENT || json_array_size(event) != sizes[kind])
        return damaged(r, i, "found neither an allocation, a free nor a segment");
    for (size_t k = 0; k < sizes[kind]; k++)
        if (field(event, k) < -1)
            return damaged(r, i, "found a field that is no number");
    size_t at = place_at(event);
    if (!word(r->phase, field(event, at + 1)) || !word(r->module, field(event, at + 2)) ||
        !word(r->op, field(event, at + 3)))
        return damaged(r, i, "found a number that is in no table");
    if (kind == EVENT_SEGMENT && !word(r->action, field(event, 1)))
        return damaged(r, i, "found an unknown segment action");
    if (kind != EVENT_SEGMENT && field(event, 1) < 0)
        return damaged(r, i, "found an allocation without a number");
    if (kind == EVENT_ALLOC && category_of(word(r->category, field(event, 5))) < 0)
        return damaged(r, i, "found an unknown category");
    return TSR_OK;
}

static tsr_status check_events(struct recording *r)
{
    size_t n = json_array_size(r->events);
    r->shown = -1;
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(check_event(r, i));
        const json_t *event = json_array_get(r->events, i);
        json_int_t iteration = field(event, place_at(event));
        r->shown = iteration > r->shown ? iteration : r->shown;
        if (field(event, 0) == EVENT_ALLOC && (size_t)field(event, 1) >= r->n_ids)
            r->n_ids = (size_t)field(event, 1) + 1;
    }
    if (r->shown < 0)
        return tsr_fail(TSR_ECONFIG, "%s: found no iteration; allowed: a recorded step", r->path);
    if (r->n_ids > 100 * n)
        return damaged(r, 0, "found numbers of allocations that are too large");
    r->bytes = calloc(r->n_ids, sizeof *r->bytes);
    r->categories = calloc(r->n_ids, sizeof *r->categories);
    r->owners = calloc(r->n_ids, sizeof *r->owners);
    return r->bytes && r->categories && r->owners ? TSR_OK : tsr_no_memory("events");
}

/* The README's level: the sum of the requests, each rounded up to 512 bytes. */
static tsr_status apply(struct recording *r, size_t i)
{
    const json_t *event = json_array_get(r->events, i);
    json_int_t kind = field(event, 0);
    if (kind == EVENT_SEGMENT) {
        const char *action = word(r->action, field(event, 1));
        bool gone = !strcmp(action, "segment_free") || !strcmp(action, "segment_unmap");
        uint64_t bytes = (uint64_t)field(event, 2);
        if (gone && bytes > r->reserved)
            return damaged(r, i, "found more memory released than reserved");
        r->reserved += gone ? -bytes : bytes;
        return TSR_OK;
    }
    size_t id = (size_t)field(event, 1);
    if (id >= r->n_ids || (kind == EVENT_ALLOC) != (r->bytes[id] == 0))
        return damaged(r, i, "found a free of what is not allocated, or an allocation twice");
    if (kind == EVENT_ALLOC) {
        const char *module = word(r->module, field(event, place_at(event) + 2));
        r->bytes[id] = tsr_round_up((uint64_t)field(event, 2) + (field(event, 2) == 0), 512);
        r->categories[id] = (uint8_t)category_of(word(r->category, field(event, 5)));
        r->owners[id] = *module ? module : "(none)";
    }
    uint64_t change = kind == EVENT_ALLOC ? r->bytes[id] : -r->bytes[id];
    r->total += change;
    r->by_category[r->categories[id]] += change;
    if (kind == EVENT_FREE)
        r->bytes[id] = 0;
    return TSR_OK;
}

/* ---- points and owners ----------------------------------------------------------------------- */

static tsr_status add_point(const struct recording *r, const json_t *event,
                            struct tsr_diff_run *run)
{
    struct tsr_diff_point point = {.phase = "",
                                   .module = "",
                                   .hook = "",
                                   .operation = "",
                                   .total = r->total,
                                   .reserved = r->reserved};
    memcpy(point.by_category, r->by_category, sizeof point.by_category);
    if (event) {
        size_t at = place_at(event);
        point.phase = tsr_arena_strdup(&run->arena, word(r->phase, field(event, at + 1)));
        point.module = tsr_arena_strdup(&run->arena, word(r->module, field(event, at + 2)));
        point.operation = tsr_arena_strdup(&run->arena, word(r->op, field(event, at + 3)));
        if (!point.phase || !point.module || !point.operation)
            return tsr_no_memory("events");
        if (!*point.module)
            point.module = "(root)";
    }
    return tsr_diff_add_point(run, &point);
}

static tsr_status collect_points(struct recording *r, struct tsr_diff_run *run)
{
    bool begun = false;
    for (size_t i = 0; i < json_array_size(r->events); i++) {
        const json_t *event = json_array_get(r->events, i);
        bool shown = field(event, place_at(event)) == r->shown;
        if (shown && !begun)
            TSR_TRY(add_point(r, NULL, run));
        begun |= shown;
        TSR_TRY(apply(r, i));
        if (shown && field(event, 0) != EVENT_SEGMENT)
            TSR_TRY(add_point(r, event, run));
    }
    tsr_diff_find_peak(run);
    return TSR_OK;
}

/* Replays to the peak once more: who lives then? */
static tsr_status collect_owners(struct recording *r, struct tsr_diff_run *run)
{
    size_t point = 0;
    memset(r->bytes, 0, r->n_ids * sizeof *r->bytes);
    memset(r->by_category, 0, sizeof r->by_category);
    r->total = r->reserved = 0;
    for (size_t i = 0; i < json_array_size(r->events); i++) {
        const json_t *event = json_array_get(r->events, i);
        bool shown = field(event, place_at(event)) == r->shown;
        if (shown && run->peak == 0)
            break; /* the level at the start is the peak */
        TSR_TRY(apply(r, i));
        point += shown && field(event, 0) != EVENT_SEGMENT;
        if (shown && point == run->peak)
            break;
    }
    run->has_owners = true;
    for (size_t id = 0; id < r->n_ids; id++)
        if (r->bytes[id])
            TSR_TRY(tsr_diff_add_owner(run, r->categories[id], r->owners[id], r->bytes[id]));
    return TSR_OK;
}

static tsr_status take(struct recording *r, const json_t *file, struct tsr_diff_run *run)
{
    const json_t *tables = json_object_get(file, "tables");
    r->events = json_object_get(file, "events");
    r->phase = json_object_get(tables, "phase");
    r->module = json_object_get(tables, "module");
    r->op = json_object_get(tables, "op");
    r->category = json_object_get(tables, "category");
    r->action = json_object_get(tables, "segment_action");
    if (!json_array_size(r->events) || !r->phase || !r->module || !r->op || !r->category ||
        !r->action)
        return tsr_fail(TSR_ECONFIG,
                        "%s: has no \"tables\" and \"events\"; allowed: a time line as "
                        "tests/golden-memory/README.md describes it",
                        r->path);
    TSR_TRY(check_events(r));
    TSR_TRY(collect_points(r, run));
    return collect_owners(r, run);
}

tsr_status tsr_diff_load_recording(const char *path, struct tsr_diff_run *run)
{
    struct recording r = {.path = path};
    json_t *file = NULL;
    run->kind = "recording";
    tsr_status status = load_json(path, &file);
    if (status == TSR_OK)
        status = take(&r, file, run);
    json_decref(file);
    free(r.bytes);
    free(r.categories);
    free(r.owners);
    return status;
}
