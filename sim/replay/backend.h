/* backend.h: the three things that SimGrid is asked for: a kernel on a GPU, a flow over a route, a
 * delay. Private to sim/; lives in the forked child only (SimGrid starts once per process).
 */
#ifndef TSR_SIM_BACKEND_H
#define TSR_SIM_BACKEND_H

#include <stdio.h>

#include "sim/fold/fold.h"

/* ---- the platform file ----------------------------------------------------------------------- */

/* The simulated job as a SimGrid platform description.
 *
 * A route is any list of links, so endpoints are hosts of their own: o<i> for the way out, i<i> for
 * the way in. Only used pairs get a route. The GPUs that compute are hosts g<i>. */

/* SimGrid cuts flows to whole bytes; giving sizes and rates in 1/1024 byte keeps the fractions of
 * a collective's share. */
#define TSR__BYTE_SCALE 1024.0
/* Speed of a GPU host: a kernel of t seconds is an exec of t * this. */
#define TSR__GPU_SPEED 1e9

/* Kernels of collectives that may slow the other kernels of a GPU; more count as so many. */
enum { TSR__MAX_BESIDE = 4 };

struct tsr__platform {
    uint32_t n_out, n_in;
    uint32_t *out, *in; /* [route]: endpoint numbers */
};

/* Errors: TSR_ENOMEM. Built in the child, which ends with it: nothing is freed. */
tsr_status tsr__platform_build(const struct tsr__quotient *quotient,
                               struct tsr__platform *platform) TSR_MUST_USE;

/* ---- the clock of a GPU: how much work a kernel that runs has got at any time ----------------
 *
 * Kernels at once share the GPU equally, and run slower beside a collective's kernel; SimGrid says
 * when the last of a train of kernels ends. When those before it ended follows from the rates in
 * between: the clock adds them up. Its work is seconds of a kernel that has the GPU to itself.
 */

struct tsr__gpu_clock {
    struct tsr__rate {
        double since, work; /* work: done since the start, at `since` */
        double rate;        /* work per second from then on */
    } * rates;
    size_t n, cap;
};

/* Work done up to a time that is not forgotten; and when it was done. */
double tsr__gpu_clock_work(const struct tsr__gpu_clock *clock, double time);
double tsr__gpu_clock_time(const struct tsr__gpu_clock *clock, double work);

/* ---- SimGrid --------------------------------------------------------------------------------- */

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
