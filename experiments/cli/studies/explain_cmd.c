/* explain_cmd.c: `tessera explain`: where the peak of a strategy comes from, and what would lower
 * it.
 */
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/study_args.h"
#include "experiments/cli/studies/text.h"
#include "experiments/study/report/report.h"
#include "experiments/study/study.h"

static const char *const formats[] = {"text", "json", NULL};

static tsr_status print(const struct tsr_args *args, const struct tsr_explanation *explanation)
{
    tsr_status status = TSR_OK;
    json_t *report = tsr_explain_json(explanation);
    const json_t *what_if = json_object_get(report, "what_if");
    if (!report)
        return tsr_no_memory("the report");
    if (!strcmp(args->format, "json")) {
        status = tsr_print_report(stdout, report);
    } else {
        tsr_explain_print(stdout, report, (size_t)args->top);
        if (what_if)
            tsr_explain_print_what_if(stdout, what_if);
    }
    json_decref(report);
    return status;
}

static tsr_status explain(const struct tsr_args *args, struct tsr_study *study)
{
    const struct tsr_reason_options options = {
        .jobs = args->jobs, .no_what_if = args->no_what_if, .time = args->time};
    struct tsr_explanation explanation;
    TSR_TRY(tsr_study_explain(study, &options, &explanation));
    tsr_status status = print(args, &explanation);
    tsr_explanation_fini(&explanation);
    return status;
}

tsr_status tsr_cmd_explain(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_study *study = NULL;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->print_config)
        return tsr_print_config(args);
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = explain(args, study);
    tsr_study_close(study);
    return status;
}
