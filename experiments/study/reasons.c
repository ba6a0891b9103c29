/* reasons.c: studies of one strategy, and of two (study.h): why memory peaks, what communication is
 * exposed, what failures cost, where two runs part.
 */
#include <string.h>

#include "experiments/study/diff/diff_parts.h"
#include "experiments/study/explain/what_if.h"
#include "experiments/study/simulate/oom.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/simulate/peak.h"
#include "experiments/study/simulate/simulate.h"
#include "experiments/study/study.h"

/* ---- explain ----------------------------------------------------------------------------- */

static tsr_status explain_peak(void *explanation, const struct tsr_job *job,
                               struct tsr_emission *emission, struct tsr_row *row)
{
    TSR_TRY(tsr_peak_of(job, emission, row));
    return tsr_explain(job, emission, row, explanation);
}

tsr_status tsr_study_explain(struct tsr_study *study, const struct tsr_reason_options *options,
                             struct tsr_explanation *out)
{
    const struct tsr_strategy *strategy = NULL;
    struct tsr_job job;
    struct tsr_row row;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr_experiment_find(&study->experiment, NULL, &strategy));
    TSR_TRY(tsr_job_open(&study->experiment, strategy,
                         options->time ? TSR_NEEDS_ALL : TSR_MAY_LACK_CLUSTER, &job));
    tsr_status status = tsr_with_programs(&job, &row, explain_peak, out);
    if (status == TSR_OK && !options->no_what_if)
        status = tsr_what_if(&study->experiment, &job, options->jobs, options->time, out);
    if (status != TSR_OK)
        tsr_explanation_fini(out);
    tsr_job_close(&job);
    return status;
}

/* ---- overlap ----------------------------------------------------------------------------- */

struct taken {
    const struct tsr_study_info *info;
    struct tsr_overlap_table *table;
};

static tsr_status take(void *user, const struct tsr_detail *detail)
{
    const struct taken *taken = user;
    return tsr_overlap_table_of(taken->info, detail, taken->table);
}

static tsr_status simulate(void *taken, const struct tsr_job *job, struct tsr_emission *emission,
                           struct tsr_row *row)
{
    return tsr_simulate_times(job, emission, row, take, taken);
}

tsr_status tsr_study_overlap(struct tsr_study *study, const struct tsr_reason_options *options,
                             struct tsr_overlap_result *out)
{
    const struct tsr_strategy *strategy = NULL;
    struct taken taken = {&study->info, &out->table};
    struct tsr_row row;
    *out = (struct tsr_overlap_result){.has_changes = false};
    TSR_TRY(tsr_experiment_find(&study->experiment, NULL, &strategy));
    TSR_TRY(tsr_study_build(study));
    tsr_status status = tsr_with_programs(&study->jobs[0], &row, simulate, &taken);
    if (status == TSR_OK && !options->no_what_if)
        status = tsr_overlap_what_if(&study->experiment, &study->jobs[0], &row, options->jobs, out);
    if (status != TSR_OK)
        tsr_overlap_result_fini(out);
    return status;
}

/* ---- goodput ----------------------------------------------------------------------------- */

tsr_status tsr_study_goodput(struct tsr_study *study, struct tsr_month *out)
{
    TSR_TRY(tsr_study_build(study));
    if (study->n != 1)
        return tsr_fail(TSR_ECONFIG, "%s: --strategy: none given; allowed: the name of one of %zu",
                        study->experiment.path, study->n);
    return tsr_month_of(&study->jobs[0], out);
}

/* ---- two runs ---------------------------------------------------------------------------- */

/* Numbers of micro-batches on one side alone would only hide what is alike. */
static void merge_micros(struct tsr_diff_run *run)
{
    for (size_t i = 0; i < run->n; i++)
        run->points[i].micro = 0;
}

tsr_status tsr_study_diff(const struct tsr_study_request *a, const struct tsr_study_request *b,
                          struct tsr_diff *out)
{
    struct tsr_diff_run *runs = out->runs;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr_diff_load(a, &runs[0]));
    tsr_status status = tsr_diff_load(b, &runs[1]);
    if (status != TSR_OK) {
        tsr_diff_run_fini(&runs[0]);
        return status;
    }
    if (!strcmp(runs[0].kind, "recording") || !strcmp(runs[1].kind, "recording")) {
        merge_micros(&runs[0]);
        merge_micros(&runs[1]);
    }
    status = tsr_diff_runs(out);
    if (status != TSR_OK)
        tsr_diff_fini(out);
    return status;
}
