/* report_view.c: one iteration of the shown rank: clocks, busy and exposed times, bytes in use. */
#include "experiments/study/detail/report_view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/report/report_text.h"
#include "experiments/study/snapshot/report_heap.h"

static uint16_t compute_stream(const struct tsr_tables *tables)
{
    for (uint16_t s = 0; s < tables->n_streams; s++) {
        if (tables->streams[s].role == TSR_ROLE_COMPUTE)
            return s;
    }
    return 0;
}

static bool is_compute_work(const struct tsr__view *view, size_t i)
{
    const struct tsr_instr *instr = &view->program->instrs[i];
    return instr->stream == view->compute && tsr__is_busy_work(instr);
}

/* When the compute stream starts the next work issued at or after each instruction. */
static void fill_next_compute(struct tsr__view *view)
{
    size_t n = view->program->n_instrs;
    double next = view->start;
    for (size_t i = 0; i < n; i++) { /* the stream is in order: the last work ends last */
        if (is_compute_work(view, i))
            next = view->spans[i].end;
    }
    view->clock[n] = next > view->start ? next : view->start;
    for (size_t i = n; i-- > 0;) {
        view->clock[i] = view->clock[i + 1];
        /* The first kernel may wait in its queue since the iteration before. */
        if (is_compute_work(view, i) && view->spans[i].start < view->clock[i])
            view->clock[i] =
                view->spans[i].start > view->start ? view->spans[i].start : view->start;
    }
}

/* While the compute stream is idle, work of another stream (an exposed all-gather) may be first. */
static void fill_clock(struct tsr__view *view)
{
    double *soonest_from = view->exposed; /* scratch: it is filled later */
    size_t n = view->program->n_instrs;
    double soonest = view->clock[n], idle_from = view->start;
    for (size_t i = n; i-- > 0;) {
        bool busy = tsr__is_busy_work(&view->program->instrs[i]);
        if (busy && view->spans[i].start < soonest)
            soonest = view->spans[i].start;
        soonest_from[i] = soonest;
    }
    for (size_t i = 0; i < n; i++) {
        double early = soonest_from[i] > idle_from ? soonest_from[i] : idle_from;
        if (early < view->clock[i])
            view->clock[i] = early;
        if (is_compute_work(view, i) && view->spans[i].end > idle_from)
            idle_from = view->spans[i].end;
    }
}

static void fill_busy(struct tsr__view *view)
{
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        const struct tsr_sim_span *span = &view->spans[i];
        if (!is_compute_work(view, i) || tsr__is_collective(&view->program->instrs[i]) ||
            span->end <= span->start)
            continue;
        struct tsr__interval *last = view->n_busy ? &view->busy[view->n_busy - 1] : NULL;
        if (last && span->start <= last->end) {
            last->end = span->end > last->end ? span->end : last->end;
        } else {
            view->busy[view->n_busy++] = (struct tsr__interval){span->start, span->end};
        }
    }
}

static tsr_status fill_why(struct tsr__view *view)
{
    const struct tsr_detail *d = view->detail;
    const struct tsr_overlap_run run = {d->programs, d->spans, d->iteration_end, d->n_iterations,
                                        d->joined};
    struct tsr_overlap overlap;
    TSR_TRY(tsr_overlap_of(&run, view->iteration, &overlap));
    memset(view->why, TSR_N_EXPOSURES, view->program->n_instrs + 1);
    for (size_t i = 0; i < overlap.n; i++)
        if (overlap.items[i].iteration == view->iteration)
            view->why[overlap.items[i].instr] =
                (uint8_t)tsr_overlap_main_reason(overlap.items[i].why);
    tsr_overlap_fini(&overlap);
    return TSR_OK;
}

