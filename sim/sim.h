/* sim.h: runs recorded step programs on a SimGrid model of a cluster.
 *
 * SimGrid owns time, sharing and contention: every byte between GPUs is a SimGrid flow, every
 * kernel a SimGrid exec. Streams, events and communicator queues are ours (replay.c). One
 * simulation is one child process; the caller gets plain data back. Times are seconds from the
 * start.
 */
#ifndef TSR_SIM_SIM_H
#define TSR_SIM_SIM_H

#include "sim/cluster/cluster.h"
#include "sim/input/job.h"
#include "sim/replay/result.h"

struct tsr_sim_options tsr_sim_options_default(void);

/* Errors: TSR_ECONFIG (world larger than the cluster, a needed value unknown), TSR_EUNSUPPORTED,
 * TSR_EBACKEND (SimGrid failed: its last line; or a deadlock: first blocked instruction of every
 * stream and what it waits for). */
tsr_status tsr_sim_run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                       const struct tsr_sim_options *options,
                       struct tsr_sim_result **out) TSR_MUST_USE;
/* Loads SimGrid in a process whose children simulate, so that they need not each load it. What goes
 * wrong is the error of their tsr_sim_run(). */
void tsr_sim_prepare(void);

/* What a step of the last iteration of `job` (tsr_metrics.step_s) takes at least, seconds; all 0
 * where nothing is known. The parts bound jobs that share them: a step takes at least model_s +
 * optimizer_s, at least the sum of the three parts in kernels, and at least wires_s. */
struct tsr_step_bound {
    bool known;
    double step_s;
    double model_s;     /* from the first to the last of the model's own kernels and collectives */
    double optimizer_s; /* what the optimizer adds to that */
    double model_kernels_s, optimizer_kernels_s; /* of the compute stream */
    double hooks_s; /* its kernels that hooks issue; and what collectives slow others by */
    double wires_s; /* of the busiest stream of collectives */
};

/* Derived from the programs with the simulator's prices; nothing is simulated (bound.c says why no
 * step is shorter). Errors: as tsr_sim_run(). */
tsr_status tsr_sim_step_bound(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                              const struct tsr_sim_options *options,
                              struct tsr_step_bound *out) TSR_MUST_USE;

#endif
