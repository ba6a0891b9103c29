/* goodput_month.h: what a month is worth to a job that fails now and then: work that counts, as a
 * share of the time, by the interval between checkpoints.
 */
#ifndef TSR_STUDY_GOODPUT_MONTH_H
#define TSR_STUDY_GOODPUT_MONTH_H

#include "experiments/study/job/result.h"
#include "sim/figures/goodput.h"

struct tsr_job;

/* The set that gives an experiment the programs that a month is made of: two steps and a save. */
#define TSR_GOODPUT_PHASES "phases=[step1, step2, save]"

/* Times in seconds. Owns nothing. */
struct tsr_month {
    const char *strategy;   /* belongs to the study */
    uint32_t world;         /* GPUs */
    double tokens_per_step; /* of all GPUs */
    double node_mtbf_s;     /* mean time between failures of a node */
    double step_s, save_s;  /* simulated; save: the GPUs' part of a checkpoint */
    double checkpoint_bytes;
    double transfer_s;        /* of a checkpoint, to or from storage */
    double low_s, high_s;     /* intervals that were tried */
    uint32_t nodes, try_runs; /* runs of each interval that was tried */
    /* The month with the interval that goodput.checkpoint_minutes asks for, and with the best one.
     */
    struct tsr_goodput_input asked, best_in;
    bool has_asked;
    struct tsr_goodput got, best;
    /* Around the best one: what costs at most TSR_FLAT_LOSS of the time more. */
    struct tsr_goodput_range flat;
};

/* A share of the time that nobody would move a checkpoint for; well inside p5 to p95 of months. */
#define TSR_FLAT_LOSS 0.001

/* Simulates the step and the checkpoint of a strategy whose phases have a save, then months.
 * Errors: TSR_ECONFIG (no save, a job that fails before a step is over), those of a simulation. */
tsr_status tsr_month_of(const struct tsr_job *job, struct tsr_month *out) TSR_MUST_USE;

/* The files of a folder: experiment.yaml (the resolved file), goodput.csv (where the time goes, by
 * interval), goodput-frame.csv and the picture of both. */
tsr_status tsr_month_write(const struct tsr_month *month, const struct tsr_study_info *info,
                           const char *dir) TSR_MUST_USE;

#endif
