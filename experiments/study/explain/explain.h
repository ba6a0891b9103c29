/* explain.h: what a rank's memory is made of at its peaks, as JSON objects; explain_text.c renders
 * them, so that both formats say the same. Everything is read from the emitted programs and their
 * replay. Keys ending in _bytes are bytes: block bytes (what the allocator took) unless
 * "requested".
 */
#ifndef TSR_CLI_EXPLAIN_H
#define TSR_CLI_EXPLAIN_H

#include <jansson.h>
#include <stdio.h>

#include "engine/program/memory.h"
#include "experiments/study/job/emit.h"
#include "experiments/study/job/result.h"

/* Fills `out` (an object) with "peak", "alive", "unsharded", "checkpointing", "phases",
 * "next_peaks" and "allocator" of the rank class whose peak is the largest; "card", "host" and, if
 * `phases` was given, "sections" come from the row. Errors: TSR_ENOMEM. */
tsr_status tsr_explain(const struct tsr_job *job, const struct tsr_emission *emission,
                       const struct tsr_row *row, json_t *out) TSR_MUST_USE;

/* Text of the whole report; `top`: rows of each table at most. */
void tsr_explain_print(FILE *out, const json_t *report, size_t top);
void tsr_explain_print_what_if(FILE *out, const json_t *what_if);

/* ---- parts ------------------------------------------------------------------------------------
 */

/* What is alive in a memory that was replayed up to some instruction of `program`: {bytes, buffers,
 * by_category, owners, modules}. */
tsr_status tsr_explain_alive(const struct tsr_memory *memory, const struct tsr_program *program,
                             json_t **out) TSR_MUST_USE;
/* Requested, allocated and reserved bytes, and the pools. */
tsr_status tsr_explain_allocator(const struct tsr_memory *memory, const struct tsr_tables *tables,
                                 json_t **out) TSR_MUST_USE;

/* One rank class and the iteration that holds its peak. */
struct tsr_explained {
    const struct tsr_emitted_class *class;
    uint32_t index;                   /* of the class */
    uint32_t iteration, n_iterations; /* indices of programs */
    const struct tsr_emission *emission;
    const struct tsr_program *program; /* of the iteration */
};
/* A memory in which all programs before `iteration` and `n_instrs` of it were replayed. */
tsr_status tsr_explain_memory_at(const struct tsr_explained *e, size_t n_instrs,
                                 struct tsr_memory **out) TSR_MUST_USE;

/* Where an instruction is: {phase, micro_batch, module, hook, recompute, operation, instruction}.
 * `alloc` is an ALLOC; anything else has an empty operation. */
json_t *tsr_explain_place(const struct tsr_program *program, size_t alloc);

/* Peaks by phase, and the next-highest local maxima; `peak` is the instruction of the peak. */
tsr_status tsr_explain_peaks(const struct tsr_explained *e, size_t peak, json_t *out) TSR_MUST_USE;
/* "unsharded" and "checkpointing". */
tsr_status tsr_explain_units(const struct tsr_explained *e, size_t peak, json_t *out) TSR_MUST_USE;

#endif
