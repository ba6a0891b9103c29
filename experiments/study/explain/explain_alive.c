/* explain_alive.c: the live buffers of one moment by category and owner, and the allocator's view
 * of the same moment: rounding, cached bytes per pool.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/explain/explain_parts.h"
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
            return tsr_no_memory(NULL);
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
    return item->pattern && item->unit ? TSR_OK : tsr_no_memory(NULL);
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

/* ---- tables ---------------------------------------------------------------------------------- */

static void sum_categories(const struct item *items, size_t n, struct tsr_explain_alive *out)
{
    uint64_t bytes[TSR_N_CATEGORIES] = {0};
    size_t buffers[TSR_N_CATEGORIES] = {0};
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
            return;
        out->categories[out->n_categories++] = (struct tsr_explain_category){
            tsr_category_name(best), bytes[best], buffers[best],
            out->bytes ? (double)bytes[best] / (double)out->bytes : 0.0};
        bytes[best] = 0;
    }
}

/* Folds the items as they are named now; `all`, or activations alone. */
static tsr_status list_owners(struct item *items, size_t n, struct row *rows, bool all,
                              struct tsr_arena *arena, struct tsr_explain_owner **out,
                              size_t *n_out)
{
    size_t n_rows = fold(items, n, rows);
    *out = tsr_arena_alloc(arena, (n_rows + 1) * sizeof **out);
    if (!*out)
        return tsr_no_memory("live buffers");
    for (size_t i = 0; i < n_rows; i++) {
        const struct row *row = &rows[i];
        if (!all && row->first->category != TSR_CAT_ACTIVATION)
            continue;
        (*out)[(*n_out)++] =
            (struct tsr_explain_owner){.category = tsr_category_name(row->first->category),
                                       .owner = row->first->pattern,
                                       .phase = tsr_phase_name(row->first->phase),
                                       .earlier = row->first->earlier,
                                       .recomputed = row->first->recompute,
                                       .n_owners = row->n_units,
                                       .n_buffers = row->n_buffers,
                                       .bytes = row->bytes,
                                       .smallest = row->smallest,
                                       .largest = row->largest};
    }
    return TSR_OK;
}

/* By block, then by single modules, for what the modules' own work leaves alive. */
static tsr_status add_tables(struct item *items, size_t n, struct row *rows,
                             struct tsr_arena *arena, struct tsr_explain_alive *out)
{
    TSR_TRY(name_items(items, n, true, arena));
    TSR_TRY(list_owners(items, n, rows, true, arena, &out->owners, &out->n_owners));
    TSR_TRY(name_items(items, n, false, arena));
    return list_owners(items, n, rows, false, arena, &out->modules, &out->n_modules);
}

tsr_status tsr_explain_alive_at(const struct tsr_memory *memory, const struct tsr_program *program,
                                struct tsr_arena *arena, struct tsr_explain_alive *out)
{
    const struct tsr_instr **live = NULL;
    size_t n = 0;
    *out = (struct tsr_explain_alive){.bytes = tsr_memory_level_of(memory).total};
    TSR_TRY(tsr_memory_live(memory, &live, &n));
    struct item *items = calloc(n + 1, sizeof *items);
    struct row *rows = calloc(n + 1, sizeof *rows);
    tsr_status status = items && rows ? TSR_OK : tsr_no_memory("live buffers");
    if (status == TSR_OK)
        status = list_items(live, n, program, arena, items);
    if (status == TSR_OK) {
        out->n_buffers = n;
        sum_categories(items, n, out);
        status = add_tables(items, n, rows, arena, out);
    }
    free(live);
    free(items);
    free(rows);
    return status;
}

/* ---- the allocator --------------------------------------------------------------------------- */

static struct tsr_explain_pool pool_of(const struct tsr_memory_segment *segments, size_t n,
                                       uint16_t stream)
{
    struct tsr_explain_pool pool = {0};
    for (size_t i = 0; i < n; i++) {
        if (segments[i].stream != stream)
            continue;
        pool.n_segments++;
        pool.reserved += segments[i].bytes;
        pool.allocated += segments[i].used;
        if (segments[i].used == 0) {
            pool.n_cached++;
            pool.cached += segments[i].bytes;
        } else {
            pool.inactive += segments[i].bytes - segments[i].used;
        }
    }
    return pool;
}

tsr_status tsr_explain_allocator_at(const struct tsr_memory *memory,
                                    const struct tsr_tables *tables, struct tsr_arena *arena,
                                    struct tsr_explain_allocator *out)
{
    struct tsr_memory_level level = tsr_memory_level_of(memory);
    struct tsr_memory_segment *segments = NULL;
    size_t n = 0;
    tsr_status status = TSR_OK;
    *out = (struct tsr_explain_allocator){.requested = level.requested,
                                          .rounding = level.total - level.requested,
                                          .allocated = level.total,
                                          .reserved = level.reserved};
    out->pools = tsr_arena_alloc(arena, (tables->n_streams + 1u) * sizeof *out->pools);
    if (!out->pools)
        return tsr_no_memory(NULL);
    TSR_TRY(tsr_memory_segments(memory, &segments, &n));
    for (uint16_t s = 0; s < tables->n_streams && status == TSR_OK; s++) {
        struct tsr_explain_pool pool = pool_of(segments, n, s);
        out->cached += pool.cached;
        out->inactive += pool.inactive;
        pool.stream = tsr_arena_strdup(arena, tables->streams[s].name);
        if (!pool.stream)
            status = tsr_no_memory(NULL);
        else if (pool.n_segments)
            out->pools[out->n_pools++] = pool;
    }
    free(segments);
    return status;
}
