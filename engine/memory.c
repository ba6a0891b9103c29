/* memory.c: replays the ALLOC, FREE and SEGMENT_* instructions of a program.
 *
 * It knows nothing of the allocator's rules: blocks and segments come from the program. Live
 * buffers are kept in a hash map from id to size and category, so that a FREE takes back exactly
 * what its ALLOC took, and so that a buffer may live through many iterations.
 */
#include "memory.h"

#include <inttypes.h>
#include <stdlib.h>

struct live {
    uint32_t buffer; /* TSR_NO_ID: the slot is empty */
    uint8_t category;
    uint64_t bytes, requested;
};

struct tsr_memory {
    /* Open addressing with linear probing; n_slots is a power of two, at most half is used. */
    struct live *slots;
    size_t n_slots, n_live;
    uint64_t total, reserved, requested;
    uint64_t by_category[TSR_N_CATEGORIES];
};

enum { FIRST_SLOTS = 1024 };

/* ---- the map of live buffers ----------------------------------------------------------------- */

static size_t home_of(uint32_t buffer, size_t n_slots)
{
    /* Fibonacci hashing: ids are dense numbers and would cluster. */
    return (size_t)((buffer * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (n_slots - 1);
}

/* The slot that holds `buffer`, or the empty one where it belongs. */
static struct live *slot_of(struct live *slots, size_t n_slots, uint32_t buffer)
{
    size_t i = home_of(buffer, n_slots);
    while (slots[i].buffer != TSR_NO_ID && slots[i].buffer != buffer)
        i = (i + 1) & (n_slots - 1);
    return &slots[i];
}

static struct live *slots_create(size_t n_slots)
{
    struct live *slots = malloc(n_slots * sizeof *slots);
    for (size_t i = 0; slots && i < n_slots; i++)
        slots[i] = (struct live){.buffer = TSR_NO_ID};
    return slots;
}

static tsr_status grow(struct tsr_memory *memory)
{
    size_t n_slots = memory->n_slots * 2;
    struct live *slots = slots_create(n_slots);
    if (!slots)
        return tsr_fail(TSR_ENOMEM, "no memory left for %zu live buffers", memory->n_live);
    for (size_t i = 0; i < memory->n_slots; i++) {
        if (memory->slots[i].buffer != TSR_NO_ID)
            *slot_of(slots, n_slots, memory->slots[i].buffer) = memory->slots[i];
    }
    free(memory->slots);
    memory->slots = slots;
    memory->n_slots = n_slots;
    return TSR_OK;
}

/* Empties a slot and moves later members of the same run back, so that no probe meets a hole. */
static void slot_clear(struct tsr_memory *memory, struct live *slot)
{
    size_t mask = memory->n_slots - 1;
    size_t hole = (size_t)(slot - memory->slots);
    for (size_t i = (hole + 1) & mask; memory->slots[i].buffer != TSR_NO_ID; i = (i + 1) & mask) {
        size_t home = home_of(memory->slots[i].buffer, memory->n_slots);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            memory->slots[hole] = memory->slots[i];
            hole = i;
        }
    }
    memory->slots[hole] = (struct live){.buffer = TSR_NO_ID};
    memory->n_live--;
}

tsr_status tsr_memory_create(struct tsr_memory **out)
{
    *out = NULL;
    struct tsr_memory *memory = calloc(1, sizeof *memory);
    struct live *slots = slots_create(FIRST_SLOTS);
    if (!memory || !slots) {
        free(memory);
        free(slots);
        return tsr_fail(TSR_ENOMEM, "no memory left for a memory replay");
    }
    memory->slots = slots;
    memory->n_slots = FIRST_SLOTS;
    *out = memory;
    return TSR_OK;
}

void tsr_memory_destroy(struct tsr_memory *memory)
{
    if (!memory)
        return;
    free(memory->slots);
    free(memory);
}

/* ---- instructions ---------------------------------------------------------------------------- */

static tsr_status on_alloc(struct tsr_memory *memory, const struct tsr_instr *instr, size_t at)
{
    if (instr->category >= TSR_N_CATEGORIES || instr->buffer == TSR_NO_ID)
        return tsr_fail(TSR_EASSERT, "instruction %zu: ALLOC of buffer %" PRIu32 ", category %u",
                        at, instr->buffer, instr->category);
    if (memory->n_live * 2 >= memory->n_slots)
        TSR_TRY(grow(memory));
    struct live *slot = slot_of(memory->slots, memory->n_slots, instr->buffer);
    if (slot->buffer != TSR_NO_ID)
        return tsr_fail(TSR_EASSERT, "instruction %zu: buffer %" PRIu32 " is allocated twice", at,
                        instr->buffer);
    *slot = (struct live){instr->buffer, instr->category, instr->block_bytes, instr->bytes};
    memory->n_live++;
    memory->total += instr->block_bytes;
    memory->requested += instr->bytes;
    memory->by_category[instr->category] += instr->block_bytes;
    return TSR_OK;
}

static tsr_status on_free(struct tsr_memory *memory, const struct tsr_instr *instr, size_t at)
{
    struct live *slot = slot_of(memory->slots, memory->n_slots, instr->buffer);
    if (instr->buffer == TSR_NO_ID || slot->buffer == TSR_NO_ID)
        return tsr_fail(TSR_EASSERT,
                        "instruction %zu: buffer %" PRIu32 " is freed twice or was never allocated",
                        at, instr->buffer);
    memory->total -= slot->bytes;
    memory->requested -= slot->requested;
    memory->by_category[slot->category] -= slot->bytes;
    slot_clear(memory, slot);
    return TSR_OK;
}

static tsr_status on_segment_free(struct tsr_memory *memory, const struct tsr_instr *instr,
                                  size_t at)
{
    if (instr->bytes > memory->reserved)
        return tsr_fail(TSR_EASSERT,
                        "instruction %zu: %" PRIu64 " bytes of segment %" PRIu32
                        " are released, %" PRIu64 " are reserved",
                        at, instr->bytes, instr->segment, memory->reserved);
    memory->reserved -= instr->bytes;
    return TSR_OK;
}

static tsr_status apply(struct tsr_memory *memory, const struct tsr_instr *instr, size_t at)
{
    switch (instr->kind) {
    case TSR_ALLOC:
        return on_alloc(memory, instr, at);
    case TSR_FREE:
        return on_free(memory, instr, at);
    case TSR_SEGMENT_ALLOC:
        memory->reserved += instr->bytes;
        return TSR_OK;
    case TSR_SEGMENT_FREE:
        return on_segment_free(memory, instr, at);
    default:
        return TSR_OK;
    }
}

static void set_peak(struct tsr_memory_peak *peak, const struct tsr_memory *memory, size_t at,
                     const struct tsr_origin *origin)
{
    peak->allocated = memory->total;
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        peak->by_category[c] = memory->by_category[c];
    peak->instr = at;
    peak->origin = *origin;
}

static void send_sample(const struct tsr_memory *memory, size_t at, tsr_memory_fn on_sample,
                        void *user)
{
    struct tsr_memory_sample sample = {.instr = at,
                                       .total = memory->total,
                                       .reserved = memory->reserved,
                                       .requested = memory->requested};
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        sample.by_category[c] = memory->by_category[c];
    on_sample(user, &sample);
}

tsr_status tsr_memory_replay(struct tsr_memory *memory, const struct tsr_program *program,
                             tsr_memory_fn on_sample, void *user, struct tsr_memory_peak *peak)
{
    static const struct tsr_origin nowhere = {.module = TSR_NO_ID, .group = TSR_NO_ID};
    *peak = (struct tsr_memory_peak){.reserved = memory->reserved};
    set_peak(peak, memory, 0, program->n_instrs ? &program->instrs[0].origin : &nowhere);
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        TSR_TRY(apply(memory, instr, i));
        peak->reserved = tsr_max_u64(peak->reserved, memory->reserved);
        if (instr->kind != TSR_ALLOC && instr->kind != TSR_FREE)
            continue;
        if (memory->total > peak->allocated)
            set_peak(peak, memory, i, &instr->origin);
        if (on_sample)
            send_sample(memory, i, on_sample, user);
    }
    peak->end_allocated = memory->total;
    return TSR_OK;
}
