/* memory_record.c: collects the figures of a memory recording from a stream of instructions. */
#include "tests/player/memory/memory_record.h"

#include <stdlib.h>
#include <string.h>

static tsr_status no_memory(void)
{
    return tsr_fail(TSR_ENOMEM, "out of memory while recording");
}

/* ---- categories ------------------------------------------------------------------------------ */

/* Live bytes while the events are gone through again. */
struct level {
    uint64_t total, by_category[TSR_N_CATEGORIES];
};

static struct tsr_category_peak *peak_of(struct tsr_memory_record *r, const struct level *level,
                                         int iteration, uint8_t phase)
{
    for (size_t i = r->n_peaks; i-- > 0;)
        if (r->peaks[i].iteration == iteration && r->peaks[i].phase == phase)
            return &r->peaks[i];
    struct tsr_category_peak peak = {.iteration = iteration,
                                     .phase = phase,
                                     .total = level->total,
                                     .module = TSR_NO_ID,
                                     .op = ""};
    memcpy(peak.by_category, level->by_category, sizeof peak.by_category);
    if (!TSR_PUSH(r->peaks, r->n_peaks, r->cap_peaks, peak))
        return NULL;
    return &r->peaks[r->n_peaks - 1];
}

/* The level before the first event of a phase counts: peaks are found before it is applied. */
static tsr_status count_category(struct tsr_memory_record *r, struct level *level,
                                 const struct tsr_memory_event *event)
{
    bool alloc = event->kind == TSR_EVENT_ALLOC;
    uint64_t bytes = tsr_max_u64(tsr_round_up(event->bytes, 512), 512);
    uint8_t phases[2] = {event->phase, TSR_N_PHASES};
    for (int i = 0; i < 2; i++)
        if (!peak_of(r, level, event->iteration, phases[i]))
            return no_memory();
    level->total += alloc ? bytes : -bytes;
    level->by_category[event->category] += alloc ? bytes : -bytes;
    for (int i = 0; i < 2 && alloc; i++) {
        struct tsr_category_peak *peak = peak_of(r, level, event->iteration, phases[i]);
        if (level->total <= peak->total)
            continue;
        peak->total = level->total;
        peak->module = event->module;
        peak->op = event->op;
        memcpy(peak->by_category, level->by_category, sizeof peak->by_category);
    }
    return TSR_OK;
}

static void mark_level(struct tsr_memory_marker *marker, const struct level *level)
{
    marker->total = level->total;
    memcpy(marker->by_category, level->by_category, sizeof marker->by_category);
}

/* A recording takes scratch that comes and goes before a result of the same operation for that
 * result if both have the same address (operators.md, section 14). */
static void label_as_recorded(struct tsr_memory_record *r, size_t result)
{
    const struct tsr_memory_event *y = &r->events[result];
    if (y->kind != TSR_EVENT_ALLOC || y->category == TSR_CAT_WORKSPACE ||
        y->phase != TSR_PHASE_BACKWARD)
        return;
    for (size_t i = result; i-- > 0 && r->events[i].operation == y->operation;) {
        struct tsr_memory_event *x = &r->events[i];
        bool is_scratch = x->kind == TSR_EVENT_ALLOC && x->category == TSR_CAT_WORKSPACE;
        if (!is_scratch || x->address != y->address || x->stream != y->stream)
            continue;
        for (size_t k = i; k < result; k++)
            if (r->events[k].kind != TSR_EVENT_SEGMENT && r->events[k].id == x->id)
                r->events[k].category = TSR_CAT_TEMP;
    }
}

static tsr_status count_categories(struct tsr_memory_record *r)
{
    struct level level = {0};
    uint64_t n_blocks = 0;
    size_t marker = 0;
    for (size_t i = 0; i < r->n_events; i++)
        label_as_recorded(r, i);
    for (size_t i = 0; i < r->n_events; i++) {
        if (r->events[i].kind == TSR_EVENT_SEGMENT)
            continue;
        while (marker < r->n_markers && r->markers[marker].event <= n_blocks)
            mark_level(&r->markers[marker++], &level);
        TSR_TRY(count_category(r, &level, &r->events[i]));
        n_blocks++;
    }
    while (marker < r->n_markers)
        mark_level(&r->markers[marker++], &level);
    return TSR_OK;
}

static int iteration_of(const struct tsr_instr *instr)
{
    return instr->origin.phase == TSR_PHASE_INIT ? -1 : instr->origin.iteration;
}

/* ---- markers --------------------------------------------------------------------------------- */

