/* child.h: a function called in a forked child, so that whatever it does to its process, SimGrid's
 * aborts included, is news to the caller and nothing else. Private to sim/.
 */
#ifndef TSR_SIM_CHILD_H
#define TSR_SIM_CHILD_H

#include "engine/program/base.h"

struct tsr__child_end {
    int wait_status;     /* of waitpid() */
    char last_line[512]; /* that it wrote to stderr; "" */
};

/* Calls run(user) in a forked child, with signals and stderr of its own, and waits. Only memory
 * that is shared, and files, tell the caller what it did. Errors: TSR_EBACKEND: no child, or lost.
 */
tsr_status tsr__child_call(void (*run)(void *user), void *user,
                           struct tsr__child_end *end) TSR_MUST_USE;

#endif
