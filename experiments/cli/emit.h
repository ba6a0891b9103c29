/* emit.h: the step programs of a strategy: one engine per rank class, iteration after iteration.
 */
#ifndef TSR_CLI_EMIT_H
#define TSR_CLI_EMIT_H

#include "job.h"

enum { TSR_MAX_ITERATIONS = 64 + 6 }; /* with the initialisation */

/* One rank class: its engine, and its programs; programs[0] is the initialisation (iteration -1).
 */
struct tsr_emitted_class {
    uint32_t rank; /* the representative */
    struct tsr_engine *engine;
    struct tsr_recorder recorder;
    struct tsr_program *programs[TSR_MAX_ITERATIONS];
};

struct tsr_emission {
    uint32_t world, n_classes, n_iterations; /* with the initialisation */
    uint32_t *class_of;                      /* [world] */
    struct tsr_emitted_class *classes;
    double seconds; /* wall time of this machine */
};

/* Emits the initialisation and at least `settings->iterations` iterations; stops when the last two
 * have equal program and offset hashes, or after a few more (a note if the programs differ then).
 * Errors: those of the engine; TSR_EOOM: the allocator's limit was reached. On failure nothing is
 * to be freed. */
tsr_status tsr_emit(const struct tsr_job *job, struct tsr_emission *out) TSR_MUST_USE;

/* As tsr_emit(), but after TSR_EOOM *out has what was emitted, to be freed: n_iterations whole
 * ones, and after them the one that was cut off (programs[n_iterations]; the engine that ran out
 * knows tsr_engine_oom()). */
tsr_status tsr_emit_or_keep(const struct tsr_job *job, struct tsr_emission *out) TSR_MUST_USE;

/* As tsr_emit() for one rank alone, up to `last` (index with the initialisation) or, if that is
 * UINT32_MAX, until steady. */
tsr_status tsr_emit_rank(const struct tsr_job *job, uint32_t rank, uint32_t last,
                         struct tsr_emission *out) TSR_MUST_USE;
void tsr_emission_fini(struct tsr_emission *emission);

#endif
