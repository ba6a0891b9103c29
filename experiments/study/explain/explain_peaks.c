/* explain_peaks.c: the peak of each phase, and the local maxima below the peak, with what is alive
 * at each.
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
    tsr_status status = low && stack ? TSR_OK : tsr_no_memory("local maxima");
    if (status == TSR_OK) {
        lowest_towards(curve, 1, stack, low + 2 * curve->n, low);
        lowest_towards(curve, -1, stack, low + 2 * curve->n, low + curve->n);
    }
    for (size_t i = 0; i < curve->n; i++)
        highest = tsr_max_u64(highest, curve->points[i].total);
    for (size_t i = 1; i < curve->n && status == TSR_OK; i++) {
        uint64_t total = curve->points[i].total;
        uint64_t side = tsr_max_u64(low[i], low[curve->n + i]);
        struct maximum maximum = {i, total};
        if (total - side >= highest / MIN_PROMINENCE && !TSR_PUSH(*out, *n, cap, maximum))
            status = tsr_no_memory("local maxima");
    }
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
    tsr_status status = curve_of(e, &curve);
    if (status == TSR_OK)
        status = add_phases(e, &curve, out);
    if (status == TSR_OK)
        status = add_next(e, &curve, peak, out);
    free(curve.points);
    return status;
}
