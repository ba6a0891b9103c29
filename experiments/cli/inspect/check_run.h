/* check_run.h: the schedule checker (engine/check/check.h) over whatever the command line can emit:
 * a strategy, a recorded-run scenario, a memory scenario.
 */
#ifndef TSR_CLI_CHECK_RUN_H
#define TSR_CLI_CHECK_RUN_H

#include "engine/check/check.h"
#include "experiments/cli/player/memory/memory_scenario.h"
#include "experiments/cli/player/trace/trace.h"
#include "experiments/study/job/job.h"

enum {
    TSR_CHECK_ITERATIONS = 3,
    TSR_CHECK_ALL_RANKS = 64 /* larger worlds: a rank of each class */
};

struct tsr_check_source {
    const struct tsr_job *job; /* one of these; borrowed */
    const struct tsr_scenario *scenario;
    const struct tsr_memory_scenario *memory;
};

/* What was checked. The engines are kept because findings point into them. */
struct tsr_check_run {
    struct tsr_checker *checker;
    struct tsr_engine **engines;  /* [world]; NULL: the rank is like another */
    struct tsr_trace_run *traces; /* [world]; of recorded-run scenarios: own the engines */
    uint32_t world;
};

/* Emits init, the iterations and the phases that a strategy has, for every rank or one of each
 * class, into a checker. Close *run in any case. Errors: those of emission; defects are findings.
 */
tsr_status tsr_check_run(const struct tsr_check_source *source,
                         struct tsr_check_run *run) TSR_MUST_USE;
void tsr_check_run_close(struct tsr_check_run *run);

#endif