static tsr_status add_marker(struct tsr_memory_record *r, const struct tsr_instr *instr)
{
    struct tsr_memory_marker marker = {.iteration = iteration_of(instr),
                                       .is_phase = instr->mark == TSR_MARK_PHASE,
                                       .begins = instr->mark != TSR_MARK_GROUP_END,
                                       .phase = instr->origin.phase,
                                       .hook = (uint8_t)instr->value,
                                       .micro = instr->value,
                                       .group = instr->origin.group,
                                       .event = r->n_blocks};
    return TSR_PUSH(r->markers, r->n_markers, r->cap_markers, marker) ? TSR_OK : no_memory();
}

static tsr_status on_mark(struct tsr_memory_record *r, const struct tsr_instr *instr)
{
    bool is_group = instr->mark == TSR_MARK_GROUP_BEGIN || instr->mark == TSR_MARK_GROUP_END;
    if ((instr->mark != TSR_MARK_PHASE && !is_group) || instr->origin.phase == TSR_PHASE_INIT)
        return TSR_OK;
    return add_marker(r, instr);
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool id_of(struct tsr_memory_record *r, const struct tsr_instr *instr, uint32_t *id)
{
    if (instr->buffer >= r->n_ids) {
        size_t n = tsr_max_u64(2 * r->n_ids, (uint64_t)instr->buffer + 1024);
        uint32_t *ids = realloc(r->ids, n * sizeof(*ids));
        if (!ids)
            return false;
        r->ids = ids;
        r->n_ids = n;
    }
    if (instr->kind == TSR_ALLOC)
        r->ids[instr->buffer] = r->n_allocs++;
    *id = r->ids[instr->buffer];
    return true;
}

static struct tsr_memory_event event_of(const struct tsr_instr *instr, enum tsr_event_kind kind)
{
    return (struct tsr_memory_event){.kind = (uint8_t)kind,
                                     .category = instr->category,
                                     .phase = instr->origin.phase,
                                     .recompute = instr->origin.recompute,
                                     .stream = instr->stream,
                                     .iteration = iteration_of(instr),
                                     .module = instr->origin.module,
                                     .op = "",
                                     .bytes = instr->bytes,
                                     .address = instr->address};
}

static tsr_status on_block(struct tsr_memory_record *r, const struct tsr_instr *instr)
{
    bool alloc = instr->kind == TSR_ALLOC;
    struct tsr_memory_event event = event_of(instr, alloc ? TSR_EVENT_ALLOC : TSR_EVENT_FREE);
    event.operation = r->n_operations;
    r->n_blocks++;
    if (!id_of(r, instr, &event.id) || !TSR_PUSH(r->events, r->n_events, r->cap_events, event))
        return no_memory();
    return TSR_OK;
}

static tsr_status on_segment(struct tsr_memory_record *r, const struct tsr_instr *instr)
{
    struct tsr_memory_event event = event_of(instr, TSR_EVENT_SEGMENT);
    event.is_release = instr->kind == TSR_SEGMENT_FREE;
    return TSR_PUSH(r->events, r->n_events, r->cap_events, event) ? TSR_OK : no_memory();
}

/* What was allocated since the last work was allocated for this. */
static void on_work(struct tsr_memory_record *r, const struct tsr_instr *instr)
{
    const char *name = instr->work ? instr->work->name : tsr_instr_kind_name(instr->kind);
    for (size_t i = r->n_events; i-- > r->first_of_operation;)
        if (r->events[i].kind == TSR_EVENT_ALLOC)
            r->events[i].op = name;
    r->first_of_operation = r->n_events;
    r->n_operations++;
}

static tsr_status submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct tsr_memory_record *r = (struct tsr_memory_record *)x;
    TSR_TRY(tsr_memory_figures_submit(&r->figures, instr));
    switch (instr->kind) {
    case TSR_MARK:
        return on_mark(r, instr);
    case TSR_ALLOC:
    case TSR_FREE:
        return on_block(r, instr);
    case TSR_SEGMENT_ALLOC:
    case TSR_SEGMENT_FREE:
        return on_segment(r, instr);
    default:
        if (tsr_instr_is_work(instr))
            on_work(r, instr);
        return TSR_OK;
    }
}

static const struct tsr_executor_ops record_ops = {.size = sizeof(struct tsr_executor_ops),
                                                   .version = TSR_EXECUTOR_VERSION,
                                                   .name = "memory",
                                                   .submit = submit};

void tsr_memory_record_init(struct tsr_memory_record *record)
{
    *record = (struct tsr_memory_record){.figures = {.base = {.ops = &record_ops}}};
}

tsr_status tsr_memory_record_end(struct tsr_memory_record *record)
{
    tsr_memory_figures_end(&record->figures);
    return count_categories(record);
}

void tsr_memory_record_fini(struct tsr_memory_record *record)
{
    free(record->peaks);
    free(record->markers);
    free(record->events);
    free(record->ids);
    tsr_memory_figures_fini(&record->figures);
    tsr_memory_record_init(record);
}
