/* report_heap.c: live buffers by address, held memory as a list of ranges. */
#include "experiments/study/snapshot/report_heap.h"

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

tsr_status tsr__heap_init(struct tsr__heap *heap)
{
    *heap = (struct tsr__heap){0};
    return tsr_memory_create(&heap->memory);
}

void tsr__heap_fini(struct tsr__heap *heap)
{
    tsr_memory_destroy(heap->memory);
    free(heap->ranges);
    *heap = (struct tsr__heap){0};
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

tsr_status tsr__heap_apply(struct tsr__heap *heap, const struct tsr_program *program, size_t i)
{
    const struct tsr_instr *instr = &program->instrs[i];
    TSR_TRY(tsr_memory_replay_part(heap->memory, program, i, i + 1));
    if (instr->kind == TSR_SEGMENT_ALLOC)
        return add_range(heap, instr);
    return instr->kind == TSR_SEGMENT_FREE ? remove_range(heap, instr) : TSR_OK;
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
    TSR_TRY(tsr_memory_live(heap->memory, out, n));
    if (*n)
        qsort(*out, *n, sizeof(**out), by_block_address);
    return TSR_OK;
}
