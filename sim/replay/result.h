/* result.h: the result of a simulation in memory that the child shares. Private to sim/. */
#ifndef TSR_SIM_RESULT_H
#define TSR_SIM_RESULT_H

#include "sim/fold/quotient.h"
#include "sim/replay/replay.h"

/* A zeroed result with room for everything; `*verdict` lies beside it. */
tsr_status tsr__result_create(const struct tsr__quotient *quotient, const struct tsr_sim_job *job,
                              struct tsr_sim_result **out,
                              struct tsr__verdict **verdict) TSR_MUST_USE;

#endif
