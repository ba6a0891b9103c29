/* backend_none.c: stands in for backend.c in a build without SimGrid; sim.c refuses before any of
 * this is called. */
#include "sim/replay/backend.h"

#ifndef TSR_HAVE_SIMGRID

struct tsr__backend *tsr__backend_start(const struct tsr__quotient *quotient,
                                        const struct tsr__platform *platform, bool links,
                                        tsr__done_fn *done, void *user)
{
    (void)quotient, (void)platform, (void)links, (void)done, (void)user;
    return NULL;
}

bool tsr__backend_submit(struct tsr__backend *backend, const struct tsr__activity *activity)
{
    (void)backend, (void)activity;
    return false;
}

void tsr__backend_run(struct tsr__backend *backend)
{
    (void)backend;
}

double tsr__backend_now(void)
{
    return 0.0;
}

uint64_t tsr__backend_activities(const struct tsr__backend *backend)
{
    (void)backend;
    return 0;
}

#endif
