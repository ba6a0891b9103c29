/* run_profile.h: what `tessera run --profile` keeps of one rank: the programs of its first
 * iterations and when each instruction was issued, began and ended; as the same files that a
 * simulation leaves.
 */
#ifndef TSR_CLI_RUN_PROFILE_H
#define TSR_CLI_RUN_PROFILE_H

#include "exec/executor/executor.h"
#include "experiments/study/job/emit.h"

struct tsr_run_profile {
    struct tsr_executor base;                         /* watches an executor's instructions */
    struct tsr_executor *of;                          /* that executor; borrowed */
    uint32_t wanted, done;                            /* iterations */
    struct tsr_program *programs[TSR_MAX_ITERATIONS]; /* owned */
    uint64_t first_number[TSR_MAX_ITERATIONS];
    uint32_t n;
    uint64_t count; /* instructions seen */
    const struct tsr_tables *tables;
    bool between; /* the latest iteration has ended, and none has begun */
    bool over;
};

/* iterations: of the run, from its first on. */
tsr_status tsr_run_profile_init(struct tsr_run_profile *profile, uint32_t iterations) TSR_MUST_USE;
void tsr_run_profile_fini(struct tsr_run_profile *profile);
/* After the run, drained: DIR/measured/ gets summary.json and, in a folder of the strategy, what
 * `sim --out` writes, with measured times. */
tsr_status tsr_run_profile_write(struct tsr_run_profile *profile, const struct tsr_job *job,
                                 struct tsr_engine *engine, const char *dir) TSR_MUST_USE;

#endif
