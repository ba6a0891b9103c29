/* plan_measure.c: one configuration: emitted for its memory, or simulated for its time. */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/plan/plan.h"
#include "experiments/study/simulate/peak.h"
#include "experiments/study/simulate/simulate.h"

uint64_t tsr_plan_need(const struct tsr_row *row)
{
    return row->needed;
}

uint64_t tsr_plan_allocated(const struct tsr_row *row)
{
    return tsr_max_u64(row->peak_allocated, row->first_peak_allocated);
}

double tsr_plan_time(const struct tsr_row *row)
{
    return row->tokens_per_rank ? row->steady.step_s / (double)row->tokens_per_rank : 0;
}

/* ---- bound and key ----------------------------------------------------------------------- */

static tsr_status bound(const struct tsr_job *job, const struct tsr_emission *emission, double *out)
{
    const struct tsr_program *const **programs = calloc(emission->n_classes, sizeof *programs);
    if (!programs)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < emission->n_classes; i++)
        programs[i] = (const struct tsr_program *const *)emission->classes[i].programs;
    struct tsr_sim_job sim = {.world = emission->world,
                              .n_classes = emission->n_classes,
                              .n_iterations = emission->steady + 1,
                              .class_of = emission->class_of,
                              .programs = programs};
    tsr_status status = tsr_sim_step_bound(&job->cluster, &sim, &job->settings->sim, out);
    free(programs);
    return status;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return tsr_hash_bytes(hash, &value, sizeof value);
}

/* Everything that time and memory follow from. */
static tsr_status key_of(const struct tsr_job *job, const struct tsr_emission *emission,
                         const struct tsr_row *row, uint64_t *out)
{
    char text[512];
    uint64_t hash = mix(TSR_HASH_INIT, emission->world);
    hash = tsr_hash_bytes(hash, emission->class_of, emission->world * sizeof *emission->class_of);
    for (uint32_t c = 0; c < emission->n_classes; c++)
        for (uint32_t i = 0; i < emission->n_iterations; i++)
            hash = mix(hash, tsr_program_hash(emission->classes[c].programs[i]));
    for (size_t i = 0; i < tsr_n_keys(); i++) {
        bool priced = !strncmp(tsr_keys[i].name, "sim.", 4) || !strcmp(tsr_keys[i].name, "cluster");
        if (!priced)
            continue;
        TSR_TRY(tsr_key_format(&tsr_keys[i], job->settings, text, sizeof text));
        hash = tsr_hash_bytes(hash, text, strlen(text) + 1);
    }
    hash = mix(hash, row->tokens_per_rank);
    hash = mix(hash, row->peak_allocated);
    hash = mix(hash, row->peak_reserved);
    hash = mix(hash, row->needed);
    hash = mix(hash, row->first_peak_allocated);
    *out = mix(hash, row->first_peak_reserved);
    return TSR_OK;
}

static tsr_status emit(const struct tsr_job *job, bool with_bound, struct tsr_plan_measure *out)
{
    struct tsr_emission emission;
    TSR_TRY(tsr_emit(job, &emission));
    tsr_status status = tsr_peak_of(job, &emission, &out->row);
    if (status == TSR_OK && with_bound)
        status = bound(job, &emission, &out->bound_s);
    if (status == TSR_OK)
        status = key_of(job, &emission, &out->row, &out->key);
    out->row.emit_s = emission.seconds;
    tsr_emission_fini(&emission);
    return status;
}

/* ---- a configuration --------------------------------------------------------------------- */

struct config {
    struct tsr_experiment experiment;
    struct tsr_job job;
};

static tsr_status load(const struct tsr_plan *plan, const char *const *sets, size_t n,
                       struct tsr_experiment *out)
{
    struct tsr_study_request request = plan->request;
    const char **all = malloc((request.n_sets + 1 + n) * sizeof *all);
    size_t n_all = 0;
    if (!all)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < request.n_sets; i++)
        all[n_all++] = request.sets[i];
    all[n_all++] = "sweeps=null";
    for (size_t i = 0; i < n; i++)
        all[n_all++] = sets[i];
    request.sets = all;
    request.n_sets = n_all;
    tsr_status status = tsr_experiment_open(&request, out);
    free(all);
    return status;
}

static tsr_status open_config(const struct tsr_plan *plan, const char *const *sets, size_t n,
                              struct config *out)
{
    const struct tsr_strategy *strategy = NULL;
    TSR_TRY(load(plan, sets, n, &out->experiment));
    tsr_status status = tsr_experiment_find(&out->experiment, plan->base->name, &strategy);
    if (status == TSR_OK)
        status = tsr_job_open(&out->experiment, strategy, TSR_NEEDS_ALL, &out->job);
    if (status != TSR_OK)
        tsr_experiment_fini(&out->experiment);
    return status;
}

static void close_config(struct config *config)
{
    tsr_job_close(&config->job);
    tsr_experiment_fini(&config->experiment);
}

tsr_status tsr_plan_measure(const struct tsr_plan *plan, const char *const *sets, size_t n,
                            bool with_bound, struct tsr_plan_measure *out)
{
    struct config config;
    memset(out, 0, sizeof(*out));
    tsr_status status = open_config(plan, sets, n, &config);
    if (status == TSR_OK) {
        tsr_row_begin(&out->row, &config.job);
        status = emit(&config.job, with_bound, out);
        close_config(&config);
    }
    if (status != TSR_OK)
        tsr_row_fail(&out->row, status);
    return status;
}

tsr_status tsr_plan_simulate(const struct tsr_plan *plan, const char *const *sets, size_t n,
                             struct tsr_row *out)
{
    struct config config;
    memset(out, 0, sizeof(*out));
    tsr_status status = open_config(plan, sets, n, &config);
    if (status == TSR_OK) {
        status = tsr_simulate(&config.job, NULL, NULL, out);
        close_config(&config);
    }
    if (status != TSR_OK)
        tsr_row_fail(out, status);
    return status;
}
