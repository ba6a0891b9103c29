/* watchdog.h: a thread beside a rank's host thread that sees when the ranks have lost each other:
 * the world hears that one is gone, a communicator reports a failure, or a collective that could
 * run does not end. The host thread may be anywhere then: in a wait, in a launch that blocks
 * because the GPU's queue is full.
 */
#ifndef TSR_EXEC_WATCHDOG_H
#define TSR_EXEC_WATCHDOG_H

#include "exec/cuda/comms/comms.h"

struct tsr_watchdog;

typedef void (*tsr_watchdog_fn)(void *user, tsr_status status, const char *why);

struct tsr_watchdog_config {
    struct tsr_comms *comms; /* borrowed; destroyed after the watchdog is stopped */
    int gpu;                 /* of the rank */
    /* The rank is lost: makes its waits end. Called once, by the watchdog's thread, before the
     * communicators and the world are aborted. May be NULL. */
    tsr_watchdog_fn lost;
    /* The watchdog has not been stopped `grace_s` later: the host thread is in a call that does not
     * end. For a program that ends then. May be NULL. */
    tsr_watchdog_fn stuck;
    void *user;
    double grace_s; /* 0: 15 */
};

tsr_status tsr_watchdog_start(const struct tsr_watchdog_config *config,
                              struct tsr_watchdog **out) TSR_MUST_USE;
/* What was enqueued last on the stream must end. By the host thread, after a collective, or after
 * the launch of a graph that has some; a stream that is being captured is passed over. `what` is
 * copied: "all_gather #12 of 'shard'". */
tsr_status tsr_watchdog_note(struct tsr_watchdog *watchdog, cudaStream_t stream,
                             const char *what) TSR_MUST_USE;
/* By the host thread. NULL is fine. */
void tsr_watchdog_stop(struct tsr_watchdog *watchdog);

#endif
