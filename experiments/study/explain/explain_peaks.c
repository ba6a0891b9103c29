/* explain_peaks.c: the peak of each phase, and the local maxima below the peak, with what is alive
 * at each.
 *
 * A local maximum counts if the curve falls by at least a hundredth of the peak before it climbs
 * higher on either side (its prominence); of those with the same phase, hook and kind of module
 * only the highest is shown.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/explain/explain.h"
#include "experiments/study/job/owner.h"

enum { MAX_NEXT = 8, MIN_PROMINENCE = 100 /* the peak divided by it */ };

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
        status = tsr_fail(TSR_ENOMEM, "out of memory: the memory curve");
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

static json_t *phase_json(const struct tsr_explained *e, const struct phase_peak *peak)
{
    json_t *row = tsr_explain_place(e->program, peak->instr);
    json_object_set_new(row, "phase", json_string(tsr_phase_name(peak->phase)));
    json_object_set_new(row, "micro_batch", json_integer(peak->micro));
    json_object_set_new(row, "allocated_bytes", json_integer((json_int_t)peak->allocated));
    json_object_set_new(row, "reserved_bytes", json_integer((json_int_t)peak->reserved));
    json_object_set_new(row, "level_at_start", json_boolean(peak->at_start));
    return row;
}

static bool same_phase(const struct phase_peak *peak, const struct tsr_origin *origin)
{
    return peak->phase == origin->phase && peak->micro == origin->micro;
}

/* Walks the instructions and the points side by side. */
static void add_phases(const struct tsr_explained *e, const struct curve *curve, json_t *list)
{
    struct phase_peak peak = {0};
    bool open = false;
    size_t next = 1;
    const struct point *level = &curve->points[0];
    for (size_t i = 0; i < e->program->n_instrs; i++) {
        const struct tsr_instr *instr = &e->program->instrs[i];
        bool begins = instr->kind == TSR_MARK && instr->mark == TSR_MARK_PHASE;
        if (begins && !(open && same_phase(&peak, &instr->origin))) {
            if (open)
                json_array_append_new(list, phase_json(e, &peak));
            peak = (struct phase_peak){
                instr->origin.phase, instr->origin.micro, level->total, level->reserved, i, true};
            open = true;
        }
        if (next == curve->n || curve->points[next].instr != i)
            continue;
        level = &curve->points[next++];
        peak.reserved = tsr_max_u64(peak.reserved, level->reserved);
        if (level->total > peak.allocated) {
            peak.allocated = level->total;
            peak.instr = i;
            peak.at_start = false;
        }
    }
    if (open)
        json_array_append_new(list, phase_json(e, &peak));
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
    tsr_status status = low && stack ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory: local maxima");
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
            status = tsr_fail(TSR_ENOMEM, "out of memory: local maxima");
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

static tsr_status maximum_json(const struct tsr_explained *e, const struct point *point,
                               json_t **out)
{
    struct tsr_memory *memory = NULL;
    json_t *alive = NULL;
    TSR_TRY(tsr_explain_memory_at(e, point->instr + 1, &memory));
    tsr_status status = tsr_explain_alive(memory, e->program, &alive);
    tsr_memory_destroy(memory);
    TSR_TRY(status);
    *out = tsr_explain_place(e->program, point->instr);
    json_object_set_new(*out, "allocated_bytes", json_integer((json_int_t)point->total));
    json_object_set_new(*out, "reserved_bytes", json_integer((json_int_t)point->reserved));
    json_object_set_new(*out, "alive", alive);
    return TSR_OK;
}

static tsr_status add_next(const struct tsr_explained *e, const struct curve *curve, size_t peak,
                           json_t *list)
{
    const struct tsr_instr *instrs = e->program->instrs, *shown[MAX_NEXT + 1];
    struct maximum *maxima = NULL;
    size_t n = 0, n_shown = 1;
    shown[0] = &instrs[peak];
    tsr_status status = find_maxima(curve, &maxima, &n);
    for (size_t i = 0; i < n && status == TSR_OK && n_shown <= MAX_NEXT; i++) {
        const struct point *point = &curve->points[maxima[i].point];
        bool known = false;
        for (size_t k = 0; k < n_shown; k++)
            known |= alike(e->program->tables, shown[k], &instrs[point->instr]);
        json_t *row = NULL;
        if (known)
            continue;
        shown[n_shown++] = &instrs[point->instr];
        status = maximum_json(e, point, &row);
        if (status == TSR_OK)
            json_array_append_new(list, row);
    }
    free(maxima);
    return status;
}

tsr_status tsr_explain_peaks(const struct tsr_explained *e, size_t peak, json_t *out)
{
    struct curve curve = {0};
    json_t *phases = json_array(), *next = json_array();
    json_object_set_new(out, "phases", phases);
    json_object_set_new(out, "next_peaks", next);
    tsr_status status = curve_of(e, &curve);
    if (status == TSR_OK) {
        add_phases(e, &curve, phases);
        status = add_next(e, &curve, peak, next);
    }
    free(curve.points);
    return status;
}
