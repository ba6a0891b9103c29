/* memory.h: the memory of a rank, replayed from its program in host issue order.
 *
 * Peaks are counted in issue order, which does not depend on time: it is what PyTorch's
 * max_memory_allocated() reports. Bytes are block bytes (what the allocator took) unless said.
 */
#ifndef TSR_MEMORY_H
#define TSR_MEMORY_H

#include "program.h"

/* Carries the live buffers from one iteration to the next. */
struct tsr_memory;
tsr_status tsr_memory_create(struct tsr_memory **out) TSR_MUST_USE;
void tsr_memory_destroy(struct tsr_memory *memory);

struct tsr_memory_sample {
    size_t instr;       /* index in the program: state after this ALLOC or FREE */
    uint64_t total;     /* sum of by_category */
    uint64_t reserved;  /* device allocations held */
    uint64_t requested; /* what was asked for; total minus this was lost to rounding */
    uint64_t by_category[TSR_N_CATEGORIES];
};
typedef void (*tsr_memory_fn)(void *user, const struct tsr_memory_sample *sample);

struct tsr_memory_peak {
    uint64_t allocated, reserved; /* maxima over the iteration; the level at the start counts */
    uint64_t by_category[TSR_N_CATEGORIES]; /* at the first moment of the allocated maximum */
    size_t instr;                           /* of that moment */
    struct tsr_origin origin;               /* of the allocation that made it */
    uint64_t end_allocated;                 /* at the end of the iteration */
};
/* Replays one iteration after the ones replayed before; on_sample may be NULL. Errors: TSR_EASSERT
 * if a buffer is freed twice or without having been allocated; TSR_ENOMEM. */
tsr_status tsr_memory_replay(struct tsr_memory *memory, const struct tsr_program *program,
                             tsr_memory_fn on_sample, void *user,
                             struct tsr_memory_peak *peak) TSR_MUST_USE;

#endif
