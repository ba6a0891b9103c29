/* goodput_month.h: what `tessera goodput` knows of one strategy. */
#ifndef TSR_CLI_GOODPUT_MONTH_H
#define TSR_CLI_GOODPUT_MONTH_H

#include "experiments/study/job/job.h"
#include "experiments/study/job/result.h"
#include "sim/figures/goodput.h"

struct tsr_month {
    const struct tsr_job *job;
    double step_s, save_s; /* simulated; save: the GPUs' part of a checkpoint */
    double checkpoint_bytes;
    double transfer_s;        /* of a checkpoint, to or from storage */
    double low_s, high_s;     /* intervals that were tried */
    uint32_t nodes, try_runs; /* runs of each interval that was tried */
    struct tsr_goodput_input asked, best_in;
    bool has_asked;
    struct tsr_goodput got, best;
};

/* --out: experiment.yaml (the resolved file), goodput.csv (where the time goes, by interval),
 * goodput-frame.csv and the picture of both.
 */
tsr_status tsr_month_write(const struct tsr_month *month, const struct tsr_study_info *info,
                           const char *dir) TSR_MUST_USE;

#endif
