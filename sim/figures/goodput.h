/* goodput.h: a long run of a job that fails now and then: event by event, with a seed.
 *
 * Failures come at exponentially distributed times, also during a checkpoint or a restart. After
 * one the job is down for restart_s and goes on from the last checkpoint that was complete. Times
 * are seconds.
 */
#ifndef TSR_SIM_GOODPUT_H
#define TSR_SIM_GOODPUT_H

#include "engine/program/base.h"

/* A job that saves, fails and starts again; times in seconds. */
struct tsr_goodput_input {
    double mtbf_s;     /* mean time between failures of the whole job */
    double interval_s; /* work from one checkpoint to the next */
    double stall_s;    /* the job stands still for a checkpoint */
    double write_s;    /* then it is written beside the work; 0: it is complete after the stall. A
                          checkpoint that is due waits until the one before it is complete */
    double restart_s;  /* from a failure to the first step after it, with loading */
    double horizon_s;
    uint64_t seed;
    uint32_t runs; /* simulated one after the other, each with numbers of its own */
};

/* Shares of the horizon, means over the runs; they add up to 1. */
struct tsr_goodput {
    double useful;                            /* work that counted */
    double lost;                              /* work that a failure undid */
    double checkpoint;                        /* standing still for checkpoints */
    double restart;                           /* down */
    double useful_p5, useful_p50, useful_p95; /* over the runs */
    double failures, checkpoints;             /* per run */
};

/* Errors: TSR_EVALUE for a time that is negative, or 0 where something has to pass. */
tsr_status tsr_goodput_simulate(const struct tsr_goodput_input *input,
                                struct tsr_goodput *out) TSR_MUST_USE;
/* The interval with the highest mean of useful work, between `low` and `high`, to about 1 %; all
 * candidates meet the same failures. in->interval_s is ignored. */
tsr_status tsr_goodput_best(const struct tsr_goodput_input *input, double low, double high,
                            double *interval_s, struct tsr_goodput *out) TSR_MUST_USE;

/* The optimum is flat: from.interval_s to to.interval_s around in->interval_s, within [low, high],
 * the mean of useful work is at most `loss` (a share of the time) below that of in->interval_s.
 * Ends are found by halving, to about 1 %. Errors: also TSR_EVALUE for an interval outside. */
struct tsr_goodput_range {
    double from_s, to_s;
};
tsr_status tsr_goodput_flat(const struct tsr_goodput_input *in, double low, double high,
                            double loss, struct tsr_goodput_range *out) TSR_MUST_USE;

#endif
