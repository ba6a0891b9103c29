/* run_prepare.h: what a run needs before its ranks compute: a job, the same on all ranks, and a
 * folder of its own.
 */
#ifndef TSR_CLI_RUN_PREPARE_H
#define TSR_CLI_RUN_PREPARE_H

#include "exec/launch/launch.h"
#include "exec/world/world.h"
#include "experiments/cli/run/run_job.h"

struct tsr_run {
    struct tsr_run_job job;
    bool has_job;
    int lock; /* of the folder; -1: none */
    struct tsr_train_result result;
};

/* All ranks call it; they fail together. world: of processes; NULL: all ranks are in this process.
 * TSR_ECONFIG: a mistake in file or options, the first rank whose keys or options differ from rank
 * 0's, a job of another size than the launcher started. To be closed in any case. */
tsr_status tsr_run_prepare(const struct tsr_args *args, const struct tsr_launch *launch,
                           struct tsr_world *world, struct tsr_run *run) TSR_MUST_USE;
void tsr_run_close(struct tsr_run *run);

#endif
