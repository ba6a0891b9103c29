/* metrics.h: figures of an iteration, derived from the program and its timed replay, nothing else.
 */
#ifndef TSR_SIM_METRICS_H
#define TSR_SIM_METRICS_H

#include "sim/input/job.h"
#include "sim/replay/result.h"

/* Figures of one iteration of one rank, seconds unless said otherwise. exposed_gather_s +
 * exposed_reduce_s <= exposed_s: what is neither has no figure of its own. */
struct tsr_metrics {
    double step_s;    /* end of this iteration minus end of the one before */
    double compute_s; /* compute stream busy */
    double comm_s;    /* at least one collective runs */
    double exposed_s; /* a collective runs and the compute stream is idle */
    double exposed_gather_s,
        exposed_reduce_s;            /* by what ran then (all-gather; reduce-scatter, all-reduce) */
    double host_bound_s;             /* compute idle, no collective: waiting for the host */
    double flops, model_flops;       /* per rank */
    uint64_t sent_intra, sent_inter; /* bytes of the rank */
    uint64_t n_collectives;
};

/* Of the slowest simulated rank; *rank (may be NULL) is its global rank. */
tsr_status tsr_metrics_of(const struct tsr_sim_job *job, const struct tsr_sim_result *result,
                          uint32_t iteration, struct tsr_metrics *out, uint32_t *rank) TSR_MUST_USE;

/* Exposed part of each collective: seconds of [start, end) during which the compute stream is idle.
 * out[n_instrs], 0 for other instructions. */
tsr_status tsr_exposed_per_instr(const struct tsr_program *program,
                                 const struct tsr_sim_span *spans, double *out) TSR_MUST_USE;

#endif
