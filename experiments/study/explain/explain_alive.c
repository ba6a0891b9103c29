/* explain_alive.c: the live buffers of one moment by category and owner, and the allocator's view
 * of the same moment: rounding, cached bytes per pool.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/explain/explain.h"
#include "experiments/study/job/owner.h"

/* ---- grouping -------------------------------------------------------------------------------- */

/* A live buffer as the tables see it. */
struct item {
    const char *pattern, *unit, *owner; /* owner: a module; unit: it, or its block */
    uint64_t bytes;
    uint8_t category, phase;
    bool earlier, recompute; /* allocated in an earlier iteration; while recomputing */
};

/* Buffers that differ only in the number of their block. */
struct row {
    const struct item *first;
    size_t n_buffers, n_units;
    uint64_t bytes, smallest, largest; /* smallest and largest unit */
};

static int by_kind(const struct item *a, const struct item *b)
{
    if (a->category != b->category)
        return a->category < b->category ? -1 : 1;
    int order = strcmp(a->pattern, b->pattern);
    if (order)
        return order;
    if (a->phase != b->phase)
        return a->phase < b->phase ? -1 : 1;
    if (a->earlier != b->earlier)
        return a->earlier ? -1 : 1;
    return (int)a->recompute - (int)b->recompute;
}

static int by_kind_and_unit(const void *a, const void *b)
{
    int order = by_kind(a, b);
    return order ? order : strcmp(((const struct item *)a)->unit, ((const struct item *)b)->unit);
}

static int by_bytes(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return by_kind(x->first, y->first);
}

/* What initialisation and loading leave is known by their names. */
static bool is_earlier(const struct tsr_instr *alloc, const struct tsr_program *program)
{
    bool is_here = alloc >= program->instrs && alloc < program->instrs + program->n_instrs;
    return !is_here && alloc->origin.phase != TSR_PHASE_INIT &&
           alloc->origin.phase != TSR_PHASE_LOAD;
}

static tsr_status list_items(const struct tsr_instr *const *live, size_t n,
                             const struct tsr_program *program, struct tsr_arena *arena,
                             struct item *out)
{
    for (size_t i = 0; i < n; i++) {
        const struct tsr_origin *origin = &live[i]->origin;
        char buffer[32];
        const char *owner = tsr_owner_of(program->tables, origin, buffer);
        owner = owner == buffer ? tsr_arena_strdup(arena, owner) : owner;
        if (!owner)
            return tsr_fail(TSR_ENOMEM, "out of memory");
        out[i] = (struct item){.owner = owner,
                               .bytes = live[i]->block_bytes,
                               .category = live[i]->category,
                               .phase = origin->phase,
                               .earlier = is_earlier(live[i], program),
                               .recompute = origin->recompute != 0};
    }
    return TSR_OK;
}

/* What the tables tell apart: blocks and the modules outside of them, or single modules. */
static tsr_status name_item(struct item *item, bool by_block, struct tsr_arena *arena)
{
    size_t length = by_block ? tsr_owner_block_length(item->owner) : 0;
    char text[256];
    if (by_block)
        tsr_owner_block_pattern(item->owner, text, sizeof text);
    else
        tsr_owner_pattern(item->owner, text, sizeof text);
    item->pattern = tsr_arena_strdup(arena, text);
    item->unit = length ? tsr_arena_printf(arena, "%.*s", (int)length, item->owner) : item->owner;
    return item->pattern && item->unit ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory");
}

static tsr_status name_items(struct item *items, size_t n, bool by_block, struct tsr_arena *arena)
{
    for (size_t i = 0; i < n; i++) {
        if (i && items[i].owner == items[i - 1].owner) { /* neighbours often share an owner */
            items[i].pattern = items[i - 1].pattern;
            items[i].unit = items[i - 1].unit;
            continue;
        }
        TSR_TRY(name_item(&items[i], by_block, arena));
    }
    return TSR_OK;
}

static size_t fold(struct item *items, size_t n, struct row *rows)
{
    size_t n_rows = 0;
    qsort(items, n, sizeof *items, by_kind_and_unit);
    for (size_t i = 0; i < n;) {
        size_t end = i;
        uint64_t unit_bytes = 0;
        while (end < n && !by_kind_and_unit(&items[i], &items[end]))
            unit_bytes += items[end++].bytes;
        struct row *row = n_rows ? &rows[n_rows - 1] : NULL;
        if (!row || by_kind(row->first, &items[i])) {
            row = &rows[n_rows++];
            *row = (struct row){.first = &items[i], .smallest = UINT64_MAX};
        }
        row->n_units++;
        row->n_buffers += end - i;
        row->bytes += unit_bytes;
        row->smallest = tsr_min_u64(row->smallest, unit_bytes);
        row->largest = tsr_max_u64(row->largest, unit_bytes);
        i = end;
    }
    qsort(rows, n_rows, sizeof *rows, by_bytes);
    return n_rows;
}

