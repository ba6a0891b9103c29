/* emit.h: the step programs of a strategy: one engine per rank class, iteration after iteration.
 */
#ifndef TSR_STUDY_EMIT_H
#define TSR_STUDY_EMIT_H

#include "experiments/study/job/fit.h"
#include "experiments/study/job/job.h"
#include "sim/sim.h"

/* With initialisation, load, eval, save, and a step beside it. */
enum { TSR_MAX_ITERATIONS = 64 + 6 + 4 };

/* program->iteration of what is not an iteration. */
enum { TSR_PROGRAM_INIT = -1, TSR_PROGRAM_LOAD = -2, TSR_PROGRAM_EVAL = -3, TSR_PROGRAM_SAVE = -4 };
/* Up to where tsr_emit_rank() emits; iteration I is I + 1. */
enum { TSR_UNTIL_INIT = 0, TSR_UNTIL_LOAD = 1000, TSR_UNTIL_EVAL, TSR_UNTIL_SAVE };
#define TSR_UNTIL_STEADY UINT32_MAX

/* One rank class: its engine, and its programs; programs[0] is the initialisation, then come
 * load, the iterations, eval and save, as far as `phases` asks for them; behind a save that goes on
 * beside the next step, that step. */
struct tsr_emitted_class {
    uint32_t rank; /* the representative */
    struct tsr_engine *engine;
    struct tsr_recorder *recorder; /* owned; the engine's executor */
    struct tsr_program *programs[TSR_MAX_ITERATIONS];
    uint64_t hashes[TSR_MAX_ITERATIONS]; /* of the programs, where asked for; 0: not yet */
};

/* Owns the classes with their engines and programs. Invariants: class_of[rank] < n_classes; each
 * class has n_iterations programs, of the same kinds in the same order; first and steady are
 * indices into them. */
struct tsr_emission {
    uint32_t world, n_classes, n_iterations; /* all programs of a class */
    uint32_t first, steady;                  /* indices of iteration 0 and of the steady one */
    uint32_t *class_of;                      /* [world] */
    struct tsr_emitted_class *classes;
    struct tsr_fit fit; /* of tsr_emit() and tsr_emit_or_keep() without a job->limit_bytes */
    double seconds;     /* wall time of this machine */
};

/* Emits the initialisation and at least `settings->iterations` iterations; stops when the last two
 * have equal program and offset hashes, or after a few more (a note if the programs differ then).
 * Errors: those of the engine; TSR_EOOM: the allocator's limit was reached. On failure nothing is
 * to be freed. */
tsr_status tsr_emit(const struct tsr_job *job, struct tsr_emission *out) TSR_MUST_USE;
/* tsr_program_hash() of program k of a class, which is made once. */
uint64_t tsr_emitted_hash(struct tsr_emitted_class *class, uint32_t k);
/* Rank 0 does more than the others: it reads or writes a full state dict. */
bool tsr_rank_0_differs(const struct tsr_settings *settings);
/* The section that program i is; TSR_N_SECTIONS for later iterations. */
enum tsr_section tsr_section_of(const struct tsr_emission *emission, uint32_t i);

/* Seconds that program i adds to a run, by when each program ends; a save that goes on beside the
 * next step: what that step takes longer than step_s, too. */
double tsr_section_added(const struct tsr_emission *emission, const double *end, uint32_t i,
                         double step_s);

/* As tsr_emit(), but after TSR_EOOM *out has what was emitted, to be freed: n_iterations whole
 * programs, and after them the one that was cut off (programs[n_iterations]; the engine that ran
 * out knows tsr_engine_oom()). */
tsr_status tsr_emit_or_keep(const struct tsr_job *job, struct tsr_emission *out) TSR_MUST_USE;

/* As tsr_emit() for one rank alone, up to `until` (TSR_UNTIL_..., I + 1). */
tsr_status tsr_emit_rank(const struct tsr_job *job, uint32_t rank, uint32_t until,
                         struct tsr_emission *out) TSR_MUST_USE;
void tsr_emission_fini(struct tsr_emission *emission);

/* ---- for the simulator ----------------------------------------------------------------------- */

/* All iterations of all classes; borrows the emission. */
tsr_status tsr_sim_job_of(const struct tsr_emission *emission,
                          struct tsr_sim_job *out) TSR_MUST_USE;
void tsr_sim_job_fini(struct tsr_sim_job *job);
/* The simulator names an option of its own ("slow_rank: found 9"): says where the user gave it.
 * Returns `status`. */
tsr_status tsr_at_sim_key(const struct tsr_job *job, tsr_status status);

#endif
