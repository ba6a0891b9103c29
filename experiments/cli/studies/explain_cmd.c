/* explain_cmd.c: `tessera explain`: where the peak of a strategy comes from, and what would lower
 * it.
 */
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/out_file.h"
#include "experiments/study/explain/explain.h"
#include "experiments/study/explain/what_if.h"
#include "experiments/study/report/report_rows.h"
#include "experiments/study/simulate/oom.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/simulate/peak.h"
#include "experiments/study/simulate/simulate.h"

static const char *const formats[] = {"text", "json", NULL};

static tsr_status explain_peak(void *report, const struct tsr_job *job,
                               struct tsr_emission *emission, struct tsr_row *row)
{
    TSR_TRY(tsr_peak_of(job, emission, row));
    return tsr_explain(job, emission, row, report);
}

static tsr_status gather(const struct tsr_args *args, struct tsr_experiment *experiment,
                         const struct tsr_job *job, json_t *report)
{
    struct tsr_row row;
    json_t *what_if = NULL;
    TSR_TRY(tsr_with_programs(job, &row, explain_peak, report));
    if (args->no_what_if)
        return TSR_OK;
    TSR_TRY(tsr_what_if(experiment, job, args->jobs, args->time, &what_if));
    json_object_set_new(report, "what_if", what_if);
    return TSR_OK;
}

static tsr_status print(const struct tsr_args *args, const json_t *report)
{
    if (!strcmp(args->format, "json"))
        return tsr_print_report(stdout, report);
    tsr_explain_print(stdout, report, (size_t)args->top);
    const json_t *what_if = json_object_get(report, "what_if");
    if (what_if)
        tsr_explain_print_what_if(stdout, what_if);
    return TSR_OK;
}

static tsr_status explain(const struct tsr_args *args, struct tsr_experiment *experiment)
{
    const struct tsr_strategy *strategy = NULL;
    struct tsr_job job;
    TSR_TRY(tsr_experiment_find(experiment, args->strategy, &strategy));
    TSR_TRY(tsr_job_open(experiment, strategy, args->time ? TSR_NEEDS_ALL : TSR_MAY_LACK_CLUSTER,
                         &job));
    json_t *report = json_object();
    tsr_status status = report ? gather(args, experiment, &job, report)
                               : tsr_fail(TSR_ENOMEM, "out of memory: the report");
    if (status == TSR_OK)
        status = print(args, report);
    json_decref(report);
    tsr_job_close(&job);
    return status;
}

tsr_status tsr_cmd_explain(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_experiment experiment;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->print_config)
        return tsr_print_config(args);
    TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &experiment));
    tsr_status status = explain(args, &experiment);
    tsr_experiment_fini(&experiment);
    return status;
}
