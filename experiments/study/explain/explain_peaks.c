/* explain_peaks.c: the peak of each phase, and the local maxima below the peak, with what is alive
 * at each, by category and owner; the allocator's view of it: rounding, cached bytes per pool.
 *
 * A local maximum counts if the curve falls by at least a hundredth of the peak before it climbs
 * higher on either side (its prominence); of those with the same phase, hook and kind of module
 * only the highest is shown.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/explain/explain_parts.h"
#include "experiments/study/job/owner.h"

enum { MIN_PROMINENCE = 100 /* the peak divided by it */ };

/* The level after an ALLOC or FREE, from the level at the start of the iteration on. */
struct point {
    size_t instr;
    uint64_t total, reserved;
};

struct curve {
    struct point *points;
    size_t n, cap;
    bool failed;
};

static void keep(void *user, const struct tsr_memory_sample *sample)
{
    struct curve *curve = user;
    struct point point = {sample->instr, sample->total, sample->reserved};
    if (!TSR_PUSH(curve->points, curve->n, curve->cap, point))
        curve->failed = true;
}

static tsr_status curve_of(const struct tsr_explained *e, struct curve *out)
{
    struct tsr_memory *memory = NULL;
    struct tsr_memory_peak peak;
    TSR_TRY(tsr_explain_memory_at(e, 0, &memory));
    struct tsr_memory_level level = tsr_memory_level_of(memory);
    keep(out, &(struct tsr_memory_sample){.total = level.total, .reserved = level.reserved});
    tsr_status status = tsr_memory_replay(memory, e->program, keep, out, &peak);
    tsr_memory_destroy(memory);
    if (status == TSR_OK && out->failed)
        status = tsr_no_memory("the memory curve");
    return status;
}

/* ---- by phase -------------------------------------------------------------------------------- */

struct phase_peak {
    uint8_t phase;
    uint16_t micro;
    uint64_t allocated, reserved;
    size_t instr;
    bool at_start; /* nothing in the phase went above the level at its start */
};

struct phases {
    struct phase_peak *items;
    size_t n, cap;
};

static bool same_phase(const struct phase_peak *peak, const struct tsr_origin *origin)
{
    return peak->phase == origin->phase && peak->micro == origin->micro;
}

/* Walks the instructions and the points side by side. */
static tsr_status find_phases(const struct tsr_explained *e, const struct curve *curve,
                              struct phases *out)
{
    struct phase_peak *peak = NULL;
    size_t next = 1;
    const struct point *level = &curve->points[0];
    for (size_t i = 0; i < e->program->n_instrs; i++) {
        const struct tsr_instr *instr = &e->program->instrs[i];
        bool begins = instr->kind == TSR_MARK && instr->mark == TSR_MARK_PHASE;
        if (begins && !(peak && same_phase(peak, &instr->origin))) {
            struct phase_peak begun = {
                instr->origin.phase, instr->origin.micro, level->total, level->reserved, i, true};
            if (!TSR_PUSH(out->items, out->n, out->cap, begun))
                return tsr_no_memory("phases");
            peak = &out->items[out->n - 1];
        }
        if (next == curve->n || curve->points[next].instr != i)
            continue;
        level = &curve->points[next++];
        if (!peak)
            continue;
        peak->reserved = tsr_max_u64(peak->reserved, level->reserved);
        if (level->total > peak->allocated) {
            peak->allocated = level->total;
            peak->instr = i;
            peak->at_start = false;
        }
    }
    return TSR_OK;
}

