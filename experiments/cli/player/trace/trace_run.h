/* trace_run.h: one rank of a recorded scenario on the engine: iterations, micro-batches and calls
 * in the scenario's order, with the events of the driver.
 */
#ifndef TSR_CLI_TRACE_RUN_H
#define TSR_CLI_TRACE_RUN_H

#include "experiments/cli/player/trace/trace_result.h"
#include "experiments/cli/player/trace/trace_scenario.h"

/* Looks at what was computed. Each may drain the executor. */
struct tsr_trace_probe {
    void *user;
    tsr_status (*ready)(void *user); /* the model is wrapped and has its values */
    tsr_status (*gradients)(void *user, uint32_t iter); /* before the optimizer */
};

struct tsr_trace_run {
    const struct tsr_scenario *scenario; /* borrowed */
    struct tsr_executor *executor;       /* borrowed */
    const struct tsr_trace_probe *probe; /* may be NULL */
    struct tsr_trace_lists lists;
    struct tsr_engine *e;
    json_t *buckets;
    const char *stage; /* of an error: wrap, call, forward, backward */
    const char *call;  /* with stage "call": which function */
};

/* The engine with the scenario's model. Set scenario and executor first; fini() also on failure. */
tsr_status tsr_trace_create(struct tsr_trace_run *run, uint32_t rank) TSR_MUST_USE;
/* Wraps and runs all iterations: kinds train, ddp and error. */
tsr_status tsr_trace_train(struct tsr_trace_run *run) TSR_MUST_USE;
void tsr_trace_fini(struct tsr_trace_run *run);

#endif