static json_t *row_json(const struct row *row)
{
    return json_pack("{s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I}", "category",
                     tsr_category_name(row->first->category), "owner", row->first->pattern,
                     "allocated_in", tsr_phase_name(row->first->phase), "earlier_iteration",
                     row->first->earlier, "recomputed", row->first->recompute, "owners",
                     (json_int_t)row->n_units, "buffers", (json_int_t)row->n_buffers, "bytes",
                     (json_int_t)row->bytes, "smallest_owner_bytes", (json_int_t)row->smallest,
                     "largest_owner_bytes", (json_int_t)row->largest);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static json_t *category_table(const struct item *items, size_t n, uint64_t total)
{
    uint64_t bytes[TSR_N_CATEGORIES] = {0};
    size_t buffers[TSR_N_CATEGORIES] = {0};
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        bytes[items[i].category] += items[i].bytes;
        buffers[items[i].category]++;
    }
    for (;;) {
        int best = -1;
        for (int c = 0; c < TSR_N_CATEGORIES; c++)
            if (bytes[c] && (best < 0 || bytes[c] > bytes[best]))
                best = c;
        if (best < 0)
            return list;
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:I, s:f}", "category", tsr_category_name(best), "bytes",
                            (json_int_t)bytes[best], "buffers", (json_int_t)buffers[best], "share",
                            total ? (double)bytes[best] / (double)total : 0.0));
        bytes[best] = 0;
    }
}

static tsr_status add_tables(struct item *items, size_t n, struct row *rows,
                             struct tsr_arena *arena, json_t *out)
{
    json_t *owners = json_array(), *modules = json_array();
    json_object_set_new(out, "owners", owners);
    json_object_set_new(out, "modules", modules);
    TSR_TRY(name_items(items, n, true, arena));
    size_t n_rows = fold(items, n, rows);
    for (size_t i = 0; i < n_rows; i++)
        json_array_append_new(owners, row_json(&rows[i]));
    /* The same at the level of single modules, for what the modules' own work leaves alive. */
    TSR_TRY(name_items(items, n, false, arena));
    n_rows = fold(items, n, rows);
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i].first->category == TSR_CAT_ACTIVATION)
            json_array_append_new(modules, row_json(&rows[i]));
    return TSR_OK;
}

tsr_status tsr_explain_alive(const struct tsr_memory *memory, const struct tsr_program *program,
                             json_t **out)
{
    const struct tsr_instr **live = NULL;
    size_t n = 0;
    *out = NULL;
    TSR_TRY(tsr_memory_live(memory, &live, &n));
    struct tsr_arena arena;
    tsr_arena_init(&arena);
    struct item *items = calloc(n + 1, sizeof *items);
    struct row *rows = calloc(n + 1, sizeof *rows);
    json_t *object = json_object();
    tsr_status status =
        items && rows && object ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory: live buffers");
    if (status == TSR_OK)
        status = list_items(live, n, program, &arena, items);
    if (status == TSR_OK) {
        uint64_t total = tsr_memory_level_of(memory).total;
        json_object_set_new(object, "bytes", json_integer((json_int_t)total));
        json_object_set_new(object, "buffers", json_integer((json_int_t)n));
        json_object_set_new(object, "by_category", category_table(items, n, total));
        status = add_tables(items, n, rows, &arena, object);
    }
    free(live);
    free(items);
    free(rows);
    tsr_arena_fini(&arena);
    if (status == TSR_OK)
        *out = object;
    else
        json_decref(object);
    return status;
}

/* ---- the allocator --------------------------------------------------------------------------- */

struct pool {
    uint64_t reserved, used, cached, inactive;
    size_t n_segments, n_cached;
};

static struct pool pool_of(const struct tsr_memory_segment *segments, size_t n, uint16_t stream)
{
    struct pool pool = {0};
    for (size_t i = 0; i < n; i++) {
        if (segments[i].stream != stream)
            continue;
        pool.n_segments++;
        pool.reserved += segments[i].bytes;
        pool.used += segments[i].used;
        if (segments[i].used == 0) {
            pool.n_cached++;
            pool.cached += segments[i].bytes;
        } else {
            pool.inactive += segments[i].bytes - segments[i].used;
        }
    }
    return pool;
}

static json_t *pool_json(const char *stream, const struct pool *pool)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "stream", stream, "segments",
                     (json_int_t)pool->n_segments, "reserved_bytes", (json_int_t)pool->reserved,
                     "allocated_bytes", (json_int_t)pool->used, "cached_segments",
                     (json_int_t)pool->n_cached, "cached_bytes", (json_int_t)pool->cached,
                     "inactive_split_bytes", (json_int_t)pool->inactive);
}

tsr_status tsr_explain_allocator(const struct tsr_memory *memory, const struct tsr_tables *tables,
                                 json_t **out)
{
    struct tsr_memory_level level = tsr_memory_level_of(memory);
    struct tsr_memory_segment *segments = NULL;
    uint64_t cached = 0, inactive = 0;
    size_t n = 0;
    *out = NULL;
    TSR_TRY(tsr_memory_segments(memory, &segments, &n));
    json_t *pools = json_array();
    for (uint16_t s = 0; s < tables->n_streams; s++) {
        struct pool pool = pool_of(segments, n, s);
        cached += pool.cached;
        inactive += pool.inactive;
        if (pool.n_segments)
            json_array_append_new(pools, pool_json(tables->streams[s].name, &pool));
    }
    free(segments);
    *out = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "requested_bytes", (json_int_t)level.requested,
        "rounding_bytes", (json_int_t)(level.total - level.requested), "allocated_bytes",
        (json_int_t)level.total, "cached_bytes", (json_int_t)cached, "inactive_split_bytes",
        (json_int_t)inactive, "reserved_bytes", (json_int_t)level.reserved, "pools", pools);
    return *out ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory");
}
