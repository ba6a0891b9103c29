/* overlap.h: which collectives of an iteration are exposed, for how long, and why.
 *
 * All of it is read from a program and its spans, so a simulated and a measured run are treated
 * alike. Times are seconds on the clock of the spans.
 *
 * Exposed is what metrics.h calls so: a collective runs and the compute stream is idle. While
 * several run, one of them is charged: an all-gather before a reduction before the rest, the
 * earlier one first. So the charged seconds add up to the exposed communication of the iteration,
 * and those of all-gathers to its exposed all-gathers.
 *
 * Why: first, the compute stream may be idle because its own next work was not launched: the host
 * was late, or waited for memory, or the device had another order. Or the collective itself may not
 * run yet, since another rank has not come. Else compute waits for communication, and the question
 * is why that comes so late.
 *
 * Between the moment when its data were there and its start, a collective was held up, at each
 * instant by one thing (the host, its communicator, ...). Without that thing it would have run
 * then, beside the compute of that time. So exposed seconds are charged to what held it up, the
 * last thing first, each as far as compute ran meanwhile. What is left is the transfer's own: there
 * was no compute to run beside.
 */
#ifndef TSR_SIM_OVERLAP_H
#define TSR_SIM_OVERLAP_H

#include "sim/replay/result.h"

enum tsr_exposure {
    TSR_EXPOSED_HOST,         /* the host issued it late */
    TSR_EXPOSED_COMMUNICATOR, /* a collective of another kind held its communicator */
    TSR_EXPOSED_BUFFER,       /* waited until memory that it writes was given up */
    TSR_EXPOSED_ORDER,        /* behind work or waits of a stream that it does not need */
    TSR_EXPOSED_RANKS,        /* another rank had not come yet */
    TSR_EXPOSED_BANDWIDTH,    /* no compute beside it, also if all transfers were issued at once */
    TSR_N_EXPOSURES
};

enum tsr_overlap_kind {
    TSR_OVERLAP_GATHER_FORWARD,
    TSR_OVERLAP_GATHER_BACKWARD,
    TSR_OVERLAP_REDUCE_SCATTER,
    TSR_OVERLAP_ALL_REDUCE,
    TSR_OVERLAP_OTHER,
    TSR_N_OVERLAP_KINDS
};

/* A collective or message that runs in the window of the iteration. */
struct tsr_overlap_item {
    uint32_t iteration; /* index of its program */
    size_t instr;
    uint8_t kind; /* enum tsr_overlap_kind */
    struct tsr_sim_span span;
    /* Of the part in the window; hidden + exposed + beside is its length. */
    double hidden;  /* the compute stream works */
    double exposed; /* the compute stream is idle, and this collective is charged with it */
    double beside;  /* idle, and another collective is charged */
    double why[TSR_N_EXPOSURES]; /* sum: exposed */
};

struct tsr_overlap_total {
    uint32_t n;
    uint64_t bytes; /* of the big side */
    double seconds; /* of the parts in the window: hidden + exposed + beside */
    double hidden, exposed, beside;
    double why[TSR_N_EXPOSURES];
};

/* The collectives of one iteration. Owns items; `all` and `kinds` are sums over them. */
struct tsr_overlap {
    double start, step_s, compute_s, comm_s, host_bound_s; /* as in metrics.h */
    double exposed_s;
    double unlaunched_s;            /* of host_bound_s: the next work of compute was not issued */
    struct tsr_overlap_item *items; /* [n], in issue order */
    size_t n;
    struct tsr_overlap_total kinds[TSR_N_OVERLAP_KINDS], all;
};

/* One rank's programs and times. Borrowed. */
struct tsr_overlap_run {
    const struct tsr_program *const *programs; /* [n_iterations] */
    struct tsr_sim_span *const *spans;         /* [n_iterations] */
    const double *iteration_end;               /* [n_iterations] */
    uint32_t n_iterations;
    const double *joined; /* as in struct tsr_sim_rank; NULL: unknown */
};

/* Errors: TSR_EINDEX, TSR_ENOMEM. On failure nothing is to be freed. */
tsr_status tsr_overlap_of(const struct tsr_overlap_run *run, uint32_t iteration,
                          struct tsr_overlap *out) TSR_MUST_USE;
void tsr_overlap_fini(struct tsr_overlap *overlap);

/* The reason with most of its exposed seconds; TSR_N_EXPOSURES if it is not exposed. */
enum tsr_exposure tsr_overlap_main_reason(const double why[TSR_N_EXPOSURES]);

/* "host late", ... and "all-gather, forward", ...; keys: "host_late", "all_gather_forward". */
const char *tsr_exposure_name(int reason);
const char *tsr_exposure_key(int reason);
const char *tsr_overlap_kind_name(int kind);
const char *tsr_overlap_kind_key(int kind);

#endif
