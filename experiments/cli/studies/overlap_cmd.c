/* overlap_cmd.c: `tessera overlap`: which collectives of a step are exposed, why, and what would
 * hide them.
 */
#include <string.h>
#include <sys/stat.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/study_args.h"
#include "experiments/cli/studies/text.h"
#include "experiments/study/base/files.h"
#include "experiments/study/report/report.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/study.h"

static const char *const formats[] = {"text", "json", "csv", NULL};

/* ---- output ------------------------------------------------------------------------------ */

static tsr_status print_report(const struct tsr_args *args,
                               const struct tsr_overlap_result *overlap)
{
    tsr_status status = TSR_OK;
    json_t *report = tsr_overlap_json(args->file, overlap);
    if (!report)
        return tsr_no_memory("the report");
    if (!strcmp(args->format, "json"))
        status = tsr_print_report(stdout, report);
    else
        tsr_overlap_print(stdout, report, (size_t)args->top);
    json_decref(report);
    return status;
}

static tsr_status finish(const struct tsr_args *args, const struct tsr_overlap_result *overlap)
{
    if (!strcmp(args->format, "csv"))
        tsr_overlap_table_print(stdout, &overlap->table);
    else
        TSR_TRY(print_report(args, overlap));
    TSR_TRY(tsr_flush(stdout, "standard output"));
    if (!args->out)
        return TSR_OK;
    TSR_TRY(tsr_overlap_table_write(args->out, &overlap->table));
    return tsr_report_picture(args->out, "overlap");
}

/* ---- the command ------------------------------------------------------------------------- */

static tsr_status overlap_of_folder(const struct tsr_args *args)
{
    struct tsr_overlap_result overlap;
    if (args->n_sets)
        return tsr_fail(TSR_ECONFIG,
                        "overlap: found --set beside %s, a run; allowed: beside an "
                        "experiment file",
                        args->file);
    TSR_TRY(tsr_overlap_load(args->file, args->strategy, &overlap));
    tsr_status status = finish(args, &overlap);
    tsr_overlap_result_fini(&overlap);
    return status;
}

static tsr_status overlap_of_strategy(const struct tsr_args *args, struct tsr_study *study)
{
    const struct tsr_reason_options options = {
        .jobs = args->jobs, .no_what_if = args->no_what_if || !strcmp(args->format, "csv")};
    struct tsr_overlap_result overlap;
    TSR_TRY(tsr_study_overlap(study, &options, &overlap));
    tsr_status status = finish(args, &overlap);
    if (status == TSR_OK)
        tsr_study_notes(study);
    tsr_overlap_result_fini(&overlap);
    return status;
}

tsr_status tsr_cmd_overlap(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_study *study = NULL;
    struct stat info;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    bool is_folder = stat(args->file, &info) == 0 && S_ISDIR(info.st_mode);
    if (args->print_config && !is_folder)
        return tsr_print_config(args);
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    if (is_folder)
        return overlap_of_folder(args);
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = overlap_of_strategy(args, study);
    tsr_study_close(study);
    return status;
}
