/* overlap_cmd.c: `tessera overlap`: which collectives of a step are exposed, why, and what would
 * hide them.
 */
#include <string.h>
#include <sys/stat.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/out_file.h"
#include "experiments/study/overlap/overlap.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_rows.h"
#include "experiments/study/simulate/oom.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/simulate/peak.h"
#include "experiments/study/simulate/simulate.h"

static const char *const formats[] = {"text", "json", "csv", NULL};

/* ---- a strategy -------------------------------------------------------------------------- */

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

static tsr_status of_strategy(const struct tsr_args *args, struct tsr_study *study,
                              struct tsr_overlap_table *table, json_t **report)
{
    struct tsr_row row;
    json_t *what_if = NULL;
    struct taken taken = {&study->info, table};
    TSR_TRY(tsr_with_programs(&study->jobs[0], &row, simulate, &taken));
    *report = tsr_overlap_json(args->file, table);
    tsr_status status = *report ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory: the report");
    if (status == TSR_OK && !args->no_what_if && strcmp(args->format, "csv") != 0)
        status =
            tsr_overlap_what_if(&study->experiment, &study->jobs[0], &row, args->jobs, &what_if);
    if (what_if)
        json_object_set_new(*report, "what_if", what_if);
    return status;
}

/* ---- output ------------------------------------------------------------------------------ */

static tsr_status print(const struct tsr_args *args, const struct tsr_overlap_table *table,
                        const json_t *report)
{
    if (!strcmp(args->format, "csv")) {
        tsr_overlap_table_print(stdout, table);
        return TSR_OK;
    }
    if (!strcmp(args->format, "json"))
        return tsr_print_report(stdout, report);
    tsr_overlap_print(stdout, report, (size_t)args->top);
    return TSR_OK;
}

static tsr_status finish(const struct tsr_args *args, const struct tsr_overlap_table *table,
                         const json_t *report)
{
    TSR_TRY(print(args, table, report));
    TSR_TRY(tsr_flush(stdout, "standard output"));
    if (!args->out)
        return TSR_OK;
    TSR_TRY(tsr_overlap_table_write(args->out, table));
    return tsr_report_picture(args->out, "overlap");
}

/* ---- the command ------------------------------------------------------------------------- */

static tsr_status overlap_of_folder(const struct tsr_args *args)
{
    struct tsr_overlap_table table;
    if (args->n_sets)
        return tsr_fail(TSR_ECONFIG,
                        "overlap: found --set beside %s, a run; allowed: beside an "
                        "experiment file",
                        args->file);
    TSR_TRY(tsr_overlap_load(args->file, args->strategy, &table));
    json_t *report = tsr_overlap_json(args->file, &table);
    tsr_status status =
        report ? finish(args, &table, report) : tsr_fail(TSR_ENOMEM, "out of memory: the report");
    json_decref(report);
    tsr_overlap_table_fini(&table);
    return status;
}

/* Without --strategy the file must have one. */
static tsr_status name_strategy(struct tsr_args *args)
{
    struct tsr_experiment experiment;
    const struct tsr_strategy *one = NULL;
    if (args->strategy)
        return TSR_OK;
    TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &experiment));
    tsr_status status = tsr_experiment_find(&experiment, NULL, &one);
    tsr_experiment_fini(&experiment);
    return status;
}

static tsr_status overlap_of_file(struct tsr_args *args)
{
    struct tsr_study study;
    struct tsr_overlap_table table = {0};
    json_t *report = NULL;
    TSR_TRY(name_strategy(args));
    TSR_TRY(tsr_study_open(args, &study));
    tsr_status status = of_strategy(args, &study, &table, &report);
    if (status == TSR_OK)
        status = finish(args, &table, report);
    if (status == TSR_OK)
        tsr_study_notes(&study);
    json_decref(report);
    if (table.title)
        tsr_overlap_table_fini(&table);
    tsr_study_fini(&study);
    return status;
}

tsr_status tsr_cmd_overlap(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct stat info;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    bool is_folder = stat(args->file, &info) == 0 && S_ISDIR(info.st_mode);
    if (args->print_config && !is_folder)
        return tsr_print_config(args);
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    return is_folder ? overlap_of_folder(args) : overlap_of_file(args);
}