tsr_status tsr__view_init(struct tsr__view *view, const struct tsr_detail *detail,
                          uint32_t iteration)
{
    const struct tsr_program *program = detail->programs[iteration];
    size_t n = program->n_instrs;
    *view = (struct tsr__view){.detail = detail,
                               .program = program,
                               .tables = program->tables,
                               .spans = detail->spans[iteration],
                               .iteration = iteration,
                               .compute = compute_stream(program->tables),
                               .start = iteration ? detail->iteration_end[iteration - 1] : 0.0,
                               .end = detail->iteration_end[iteration]};
    view->clock = malloc((n + 1) * sizeof *view->clock);
    view->exposed = calloc(n + 1, sizeof *view->exposed);
    view->why = malloc(n + 1);
    view->busy = malloc((n + 1) * sizeof *view->busy);
    if (!view->clock || !view->exposed || !view->why || !view->busy) {
        tsr__view_fini(view);
        return tsr_fail(TSR_ENOMEM, "no memory left for the report of an iteration");
    }
    fill_next_compute(view);
    fill_clock(view);
    fill_busy(view);
    tsr_status status = tsr_exposed_per_instr(program, view->spans, view->exposed);
    if (status == TSR_OK)
        status = fill_why(view);
    if (status != TSR_OK)
        tsr__view_fini(view);
    return status;
}

void tsr__view_fini(struct tsr__view *view)
{
    free(view->clock);
    free(view->exposed);
    free(view->why);
    free(view->busy);
    view->clock = view->exposed = NULL;
    view->why = NULL;
    view->busy = NULL;
}

/* Index of the first busy interval that ends after `time`. */
static size_t first_busy(const struct tsr__view *view, double time)
{
    size_t low = 0, high = view->n_busy;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (view->busy[middle].end > time)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

size_t tsr__idle_parts(const struct tsr__view *view, struct tsr__interval span,
                       struct tsr__interval *out, size_t room)
{
    size_t n = 0;
    double from = span.start;
    for (size_t b = first_busy(view, span.start); from < span.end; b++) {
        bool last = b >= view->n_busy || view->busy[b].start >= span.end;
        double to = last ? span.end : view->busy[b].start;
        if (to > from) {
            if (n < room)
                out[n] = (struct tsr__interval){from, to};
            n++;
        }
        if (last)
            break;
        from = view->busy[b].end;
    }
    return n;
}

/* ---- phases ------------------------------------------------------------------------------- */

tsr_status tsr__phases(const struct tsr__view *view, struct tsr__phase **out, size_t *n)
{
    size_t cap = 0;
    *out = NULL;
    *n = 0;
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        const struct tsr_origin *origin = &view->program->instrs[i].origin;
        if (!tsr__is_busy_work(&view->program->instrs[i]))
            continue;
        struct tsr__phase *last = *n ? &(*out)[*n - 1] : NULL;
        if (last && last->phase == origin->phase && last->micro == origin->micro)
            continue;
        double start = last ? view->clock[i] : view->start;
        struct tsr__phase next = {origin->phase, origin->micro, start, view->end};
        if (last)
            last->end = start;
        if (!TSR_PUSH(*out, *n, cap, next)) {
            free(*out);
            *out = NULL;
            *n = 0;
            return tsr_fail(TSR_ENOMEM, "no memory left for the phases of an iteration");
        }
    }
    return TSR_OK;
}

void tsr__phase_label(const struct tsr__phase *phase, bool numbered, char *out, size_t size)
{
    bool per_micro = phase->phase == TSR_PHASE_FORWARD || phase->phase == TSR_PHASE_LOSS ||
                     phase->phase == TSR_PHASE_BACKWARD;
    if (numbered && per_micro)
        (void)snprintf(out, size, "%s %u", tsr_phase_name(phase->phase), phase->micro);
    else
        (void)snprintf(out, size, "%s", tsr_phase_name(phase->phase));
}

/* ---- bytes in use ---------------------------------------------------------------------------- */

/* First and last device use of every buffer, summed over time. */

struct use {
    uint64_t bytes;     /* of the block; 0: not a buffer of this iteration */
    double first, last; /* first > last: never used */
    bool came, stays;   /* lived before the iteration, lives after it */
};

struct change {
    double time;
    uint64_t bytes;
    bool begins;
};

static void note_lifetimes(struct use *uses, uint32_t n_buffers, const struct tsr_program *program,
                           bool is_now)
{
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        if (instr->buffer >= n_buffers)
            continue;
        if (instr->kind == TSR_ALLOC)
            uses[instr->buffer] = (struct use){.bytes = instr->block_bytes,
                                               .first = INFINITY,
                                               .last = -INFINITY,
                                               .stays = true,
                                               .came = !is_now};
        else if (instr->kind == TSR_FREE && is_now)
            uses[instr->buffer].stays = false;
        else if (instr->kind == TSR_FREE)
            uses[instr->buffer].bytes = 0;
    }
}

