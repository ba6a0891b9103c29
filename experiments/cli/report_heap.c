/* report_heap.c: live buffers by id, held memory as a list of ranges. */
#include "report_heap.h"

#include <inttypes.h>
#include <stdlib.h>

uint32_t tsr__n_buffers(const struct tsr_program *const *programs, uint32_t n)
{
    uint32_t n_buffers = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (size_t k = 0; k < programs[i]->n_instrs; k++) {
            const struct tsr_instr *instr = &programs[i]->instrs[k];
            if (instr->kind == TSR_ALLOC && instr->buffer != TSR_NO_ID &&
                instr->buffer >= n_buffers)
                n_buffers = instr->buffer + 1;
        }
    }
    return n_buffers;
}

tsr_status tsr__heap_init(struct tsr__heap *heap, const struct tsr_program *const *programs,
                          uint32_t n)
{
    *heap = (struct tsr__heap){.n_buffers = tsr__n_buffers(programs, n)};
    heap->live = calloc(heap->n_buffers ? heap->n_buffers : 1, sizeof *heap->live);
    return heap->live ? TSR_OK
                      : tsr_fail(TSR_ENOMEM, "no memory left for %u buffers", heap->n_buffers);
}

void tsr__heap_fini(struct tsr__heap *heap)
{
    free(heap->live);
    free(heap->ranges);
    *heap = (struct tsr__heap){0};
}

/* ---- blocks ------------------------------------------------------------------------------- */

static tsr_status on_alloc(struct tsr__heap *heap, const struct tsr_instr *instr)
{
    if (instr->buffer >= heap->n_buffers || heap->live[instr->buffer])
        return tsr_fail(TSR_EASSERT, "buffer %" PRIu32 " is allocated twice", instr->buffer);
    heap->live[instr->buffer] = instr;
    heap->allocated += instr->block_bytes;
    heap->requested += instr->bytes;
    return TSR_OK;
}

static tsr_status on_free(struct tsr__heap *heap, const struct tsr_instr *instr)
{
    if (instr->buffer >= heap->n_buffers || !heap->live[instr->buffer])
        return tsr_fail(TSR_EASSERT, "buffer %" PRIu32 " is freed and was not allocated",
                        instr->buffer);
    heap->allocated -= heap->live[instr->buffer]->block_bytes;
    heap->requested -= heap->live[instr->buffer]->bytes;
    heap->live[instr->buffer] = NULL;
    return TSR_OK;
}

/* ---- held memory -------------------------------------------------------------------------- */

static uint64_t first_bytes_of(const struct tsr__heap *heap, const struct tsr_instr *instr)
{
    for (size_t i = 0; i < heap->n_ranges; i++) {
        if (heap->ranges[i].segment == instr->segment)
            return heap->ranges[i].first_bytes;
    }
    return instr->bytes;
}

static tsr_status add_range(struct tsr__heap *heap, const struct tsr_instr *instr)
{
    struct tsr__range range = {.address = instr->address,
                               .bytes = instr->bytes,
                               .first_bytes = first_bytes_of(heap, instr),
                               .segment = instr->segment,
                               .stream = instr->stream,
                               .origin = instr};
    if (!TSR_PUSH(heap->ranges, heap->n_ranges, heap->cap_ranges, range))
        return tsr_fail(TSR_ENOMEM, "no memory left for the segments of the device");
    heap->reserved += instr->bytes;
    return TSR_OK;
}

/* Takes [from, to) out of a range; what lies behind it becomes a range of its own. */
static tsr_status cut(struct tsr__heap *heap, size_t i, uint64_t from, uint64_t to)
{
    struct tsr__range *range = &heap->ranges[i], behind = *range;
    uint64_t end = range->address + range->bytes;
    range->bytes = from - range->address;
    behind.address = to;
    behind.bytes = end - to;
    heap->reserved -= to - from;
    if (behind.bytes && !TSR_PUSH(heap->ranges, heap->n_ranges, heap->cap_ranges, behind))
        return tsr_fail(TSR_ENOMEM, "no memory left for the segments of the device");
    if (!heap->ranges[i].bytes)
        heap->ranges[i] = heap->ranges[--heap->n_ranges];
    return TSR_OK;
}

