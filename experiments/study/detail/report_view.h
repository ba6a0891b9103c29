/* report_view.h: one iteration of the shown rank, with what several files of the report derive
 * from it: the device's clock for host instructions, when the compute stream is busy, exposed
 * times, bytes in use. */
#ifndef TSR_STUDY_REPORT_VIEW_H
#define TSR_STUDY_REPORT_VIEW_H

#include "experiments/study/job/result.h"
#include "sim/figures/overlap.h"

struct tsr__interval {
    double start, end;
};

/* One iteration of a detail and what its pages derive from it. Borrows the detail; owns clock,
 * exposed, why and busy. */
struct tsr__view {
    const struct tsr_detail *detail;
    const struct tsr_program *program;
    const struct tsr_tables *tables;
    const struct tsr_sim_span *spans;
    uint32_t iteration; /* index in the detail */
    uint16_t compute;   /* index of the compute stream */
    double start, end;  /* of the iteration, on the simulation's clock */
    /* [n_instrs + 1], simulation's clock: when the compute stream starts the next work issued at or
     * after the instruction, or another stream does while the compute stream is idle; never falls.
     * Puts what happens in issue order (memory) on the device's clock. After the last work: its
     * end. */
    double *clock;
    double *exposed; /* [n_instrs], seconds */
    uint8_t *why;    /* [n_instrs]: enum tsr_exposure, the main reason; TSR_N_EXPOSURES: hidden */
    /* When the compute stream runs kernels and copies: disjoint, in order. */
    struct tsr__interval *busy;
    size_t n_busy;
};

/* Errors: TSR_ENOMEM, and those of tsr_exposed_per_instr(). */
tsr_status tsr__view_init(struct tsr__view *view, const struct tsr_detail *detail,
                          uint32_t iteration) TSR_MUST_USE;
void tsr__view_fini(struct tsr__view *view);

/* The parts of `span` in which the compute stream is idle, in order. out has room for `room`;
 * returns how many there are. */
size_t tsr__idle_parts(const struct tsr__view *view, struct tsr__interval span,
                       struct tsr__interval *out, size_t room);

/* A phase of a micro-batch on the device's clock: from its first work to the next phase's.
 * Together they cover the iteration. */
struct tsr__phase {
    uint8_t phase;
    uint16_t micro;
    double start, end;
};
/* *out is to be freed. */
tsr_status tsr__phases(const struct tsr__view *view, struct tsr__phase **out,
                       size_t *n) TSR_MUST_USE;
/* "forward", or "forward 1" if there are several micro-batches. */
void tsr__phase_label(const struct tsr__phase *phase, bool numbered, char *out, size_t size);

/* ---- bytes in use ---------------------------------------------------------------------------- */

/* The second curve of memory: bytes in use on the device, over the device's time.
 *
 * A buffer counts from the start of its first device work to the end of its last: what it was
 * allocated for earlier, or freed for later, by a host that runs ahead, does not matter. A buffer
 * that came with the iteration counts from its start; one that stays counts to its end. */

struct tsr__level {
    double time;    /* simulation's clock */
    uint64_t bytes; /* of blocks, from here to the next level */
};

struct tsr__in_use {
    struct tsr__level *levels; /* times rise; levels[0] is the start of the iteration */
    size_t n;
    uint64_t peak;
};

/* Errors: TSR_ENOMEM. */
tsr_status tsr__in_use_init(struct tsr__in_use *in_use, const struct tsr__view *view) TSR_MUST_USE;
void tsr__in_use_fini(struct tsr__in_use *in_use);

/* The most that is in use from `from` to just before `to` (at `from`, if to <= from). *cursor
 * begins at 0 and may be kept while `from` rises. */
uint64_t tsr__in_use_between(const struct tsr__in_use *in_use, double from, double to,
                             size_t *cursor);

#endif