static void note_uses(struct use *uses, uint32_t n_buffers, const struct tsr__view *view)
{
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        const struct tsr_instr *instr = &view->program->instrs[i];
        for (uint32_t o = 0; o < instr->n_operands; o++) {
            const struct tsr_operand *operand = &instr->operands[o];
            if (operand->space != TSR_SPACE_DEVICE || operand->buffer >= n_buffers)
                continue;
            struct use *use = &uses[operand->buffer];
            use->first = fmin(use->first, view->spans[i].start);
            use->last = fmax(use->last, view->spans[i].end);
        }
    }
}

static int by_time(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    if (x->time != y->time)
        return x->time > y->time ? 1 : -1;
    return (int)x->begins - (int)y->begins; /* the memory of one may be that of the other */
}

/* Fills changes, which has room for two a buffer. */
static size_t list_changes(const struct use *uses, uint32_t n_buffers, const struct tsr__view *view,
                           struct change *changes)
{
    size_t n = 0;
    for (uint32_t i = 0; i < n_buffers; i++) {
        const struct use *use = &uses[i];
        bool used = use->first <= use->last;
        if (!use->bytes || !(used || (use->came && use->stays)))
            continue;
        double from = use->came ? view->start : use->first;
        double to = use->stays ? view->end : use->last;
        if (from < view->start)
            from = view->start;
        if (to <= from)
            continue;
        changes[n++] = (struct change){from, use->bytes, true};
        changes[n++] = (struct change){to, use->bytes, false};
    }
    if (n)
        qsort(changes, n, sizeof *changes, by_time);
    return n;
}

static tsr_status sum_up(struct tsr__in_use *in_use, const struct tsr__view *view,
                         const struct change *changes, size_t n)
{
    in_use->levels = malloc((n + 1) * sizeof *in_use->levels);
    if (!in_use->levels)
        return tsr_fail(TSR_ENOMEM, "no memory left for a memory curve");
    in_use->levels[in_use->n++] = (struct tsr__level){view->start, 0};
    for (size_t i = 0; i < n; i++) {
        struct tsr__level *last = &in_use->levels[in_use->n - 1];
        uint64_t bytes =
            changes[i].begins ? last->bytes + changes[i].bytes : last->bytes - changes[i].bytes;
        if (changes[i].time >= view->end) /* what stays ends with the picture only */
            break;
        if (changes[i].time > last->time)
            in_use->levels[in_use->n++] = (struct tsr__level){changes[i].time, bytes};
        else
            last->bytes = bytes;
    }
    for (size_t i = 0; i < in_use->n; i++)
        in_use->peak = tsr_max_u64(in_use->peak, in_use->levels[i].bytes);
    return TSR_OK;
}

tsr_status tsr__in_use_init(struct tsr__in_use *in_use, const struct tsr__view *view)
{
    const struct tsr_program *const *programs = view->detail->programs;
    uint32_t n_buffers = tsr__n_buffers(programs, view->iteration + 1);
    struct use *uses = calloc((size_t)n_buffers + 1, sizeof *uses);
    struct change *changes = malloc(2 * ((size_t)n_buffers + 1) * sizeof *changes);
    *in_use = (struct tsr__in_use){0};
    tsr_status status =
        uses && changes ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory left for %u buffers", n_buffers);
    if (status == TSR_OK) {
        for (uint32_t i = 0; i <= view->iteration; i++)
            note_lifetimes(uses, n_buffers, programs[i], i == view->iteration);
        note_uses(uses, n_buffers, view);
        status = sum_up(in_use, view, changes, list_changes(uses, n_buffers, view, changes));
    }
    free(uses);
    free(changes);
    return status;
}

void tsr__in_use_fini(struct tsr__in_use *in_use)
{
    free(in_use->levels);
    *in_use = (struct tsr__in_use){0};
}

uint64_t tsr__in_use_between(const struct tsr__in_use *in_use, double from, double to,
                             size_t *cursor)
{
    while (*cursor + 1 < in_use->n && in_use->levels[*cursor + 1].time <= from)
        (*cursor)++;
    uint64_t most = in_use->levels[*cursor].bytes;
    for (size_t i = *cursor + 1; i < in_use->n && in_use->levels[i].time < to; i++)
        most = tsr_max_u64(most, in_use->levels[i].bytes);
    return most;
}
