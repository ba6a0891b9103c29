/* sim.c: one simulation from the recorded programs to the result: compile, fold, fork. */
#include "sim/sim.h"

#include "sim/fold/fold.h"
#include "sim/fold/quotient.h"
#include "sim/internal.h"
#include "sim/network/fabric.h"
#include "sim/replay/child.h"
#include "sim/replay/result.h"
#include "sim/replay/tape.h"

/* Above this many ranks an unfolded simulation takes minutes and gigabytes. */
enum { MAX_UNFOLDED = 2048 };

static tsr_status check_factor(const char *name, double value)
{
    if (value >= 0.0 && value < 1e12) /* false for NaN too */
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: found %g, allowed 0 or more", name, value);
}

/* An overriding rate in bytes per second; 0: no override. */
static tsr_status check_rate(const char *name, double value)
{
    if (value == 0.0 || (value >= 1e3 && value <= 1e18))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: found %g, allowed 0 or 1e3 to 1e18 bytes per second", name,
                    value);
}

static tsr_status check_options(const struct tsr_sim_options *o)
{
    const struct {
        const char *name;
        double value;
    } factors[] = {
        {"host_launch_s", o->host_launch_s},   {"host_compiled_s", o->host_compiled_s},
        {"host_region_s", o->host_region_s},   {"host_collective_s", o->host_collective_s},
        {"host_event_s", o->host_event_s},     {"host_alloc_s", o->host_alloc_s},
        {"host_segment_s", o->host_segment_s}, {"host_scale", o->host_scale},
        {"latency_scale", o->latency_scale},   {"slow_factor", o->slow_factor},
    };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        TSR_TRY(check_factor(factors[i].name, factors[i].value));
    TSR_TRY(check_rate("nic_bw", o->nic_bw));
    TSR_TRY(check_rate("intra_bw", o->intra_bw));
    if (o->max_connections > TSR__MAX_CONNECTIONS)
        return tsr_fail(TSR_ECONFIG, "cuda_device_max_connections: found %u, allowed 0 to %d",
                        o->max_connections, TSR__MAX_CONNECTIONS);
    return TSR_OK;
}

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
    TSR_TRY(check_options(o));
    if (o->slow_factor != 0.0 && o->slow_factor != 1.0 && o->slow_rank >= job->world)
        return tsr_fail(TSR_ECONFIG, "slow_rank: found %u, allowed 0 to %u", o->slow_rank,
                        job->world - 1);
    return tsr_conditions_check(&o->conditions, job->world);
}

static tsr_status unfolded(const struct tsr__net *net, struct tsr__quotient *q)
{
    struct tsr__partition partition;
    if (net->job->world > MAX_UNFOLDED && tsr_is_noisy(&net->options->conditions))
        return tsr_fail(TSR_ECONFIG,
                        "jitter_%s: found %g with %u ranks, which all differ then; allowed: 0, or "
                        "up to %u ranks",
                        net->options->conditions.jitter_kernel > 0.0 ? "kernel" : "gpu",
                        net->options->conditions.jitter_kernel > 0.0
                            ? net->options->conditions.jitter_kernel
                            : net->options->conditions.jitter_gpu,
                        net->job->world, (unsigned)MAX_UNFOLDED);
    if (net->job->world > MAX_UNFOLDED)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "%u ranks cannot be simulated without folding, allowed up to %u",
                        net->job->world, (unsigned)MAX_UNFOLDED);
    TSR_TRY(tsr__fold_none(net, &partition));
    tsr_status status = tsr__quotient_build(net, &partition, q);
    tsr__partition_fini(&partition);
    return status;
}

/* Folded where that is asked for and possible. */
static tsr_status fold(const struct tsr__net *net, bool twin, struct tsr__quotient *q)
{
    struct tsr__partition partition;
    if (!net->options->fold || tsr_is_noisy(&net->options->conditions))
        return unfolded(net, q);
    TSR_TRY(tsr__fold_refine(net, twin, &partition));
    tsr_status status = tsr__fold_check(net, &partition);
    if (status == TSR_OK)
        status = tsr__quotient_build(net, &partition, q);
    tsr__partition_fini(&partition);
    return status == TSR_EUNSUPPORTED && net->job->world <= MAX_UNFOLDED ? unfolded(net, q)
                                                                         : status;
}

/* One simulation. *apart: it must be done again without `twin` (see fold.h). */
static tsr_status simulate_folded(const struct tsr__net *net, bool twin, bool *apart,
                                  struct tsr_sim_result **out)
{
    struct tsr__quotient q;
    struct tsr__verdict *verdict;
    TSR_TRY(fold(net, twin, &q));
    tsr_status status = tsr__result_create(&q, net->job, out, &verdict);
    if (status == TSR_OK) {
        status = tsr__child_run(&q, net->tapes, net->job, net->options, *out, verdict);
        *apart = verdict->apart;
    }
    if (status != TSR_OK) {
        tsr_sim_result_destroy(*out);
        *out = NULL;
    }
    tsr__quotient_fini(&q);
    return status;
}

static tsr_status simulate(const struct tsr__net *net, struct tsr_sim_result **out)
{
    bool apart = false;
    tsr_status status = simulate_folded(net, true, &apart, out);
    return apart ? simulate_folded(net, false, &apart, out) : status;
}

tsr_status tsr__sim_run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                        const struct tsr_sim_options *options, tsr__tamper_fn *tamper, void *user,
                        struct tsr_sim_result **out)
{
    struct tsr__fabric fabric;
    struct tsr__tapes tapes;
    struct tsr__net net;
    *out = NULL;
#ifndef TSR_HAVE_SIMGRID
    return tsr_fail(TSR_EUNSUPPORTED, "this build has no simulator: SimGrid was not found");
#endif
    TSR_TRY(check_job(job, options));
    TSR_TRY(tsr__fabric_init(&fabric, cluster, options, job->world));
    tsr_status status = tsr__tapes_build(cluster, job, options, &tapes);
    if (status != TSR_OK) {
        tsr__fabric_fini(&fabric);
        return status;
    }
    for (uint32_t i = 0; i < tapes.n && tamper; i++)
        tamper(user, i, &tapes.items[i]);
    status = tsr__net_build(&fabric, &tapes, job, options, &net);
    if (status == TSR_OK) {
        status = simulate(&net, out);
        tsr__net_fini(&net);
    }
    tsr__tapes_fini(&tapes);
    tsr__fabric_fini(&fabric);
    return status;
}

tsr_status tsr_sim_run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                       const struct tsr_sim_options *options, struct tsr_sim_result **out)
{
    return tsr__sim_run(cluster, job, options, NULL, NULL, out);
}