static tsr_status remove_range(struct tsr__heap *heap, const struct tsr_instr *instr)
{
    uint64_t first = instr->address, last = instr->address + instr->bytes;
    for (size_t i = heap->n_ranges; i-- > 0;) {
        const struct tsr__range *range = &heap->ranges[i];
        uint64_t from = tsr_max_u64(range->address, first);
        uint64_t to = tsr_min_u64(range->address + range->bytes, last);
        if (range->segment == instr->segment && from < to)
            TSR_TRY(cut(heap, i, from, to));
    }
    return TSR_OK;
}

tsr_status tsr__heap_apply(struct tsr__heap *heap, const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_ALLOC:
        return on_alloc(heap, instr);
    case TSR_FREE:
        return on_free(heap, instr);
    case TSR_SEGMENT_ALLOC:
        return add_range(heap, instr);
    case TSR_SEGMENT_FREE:
        return remove_range(heap, instr);
    default:
        return TSR_OK;
    }
}

/* ---- in order of address ------------------------------------------------------------------ */

static int by_address(const void *a, const void *b)
{
    const struct tsr__range *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

void tsr__heap_tidy(struct tsr__heap *heap)
{
    size_t n = 0;
    if (heap->n_ranges)
        qsort(heap->ranges, heap->n_ranges, sizeof *heap->ranges, by_address);
    for (size_t i = 0; i < heap->n_ranges; i++) {
        struct tsr__range *last = n ? &heap->ranges[n - 1] : NULL;
        if (last && last->segment == heap->ranges[i].segment &&
            last->address + last->bytes == heap->ranges[i].address)
            last->bytes += heap->ranges[i].bytes;
        else
            heap->ranges[n++] = heap->ranges[i];
    }
    heap->n_ranges = n;
}

static int by_block_address(const void *a, const void *b)
{
    const struct tsr_instr *x = *(const struct tsr_instr *const *)a;
    const struct tsr_instr *y = *(const struct tsr_instr *const *)b;
    if (x->address != y->address)
        return x->address > y->address ? 1 : -1;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

tsr_status tsr__heap_live(const struct tsr__heap *heap, const struct tsr_instr ***out, size_t *n)
{
    const struct tsr_instr **live = malloc((heap->n_buffers + (size_t)1) * sizeof *live);
    *n = 0;
    *out = live;
    if (!live)
        return tsr_fail(TSR_ENOMEM, "no memory left for %u buffers", heap->n_buffers);
    for (uint32_t i = 0; i < heap->n_buffers; i++) {
        if (heap->live[i])
            live[(*n)++] = heap->live[i];
    }
    if (*n)
        qsort(live, *n, sizeof *live, by_block_address);
    return TSR_OK;
}

tsr_status tsr__heap_largest_hole(const struct tsr__heap *heap, uint64_t *bytes)
{
    const struct tsr_instr **live;
    size_t n, k = 0;
    *bytes = 0;
    TSR_TRY(tsr__heap_live(heap, &live, &n));
    for (size_t i = 0; i < heap->n_ranges; i++) {
        const struct tsr__range *range = &heap->ranges[i];
        uint64_t at = range->address, end = range->address + range->bytes;
        while (k < n && live[k]->address < range->address)
            k++;
        for (; k < n && live[k]->address < end; k++) {
            *bytes = tsr_max_u64(*bytes, live[k]->address - at);
            at = live[k]->address + live[k]->block_bytes;
        }
        *bytes = tsr_max_u64(*bytes, end - at);
    }
    free(live);
    return TSR_OK;
}
