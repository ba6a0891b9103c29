/* child.h: one simulation is one forked child. Private to sim/. */
#ifndef TSR_SIM_CHILD_H
#define TSR_SIM_CHILD_H

#include "sim/replay/replay.h"

struct tsr__child_end {
    int wait_status;     /* of waitpid() */
    char last_line[512]; /* that it wrote to stderr; "" */
};

/* Calls run(user) in a forked child, with signals and stderr of its own, and waits. Only memory
 * that is shared, and files, tell the caller what it did. Errors: TSR_EBACKEND: no child, or lost.
 */
tsr_status tsr__child_call(void (*run)(void *user), void *user,
                           struct tsr__child_end *end) TSR_MUST_USE;

/* Forks, replays in the child, waits. SimGrid's abort or crash becomes TSR_EBACKEND with the last
 * line that the child wrote to stderr. */
tsr_status tsr__child_run(const struct tsr__quotient *quotient, const struct tsr__tapes *tapes,
                          const struct tsr_sim_job *job, const struct tsr_sim_options *options,
                          struct tsr_sim_result *result, struct tsr__verdict *verdict) TSR_MUST_USE;

#endif
