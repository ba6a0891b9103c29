/* schedule.h: the learning rate as a function of the step.
 *
 * [Note: learning rate] t counts optimizer steps from 0, N is their number, W those of the warm-up.
 * The rate of step t is base * f(t), as PyTorch's LambdaLR(optimizer, f) gives it before step t:
 *     t < W:     f = (t + 1) / (W + 1)
 *     constant:  f = 1
 *     linear:    f = m + (1 - m) (1 - p)
 *     cosine:    f = m + (1 - m) (1 + cos(pi p)) / 2       p = (t + 1 - W) / (N - W + 1), at most 1
 * with m the ratio that the decay ends at. These are torchtitan's formulas (without its stable
 * phase): no step is wasted on a rate of 0, since f(0) > 0 and p < 1 in the last step.
 */
#ifndef TSR_SCHEDULE_H
#define TSR_SCHEDULE_H

#include "engine/program/base.h"

enum tsr_schedule_kind { TSR_SCHEDULE_CONSTANT, TSR_SCHEDULE_LINEAR, TSR_SCHEDULE_COSINE };

struct tsr_schedule {
    enum tsr_schedule_kind kind;
    double base;      /* learning rate at the peak */
    double min_ratio; /* m, 0 to 1 */
    uint64_t warmup_steps, total_steps;
};

/* TSR_ECONFIG: no steps, a warm-up longer than the run, a rate or ratio out of range. */
tsr_status tsr_schedule_check(const struct tsr_schedule *schedule) TSR_MUST_USE;
/* f(t); from t = N on it stays where the decay ends. */
double tsr_schedule_factor(const struct tsr_schedule *schedule, uint64_t step);
double tsr_learning_rate(const struct tsr_schedule *schedule, uint64_t step);

#endif
