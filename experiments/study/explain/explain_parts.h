/* explain_parts.h: the parts that an explanation is made of, for explain.c. */
#ifndef TSR_STUDY_EXPLAIN_PARTS_H
#define TSR_STUDY_EXPLAIN_PARTS_H

#include "experiments/study/explain/explain.h"
#include "experiments/study/job/emit.h"

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

/* Texts and lists belong to `arena`. */
tsr_status tsr_explain_place_of(const struct tsr_program *program, size_t instr,
                                struct tsr_arena *arena,
                                struct tsr_explain_place *out) TSR_MUST_USE;
/* Of a memory that was replayed up to some instruction of `program`. */
tsr_status tsr_explain_alive_at(const struct tsr_memory *memory, const struct tsr_program *program,
                                struct tsr_arena *arena,
                                struct tsr_explain_alive *out) TSR_MUST_USE;
/* Explains any set of live allocations; `bytes`: their sum. */
tsr_status tsr_explain_alive_of(const struct tsr_instr *const *live, size_t n, uint64_t bytes,
                                const struct tsr_program *program, struct tsr_arena *arena,
                                struct tsr_explain_alive *out) TSR_MUST_USE;
tsr_status tsr_explain_allocator_at(const struct tsr_memory *memory,
                                    const struct tsr_tables *tables, struct tsr_arena *arena,
                                    struct tsr_explain_allocator *out) TSR_MUST_USE;

/* Phases, and the next-highest local maxima; `peak` is the instruction of the peak. */
tsr_status tsr_explain_peaks(const struct tsr_explained *e, size_t peak,
                             struct tsr_explanation *out) TSR_MUST_USE;

/* Fills out->host; out->row is filled. */
tsr_status tsr_explain_host_of(const struct tsr_emission *emission,
                               struct tsr_explanation *out) TSR_MUST_USE;

#endif
