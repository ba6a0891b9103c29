/* memory.c: replays the ALLOC, FREE and SEGMENT_* instructions of a program.
 *
 * It knows nothing of the allocator's rules: blocks and segments come from the program. Live
 * buffers are kept in a hash map from id to size and category, so that a FREE takes back exactly
 * what its ALLOC took, and so that a buffer may live through many iterations. Who owns a buffer is
 * read from its ALLOC when somebody asks, so that a replay that nobody asks costs nothing more.
 */
#include "engine/program/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct live {
    uint32_t buffer; /* TSR_NO_ID: the slot is empty */
    uint8_t category;
    uint64_t bytes, requested;
    const struct tsr_instr *alloc; /* of the program that was replayed */
};

/* Bytes of one segment number that are held; 0: given back. */
struct held {
    uint32_t segment;
    uint16_t stream;
    uint64_t bytes;
};

struct tsr_memory {
    /* Open addressing with linear probing; n_slots is a power of two, at most half is used. */
    struct live *slots;
    size_t n_slots, n_live;
    uint64_t total, reserved, requested;
    uint64_t by_category[TSR_N_CATEGORIES];
    struct held *held; /* in order of segment numbers */
    size_t n_held, cap_held;
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
    free(memory->held);
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
    *slot = (struct live){instr->buffer, instr->category, instr->block_bytes, instr->bytes, instr};
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

/* Index of the first held segment whose number is not below. */
static size_t find_held(const struct tsr_memory *memory, uint32_t segment)
{
    size_t low = 0, high = memory->n_held;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (memory->held[middle].segment < segment)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static tsr_status on_segment_alloc(struct tsr_memory *memory, const struct tsr_instr *instr)
{
    size_t i = find_held(memory, instr->segment);
    memory->reserved += instr->bytes;
    if (i < memory->n_held && memory->held[i].segment == instr->segment) {
        memory->held[i].bytes += instr->bytes; /* an expandable segment grows */
        return TSR_OK;
    }
    struct held held = {instr->segment, instr->stream, instr->bytes};
    if (!TSR_PUSH(memory->held, memory->n_held, memory->cap_held, held))
        return tsr_fail(TSR_ENOMEM, "no memory left for %zu segments", memory->n_held);
    /* Numbers are handed out in order: nearly always the new one is the last. */
    memmove(&memory->held[i + 1], &memory->held[i], (memory->n_held - 1 - i) * sizeof held);
    memory->held[i] = held;
    return TSR_OK;
}

static tsr_status on_segment_free(struct tsr_memory *memory, const struct tsr_instr *instr,
                                  size_t at)
{
    size_t i = find_held(memory, instr->segment);
    bool known = i < memory->n_held && memory->held[i].segment == instr->segment;
    if (instr->bytes > (known ? memory->held[i].bytes : 0))
        return tsr_fail(TSR_EASSERT,
                        "instruction %zu: %" PRIu64 " bytes of segment %" PRIu32
                        " are released, %" PRIu64 " are reserved",
                        at, instr->bytes, instr->segment, known ? memory->held[i].bytes : 0);
    memory->reserved -= instr->bytes;
    if (!known)
        return TSR_OK;
    memory->held[i].bytes -= instr->bytes;
    if (memory->held[i].bytes == 0) {
        memory->n_held--;
        memmove(&memory->held[i], &memory->held[i + 1],
                (memory->n_held - i) * sizeof *memory->held);
    }
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
        return on_segment_alloc(memory, instr);
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
    *peak = (struct tsr_memory_peak){.reserved = memory->reserved, .requested = memory->requested};
    set_peak(peak, memory, 0, program->n_instrs ? &program->instrs[0].origin : &nowhere);
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        TSR_TRY(apply(memory, instr, i));
        peak->reserved = tsr_max_u64(peak->reserved, memory->reserved);
        peak->requested = tsr_max_u64(peak->requested, memory->requested);
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

/* ---- what is alive ----------------------------------------------------------------------------
 */

tsr_status tsr_memory_replay_part(struct tsr_memory *memory, const struct tsr_program *program,
                                  size_t from, size_t to)
{
    for (size_t i = from; i < to && i < program->n_instrs; i++)
        TSR_TRY(apply(memory, &program->instrs[i], i));
    return TSR_OK;
}

struct tsr_memory_level tsr_memory_level_of(const struct tsr_memory *memory)
{
    struct tsr_memory_level level = {.total = memory->total,
                                     .reserved = memory->reserved,
                                     .requested = memory->requested,
                                     .n_live = memory->n_live};
    memcpy(level.by_category, memory->by_category, sizeof level.by_category);
    return level;
}

static int by_buffer(const void *a, const void *b)
{
    const struct tsr_instr *const *x = a, *const *y = b;
    return ((*x)->buffer > (*y)->buffer) - ((*x)->buffer < (*y)->buffer);
}

tsr_status tsr_memory_live(const struct tsr_memory *memory, const struct tsr_instr ***out,
                           size_t *n)
{
    *n = 0;
    *out = malloc((memory->n_live + 1) * sizeof(**out));
    if (!*out)
        return tsr_fail(TSR_ENOMEM, "no memory left to list %zu live buffers", memory->n_live);
    for (size_t i = 0; i < memory->n_slots; i++) {
        if (memory->slots[i].buffer != TSR_NO_ID)
            (*out)[(*n)++] = memory->slots[i].alloc;
    }
    qsort(*out, *n, sizeof(**out), by_buffer);
    return TSR_OK;
}

tsr_status tsr_memory_segments(const struct tsr_memory *memory, struct tsr_memory_segment **out,
                               size_t *n)
{
    *n = 0;
    *out = malloc((memory->n_held + 1) * sizeof(**out));
    if (!*out)
        return tsr_fail(TSR_ENOMEM, "no memory left to list %zu segments", memory->n_held);
    for (size_t i = 0; i < memory->n_held; i++) {
        const struct held *held = &memory->held[i];
        (*out)[i] = (struct tsr_memory_segment){held->segment, held->stream, held->bytes, 0};
    }
    *n = memory->n_held;
    for (size_t i = 0; i < memory->n_slots; i++) {
        if (memory->slots[i].buffer == TSR_NO_ID)
            continue;
        size_t k = find_held(memory, memory->slots[i].alloc->segment);
        if (k < *n && (*out)[k].segment == memory->slots[i].alloc->segment)
            (*out)[k].used += memory->slots[i].bytes;
    }
    return TSR_OK;
}

/* ---- beside the program ---------------------------------------------------------------------- */

bool tsr_work_has_workspace(const struct tsr_work *work)
{
    return work && (work->op == TSR_OP_GEMM || work->op == TSR_OP_ATTENTION ||
                    work->op == TSR_OP_ATTENTION_BWD);
}

static uint64_t attention_workspace(const struct tsr_instr *instr, bool deterministic)
{
    const uint64_t *d = instr->work->dims; /* batch, heads, kv heads, queries, keys, head size */
    bool half = instr->n_operands > 0 &&
                (instr->operands[0].dtype == TSR_BF16 || instr->operands[0].dtype == TSR_F16);
    uint64_t rows = d[0] * d[1] * d[3];
    if (instr->work->op != TSR_OP_ATTENTION_BWD || !half)
        return 0;
    return deterministic ? rows * d[4] * 2 : rows * d[5] * sizeof(float);
}

uint64_t tsr_workspace_of(const struct tsr_instr *instr, bool deterministic)
{
    if (!tsr_work_has_workspace(instr->work))
        return 0;
    return tsr_max_u64(TSR_WORKSPACE_BYTES, attention_workspace(instr, deterministic));
}

void tsr_workspaces_take(struct tsr_workspaces *w, const struct tsr_instr *instr,
                         bool deterministic)
{
    uint64_t bytes = tsr_workspace_of(instr, deterministic);
    if (instr->stream >= TSR_WORKSPACE_STREAMS || bytes <= w->stream[instr->stream])
        return;
    w->bytes += bytes - w->stream[instr->stream];
    w->stream[instr->stream] = bytes;
}
