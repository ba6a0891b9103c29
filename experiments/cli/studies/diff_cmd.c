/* diff_cmd.c: `tessera diff`: where the memory of two strategies or recorded runs parts. */
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/study_args.h"
#include "experiments/cli/studies/text.h"
#include "experiments/study/report/report.h"
#include "experiments/study/study.h"

static const char *const formats[] = {"text", "json", NULL};

static tsr_status print(const struct tsr_args *args, const struct tsr_diff *diff)
{
    tsr_status status = TSR_OK;
    json_t *report = tsr_diff_json(diff);
    if (!report)
        return tsr_no_memory("the report");
    if (!strcmp(args->format, "json"))
        status = tsr_print_report(stdout, report);
    else
        tsr_diff_print(stdout, report, (size_t)args->top);
    json_decref(report);
    return status;
}

tsr_status tsr_cmd_diff(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_diff diff;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (!args->second_file)
        return tsr_fail(TSR_ECONFIG, "diff: found one run, %s; allowed: two", args->file);
    TSR_TRY(tsr_args_format(args, formats));
    struct tsr_study_request a = tsr_args_request(args), b = a;
    b.path = args->second_file;
    TSR_TRY(tsr_study_diff(&a, &b, &diff));
    tsr_status status = print(args, &diff);
    tsr_diff_fini(&diff);
    return status;
}