static tsr_status keep_phases(const struct tsr_explained *e, const struct phases *phases,
                              struct tsr_explanation *out)
{
    out->phases = tsr_arena_alloc(&out->arena, (phases->n + 1) * sizeof *out->phases);
    if (!out->phases)
        return tsr_no_memory("phases");
    for (size_t i = 0; i < phases->n; i++) {
        const struct phase_peak *from = &phases->items[i];
        struct tsr_explain_phase *phase = &out->phases[out->n_phases++];
        *phase = (struct tsr_explain_phase){
            .allocated = from->allocated, .reserved = from->reserved, .at_start = from->at_start};
        TSR_TRY(tsr_explain_place_of(e->program, from->instr, &out->arena, &phase->place));
        phase->place.phase = tsr_phase_name(from->phase);
        phase->place.micro = from->micro;
    }
    return TSR_OK;
}

static tsr_status add_phases(const struct tsr_explained *e, const struct curve *curve,
                             struct tsr_explanation *out)
{
    struct phases phases = {0};
    tsr_status status = find_phases(e, curve, &phases);
    if (status == TSR_OK)
        status = keep_phases(e, &phases, out);
    free(phases.items);
    return status;
}

/* ---- local maxima ---------------------------------------------------------------------------- */

/* low[i]: the lowest level between point i and the nearest higher (or, to the left, equal) one on
 * one side; the end of the curve counts as level 0. `step` is 1 or -1. */
static void lowest_towards(const struct curve *curve, int step, size_t *stack, uint64_t *lows,
                           uint64_t *low)
{
    size_t depth = 0;
    for (size_t k = 0; k < curve->n; k++) {
        size_t i = step > 0 ? k : curve->n - 1 - k;
        uint64_t level = curve->points[i].total, lowest = level;
        /* Lower points on the way are passed; each carries the lowest level behind it. */
        while (depth && (step > 0 ? curve->points[stack[depth - 1]].total < level
                                  : curve->points[stack[depth - 1]].total <= level)) {
            depth--;
            lowest =
                tsr_min_u64(lowest, tsr_min_u64(lows[depth], curve->points[stack[depth]].total));
        }
        low[i] = depth ? lowest : 0;
        stack[depth] = i;
        lows[depth++] = lowest;
    }
}

struct maximum {
    size_t point;
    uint64_t total;
};

static int by_total(const void *a, const void *b)
{
    const struct maximum *x = a, *y = b;
    if (x->total != y->total)
        return x->total > y->total ? -1 : 1;
    return (x->point > y->point) - (x->point < y->point);
}

static tsr_status find_maxima(const struct curve *curve, struct maximum **out, size_t *n)
{
    uint64_t *low = calloc(3 * curve->n, sizeof *low), highest = 0;
    size_t *stack = calloc(curve->n, sizeof *stack), cap = 0;
    *out = NULL;
    *n = 0;
    tsr_status status = TSR_OK;
    if (!low || !stack)
        TSR_GOTO(done, tsr_no_memory("local maxima"));
    lowest_towards(curve, 1, stack, low + 2 * curve->n, low);
    lowest_towards(curve, -1, stack, low + 2 * curve->n, low + curve->n);
    for (size_t i = 0; i < curve->n; i++)
        highest = tsr_max_u64(highest, curve->points[i].total);
    for (size_t i = 1; i < curve->n; i++) {
        uint64_t total = curve->points[i].total;
        uint64_t side = tsr_max_u64(low[i], low[curve->n + i]);
        struct maximum maximum = {i, total};
        if (total - side >= highest / MIN_PROMINENCE && !TSR_PUSH(*out, *n, cap, maximum))
            TSR_GOTO(done, tsr_no_memory("local maxima"));
    }
done:
    free(low);
    free(stack);
    if (*n)
        qsort(*out, *n, sizeof(**out), by_total);
    return status;
}

/* Do two moments differ in nothing but the number of a block or micro-batch? */
static bool alike(const struct tsr_tables *tables, const struct tsr_instr *a,
                  const struct tsr_instr *b)
{
    char name[2][32], pattern[2][256];
    tsr_owner_pattern(tsr_owner_of(tables, &a->origin, name[0]), pattern[0], sizeof pattern[0]);
    tsr_owner_pattern(tsr_owner_of(tables, &b->origin, name[1]), pattern[1], sizeof pattern[1]);
    return a->origin.phase == b->origin.phase && a->origin.hook == b->origin.hook &&
           a->origin.recompute == b->origin.recompute && !strcmp(pattern[0], pattern[1]);
}

