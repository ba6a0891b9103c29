/* samples.h: a strategy simulated again and again with other noise: percentiles of its step. */
#ifndef TSR_CLI_SAMPLES_H
#define TSR_CLI_SAMPLES_H

#include "experiments/study/job/job.h"
#include "experiments/study/job/result.h"

/* Fails if sim.samples asks for several samples of a simulation without noise. */
tsr_status tsr_samples_check(const struct tsr_job *job) TSR_MUST_USE;
/* Simulates `run` with the seeds that follow the strategy's (whose sample is row->steady) and fills
 * in row->samples; does nothing if sim.samples is 1. `iteration` is the steady one. */
tsr_status tsr_samples_take(const struct tsr_job *job, const struct tsr_sim_job *run,
                            uint32_t iteration, struct tsr_row *row) TSR_MUST_USE;

#endif
