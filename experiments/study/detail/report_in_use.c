/* report_in_use.c: first and last device use of every buffer, summed over time. */
#include "experiments/study/detail/report_in_use.h"
#include "experiments/study/snapshot/report_heap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
