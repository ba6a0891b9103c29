/* internal.h: entry for tests: tsr_sim_run() with a planted fault. Private to sim/ and tests/sim.
 */
#ifndef TSR_SIM_INTERNAL_H
#define TSR_SIM_INTERNAL_H

#include "sim/replay/tape.h"

/* Called once per class after compilation; may change the tasks that are replayed. */
typedef void tsr__tamper_fn(void *user, uint32_t class, struct tsr__tape *tape);

tsr_status tsr__sim_run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                        const struct tsr_sim_options *options, tsr__tamper_fn *tamper, void *user,
                        struct tsr_sim_result **out) TSR_MUST_USE;

#endif