static tsr_status maximum_of(const struct tsr_explained *e, const struct point *point,
                             struct tsr_arena *arena, struct tsr_explain_maximum *out)
{
    struct tsr_memory *memory = NULL;
    TSR_TRY(tsr_explain_memory_at(e, point->instr + 1, &memory));
    tsr_status status = tsr_explain_alive_at(memory, e->program, arena, &out->alive);
    tsr_memory_destroy(memory);
    TSR_TRY(status);
    out->allocated = point->total;
    out->reserved = point->reserved;
    return tsr_explain_place_of(e->program, point->instr, arena, &out->place);
}

static tsr_status add_next(const struct tsr_explained *e, const struct curve *curve, size_t peak,
                           struct tsr_explanation *out)
{
    const struct tsr_instr *instrs = e->program->instrs, *shown[TSR_EXPLAIN_MAXIMA + 1];
    struct maximum *maxima = NULL;
    size_t n = 0, n_shown = 1;
    shown[0] = &instrs[peak];
    tsr_status status = find_maxima(curve, &maxima, &n);
    for (size_t i = 0; i < n && status == TSR_OK && n_shown <= TSR_EXPLAIN_MAXIMA; i++) {
        const struct point *point = &curve->points[maxima[i].point];
        bool known = false;
        for (size_t k = 0; k < n_shown; k++)
            known |= alike(e->program->tables, shown[k], &instrs[point->instr]);
        if (known)
            continue;
        shown[n_shown++] = &instrs[point->instr];
        status = maximum_of(e, point, &out->arena, &out->next[out->n_next]);
        out->n_next += status == TSR_OK;
    }
    free(maxima);
    return status;
}

tsr_status tsr_explain_peaks(const struct tsr_explained *e, size_t peak,
                             struct tsr_explanation *out)
{
    struct curve curve = {0};
    tsr_status status;
    TSR_GOTO(done, curve_of(e, &curve));
    TSR_GOTO(done, add_phases(e, &curve, out));
    TSR_GOTO(done, add_next(e, &curve, peak, out));
done:
    free(curve.points);
    return status;
}

/* ---- alive at one moment --------------------------------------------------------------------- */

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

/* ---- alive: by category and owner ------------------------------------------------------------ */

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

tsr_status tsr_explain_alive_of(const struct tsr_instr *const *live, size_t n, uint64_t bytes,
                                const struct tsr_program *program, struct tsr_arena *arena,
                                struct tsr_explain_alive *out)
{
    struct item *items = calloc(n + 1, sizeof *items);
    struct row *rows = calloc(n + 1, sizeof *rows);
    tsr_status status;
    *out = (struct tsr_explain_alive){.bytes = bytes, .n_buffers = n};
    if (!items || !rows)
        TSR_GOTO(done, tsr_no_memory("live buffers"));
    TSR_GOTO(done, list_items(live, n, program, arena, items));
    sum_categories(items, n, out);
    status = add_tables(items, n, rows, arena, out);
done:
    free(items);
    free(rows);
    return status;
}

tsr_status tsr_explain_alive_at(const struct tsr_memory *memory, const struct tsr_program *program,
                                struct tsr_arena *arena, struct tsr_explain_alive *out)
{
    const struct tsr_instr **live = NULL;
    size_t n = 0;
    uint64_t bytes = tsr_memory_level_of(memory).total;
    TSR_TRY(tsr_memory_live(memory, &live, &n));
    tsr_status status = tsr_explain_alive_of(live, n, bytes, program, arena, out);
    free(live);
    return status;
}

/* ---- alive: the allocator's view ------------------------------------------------------------- */

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
