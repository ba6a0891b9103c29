/* backend.h: the three things that SimGrid is asked for: a kernel on a GPU, a flow over a route, a
 * delay. Private to sim/; lives in the forked child only (SimGrid starts once per process).
 */
#ifndef TSR_SIM_BACKEND_H
#define TSR_SIM_BACKEND_H

#include "sim/card/gpu_clock.h"
#include "sim/network/platform.h"

/* BESIDE: one more, or one fewer, kernel of a collective runs on a GPU; nobody is told. */
enum tsr__work { TSR__EXEC, TSR__FLOW, TSR__DELAY, TSR__BESIDE };

/* Something for SimGrid to do, after a delay. */
struct tsr__activity {
    enum tsr__work work;
    uint32_t where; /* EXEC, BESIDE: simulated rank; FLOW: route */
    double delay_s; /* first */
    double amount;  /* EXEC: seconds alone; FLOW: bytes; BESIDE: 1 or -1 */
    void *object;   /* the replay's, handed back */
    uint32_t tag;
};

struct tsr__backend;

/* Called at the simulated time at which an activity ends. Must not call SimGrid; may submit. */
typedef void tsr__done_fn(void *user, void *object, uint32_t tag);

/* Starts SimGrid and loads the platform. NULL: no memory. SimGrid aborts the process on what it
 * does not like; the parent reports that. */
struct tsr__backend *tsr__backend_start(const struct tsr__quotient *quotient,
                                        const struct tsr__platform *platform, bool links,
                                        tsr__done_fn *done, void *user);
/* Queues an activity. False: no memory. */
bool tsr__backend_submit(struct tsr__backend *backend, const struct tsr__activity *activity);
/* Runs until nothing is queued or active. */
void tsr__backend_run(struct tsr__backend *backend);
double tsr__backend_now(void);
/* The clock of a simulated rank's GPU: valid from the start of any kernel that runs, and for those
 * that end while done() is called for them. */
const struct tsr__gpu_clock *tsr__backend_clock(const struct tsr__backend *backend, uint32_t rank);
uint64_t tsr__backend_activities(const struct tsr__backend *backend);

#endif
