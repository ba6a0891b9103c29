/* samples.c: see the header. */
#include "experiments/study/simulate/samples.h"

#include <stdlib.h>

#include "sim/base/quantile.h"

tsr_status tsr_samples_check(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (s->samples == 1 || tsr_is_noisy(&s->sim.conditions))
        return TSR_OK;
    return tsr_node_error(tsr_job_at(job, "sim.samples"),
                          "sim.samples: found %llu without noise: all samples are equal; allowed: "
                          "1, or with sim.jitter_kernel or sim.jitter_gpu above 0",
                          (unsigned long long)s->samples);
}

static tsr_status one_step(const struct tsr_job *job, const struct tsr_sim_job *run,
                           uint64_t number, uint32_t iteration, double *step)
{
    struct tsr_sim_options options = job->settings->sim;
    struct tsr_sim_result *result;
    struct tsr_metrics metrics;
    options.conditions.seed += number;
    TSR_TRY(tsr_sim_run(&job->cluster, run, &options, &result));
    tsr_status status = tsr_metrics_of(run, result, iteration, &metrics, NULL);
    *step = metrics.step_s;
    tsr_sim_result_destroy(result);
    return status;
}

tsr_status tsr_samples_take(const struct tsr_job *job, const struct tsr_sim_job *run,
                            uint32_t iteration, struct tsr_row *row)
{
    size_t n = job->settings->samples;
    tsr_status status = TSR_OK;
    if (n <= 1)
        return TSR_OK;
    double *steps = calloc(n, sizeof *steps);
    if (!steps)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    steps[0] = row->steady.step_s;
    for (size_t i = 1; i < n && status == TSR_OK; i++)
        status = one_step(job, run, i, iteration, &steps[i]);
    if (status == TSR_OK) {
        struct tsr_samples *s = &row->samples;
        tsr_sort_ascending(steps, n);
        s->n = (uint32_t)n;
        for (size_t i = 0; i < n; i++)
            s->mean_s += steps[i] / (double)n;
        s->p5_s = tsr_quantile(steps, n, 0.05);
        s->p50_s = tsr_quantile(steps, n, 0.50);
        s->p95_s = tsr_quantile(steps, n, 0.95);
    }
    free(steps);
    return status;
}
