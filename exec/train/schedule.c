/* schedule.c: checks a schedule, and the rate of a step. */
#include "exec/train/schedule.h"
#include "engine/program/base.h"

#include <inttypes.h>
#include <math.h>

tsr_status tsr_schedule_check(const struct tsr_schedule *s)
{
    if (!(s->base >= 0) || !isfinite(s->base))
        return tsr_fail(TSR_ECONFIG, "learning rate is %g; allowed: a number from 0 on", s->base);
    if (!(s->min_ratio >= 0 && s->min_ratio <= 1))
        return tsr_fail(TSR_ECONFIG, "minimum ratio of the learning rate is %g; allowed: 0 to 1",
                        s->min_ratio);
    if (s->total_steps == 0)
        return tsr_fail(TSR_ECONFIG, "number of steps is 0; allowed: from 1 on");
    if (s->warmup_steps > s->total_steps)
        return tsr_fail(TSR_ECONFIG,
                        "train.warmup: found %" PRIu64 "; allowed: up to train.steps, %" PRIu64,
                        s->warmup_steps, s->total_steps);
    return TSR_OK;
}

double tsr_schedule_factor(const struct tsr_schedule *s, uint64_t step)
{
    static const double pi = 3.14159265358979323846;
    if (step < s->warmup_steps)
        return (double)(step + 1) / (double)(s->warmup_steps + 1);
    if (s->kind == TSR_SCHEDULE_CONSTANT)
        return 1;
    step = tsr_min_u64(step, s->total_steps);
    double p =
        (double)(step + 1 - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps + 1);
    double shape = s->kind == TSR_SCHEDULE_LINEAR ? 1 - p : 0.5 * (1 + cos(pi * p));
    return s->min_ratio + (1 - s->min_ratio) * shape;
}

double tsr_learning_rate(const struct tsr_schedule *s, uint64_t step)
{
    return s->base * tsr_schedule_factor(s, step);
}
