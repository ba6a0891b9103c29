/* memory_run.h: one emission of a memory scenario, recorded. */
#ifndef TSR_CLI_MEMORY_RUN_H
#define TSR_CLI_MEMORY_RUN_H

#include "experiments/cli/player/memory/memory_record.h"
#include "experiments/cli/player/memory/memory_scenario.h"

struct tsr_memory_run {
    struct tsr_memory_record record;
    struct tsr_engine *engine;
};

/* Emits all iterations of one variant: PyTorch as it is, or while it is recorded (`instrumented`).
 * Close *run in any case. Errors: TSR_EOOM when the scenario's device is too small, with the
 * allocator's report as text; TSR_ENOMEM; what the engine says of a scenario that it refuses. */
tsr_status tsr_memory_run(const struct tsr_memory_scenario *s, bool instrumented,
                          struct tsr_memory_run *run) TSR_MUST_USE;
void tsr_memory_run_close(struct tsr_memory_run *run);

#endif
