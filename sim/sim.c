/* sim.c: one simulation, from the recorded programs to the result: checks, compiles, lists the
 * flows, and hands them to the replay (simulate.c). */
#include <stdlib.h>

#include "sim/cluster/simgrid.h"
#include "sim/network/fabric.h"
#include "sim/options.h"
#include "sim/replay/replay.h"
#include "sim/sim.h"
#include "sim/tape/net.h"
#include "sim/tape/tape.h"

#ifdef TSR_HAVE_SIMGRID
static tsr_status check_job(const struct tsr_sim_job *job, const struct tsr_sim_options *o)
{
    if (!job->world || !job->n_classes || !job->n_iterations)
        return tsr_fail(TSR_EVALUE, "a job without ranks or iterations");
    if (job->n_iterations >= UINT16_MAX)
        return tsr_fail(TSR_EUNSUPPORTED, "a job of %u iterations", job->n_iterations);
    for (uint32_t i = 0; i < job->world; i++)
        if (job->class_of[i] >= job->n_classes)
            return tsr_fail(TSR_EVALUE, "rank %u is of class %u of %u", i, job->class_of[i],
                            job->n_classes);
    TSR_TRY(tsr__options_check(o));
    if (o->slow_factor != 0.0 && o->slow_factor != 1.0 && o->slow_rank >= job->world)
        return tsr_fail(TSR_ECONFIG, "slow_rank: found %u, allowed 0 to %u", o->slow_rank,
                        job->world - 1);
    return tsr_conditions_check(&o->conditions, job->world);
}

static tsr_status run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                      const struct tsr_sim_options *options, struct tsr_sim_result **out)
{
    struct tsr__fabric fabric;
    struct tsr__tapes tapes = {0};
    struct tsr__net net = {0};
    tsr_status status;
    TSR_TRY(check_job(job, options));
    TSR_TRY(tsr__fabric_init(&fabric, cluster, options, job->world));
    TSR_GOTO(done, tsr__tapes_build(cluster, job, options, &tapes));
    TSR_GOTO(done, tsr__net_build(&fabric, &tapes, job, options, &net));
    TSR_GOTO(done, tsr__simulate(&net, out));
done:
    tsr__net_fini(&net);
    tsr__tapes_fini(&tapes);
    tsr__fabric_fini(&fabric);
    return status;
}

void tsr_sim_prepare(void)
{
    (void)!tsr__simgrid_load();
}
#else
void tsr_sim_prepare(void)
{
}

static tsr_status run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                      const struct tsr_sim_options *options, struct tsr_sim_result **out)
{
    (void)cluster, (void)job, (void)options, (void)out;
    return tsr_fail(TSR_EUNSUPPORTED, "this build has no simulator: SimGrid was not found");
}
#endif

tsr_status tsr_sim_run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                       const struct tsr_sim_options *options, struct tsr_sim_result **out)
{
    struct tsr_sim_options timed = tsr__options_timed(options, &cluster->gpu.host);
    *out = NULL;
    return run(cluster, job, &timed, out);
}
