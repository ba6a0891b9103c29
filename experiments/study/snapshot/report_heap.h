/* report_heap.h: what is where on the device: the live buffers of engine/program/memory.h, and the
 * addresses of the memory behind them, from the SEGMENT_* instructions of a run, iteration after
 * iteration.
 */
#ifndef TSR_STUDY_REPORT_HEAP_H
#define TSR_STUDY_REPORT_HEAP_H

#include "engine/program/memory.h"

/* Memory that the allocator holds, contiguous. */
struct tsr__range {
    uint64_t address, bytes;
    uint64_t first_bytes; /* of the first device allocation of its segment */
    uint32_t segment;
    uint16_t stream;
    const struct tsr_instr *origin; /* the device allocation that began it */
};

struct tsr__heap {
    struct tsr_memory *memory; /* the live buffers */
    struct tsr__range *ranges;
    size_t n_ranges, cap_ranges;
};

/* Errors: TSR_ENOMEM. */
tsr_status tsr__heap_init(struct tsr__heap *heap) TSR_MUST_USE;
void tsr__heap_fini(struct tsr__heap *heap);
/* Instruction i of a program, which must stay. Errors: those of tsr_memory_replay_part(). */
tsr_status tsr__heap_apply(struct tsr__heap *heap, const struct tsr_program *program,
                           size_t i) TSR_MUST_USE;

/* Sorts the ranges by address; pieces of one expandable segment that touch become one. */
void tsr__heap_tidy(struct tsr__heap *heap);
/* The ALLOCs of the live buffers by address; *out is to be freed. Errors: TSR_ENOMEM. */
tsr_status tsr__heap_live(const struct tsr__heap *heap, const struct tsr_instr ***out,
                          size_t *n) TSR_MUST_USE;

/* Number of buffers of these programs: their ids are below it. */
uint32_t tsr__n_buffers(const struct tsr_program *const *programs, uint32_t n);

#endif
