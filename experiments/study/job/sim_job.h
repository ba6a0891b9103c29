/* sim_job.h: the programs of an emission as the simulator takes them. */
#ifndef TSR_STUDY_SIM_JOB_H
#define TSR_STUDY_SIM_JOB_H

#include "experiments/study/job/emit.h"
#include "sim/sim.h"

/* All iterations of all classes; borrows the emission. */
tsr_status tsr_sim_job_of(const struct tsr_emission *emission,
                          struct tsr_sim_job *out) TSR_MUST_USE;
void tsr_sim_job_fini(struct tsr_sim_job *job);
/* The simulator names an option of its own ("slow_rank: found 9"): says where the user gave it.
 * Returns `status`. */
tsr_status tsr_at_sim_key(const struct tsr_job *job, tsr_status status);

#endif
