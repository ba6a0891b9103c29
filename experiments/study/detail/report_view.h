/* report_view.h: one iteration of the shown rank, with what several files of the report derive from
 * it: the device's clock for host instructions, when the compute stream is busy, exposed times.
 */
#ifndef TSR_STUDY_REPORT_VIEW_H
#define TSR_STUDY_REPORT_VIEW_H

#include "experiments/study/job/result.h"
#include "sim/figures/overlap.h"

struct tsr__interval {
    double start, end;
};

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

#endif
