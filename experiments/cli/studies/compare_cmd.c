/* compare_cmd.c: `tessera compare`: every strategy of a file, one table. */
#include <stdio.h>
#include <stdlib.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/study/base/files.h"
#include "experiments/study/compare/part.h"
#include "experiments/study/report/report.h"
#include "experiments/study/study.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

static tsr_status print(const struct tsr_args *args, const struct tsr_study_info *info,
                        const struct tsr_row *rows, size_t n)
{
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    return tsr_page_end(
        &page, tsr_report_table(page.out, page.notes, tsr_page_format_narrow(args), info, rows, n));
}

static tsr_status compare(const struct tsr_args *args, struct tsr_study *study)
{
    const struct tsr_compare_options options = {.jobs = args->jobs, .measured = args->measured};
    struct tsr_comparison rows;
    if (args->emit[0])
        TSR_TRY(tsr_code_prepare(args->emit[0], args->emit[1]));
    TSR_TRY(tsr_study_compare(study, &options, &rows));
    tsr_status status = print(args, tsr_study_info(study), rows.rows, rows.n);
    if (status == TSR_OK)
        tsr_study_notes(study);
    if (status == TSR_OK && args->out)
        status = tsr_study_write(study, &rows);
    if (status == TSR_OK && args->emit[0])
        status = tsr_study_code(study, &rows, args->emit[0], args->emit[1]);
    tsr_comparison_fini(&rows);
    return status;
}

/* ---- a part of a sweep ------------------------------------------------------------------- */

/* Runs a part, and prints its rows alone. */
static tsr_status run_part(const struct tsr_args *args, const struct tsr_study *study,
                           const struct tsr_sweep_part *part, struct tsr_row *rows)
{
    size_t n = 0;
    TSR_TRY(tsr_prepare_out(args->out));
    TSR_TRY(tsr_part_run(study, part, args->out, args->jobs, rows));
    for (size_t i = 0; i < study->n; i++)
        if (tsr_part_has(part, i))
            rows[n++] = rows[i];
    TSR_TRY(print(args, &study->info, rows, n));
    fprintf(stderr,
            "tessera: note: part %llu of %llu; all of them: tessera compare --merge DIR...\n",
            (unsigned long long)part->index, (unsigned long long)part->of);
    return TSR_OK;
}

static tsr_status compare_part(const struct tsr_args *args, struct tsr_study *study)
{
    struct tsr_sweep_part part;
    TSR_TRY(tsr_study_check(study));
    TSR_TRY(tsr_part_parse(args->part, &part));
    if (!args->out || args->measured || args->emit[0])
        return tsr_fail(TSR_ECONFIG,
                        "--part: found %s; allowed: --part with --out DIR, without --measured and "
                        "--emit",
                        args->measured  ? "--measured"
                        : args->emit[0] ? "--emit"
                                        : "no --out");
    struct tsr_row *rows = calloc(study->n + 1, sizeof *rows);
    tsr_status status = rows ? run_part(args, study, &part, rows) : tsr_no_memory(NULL);
    free(rows);
    return status;
}

static tsr_status print_merged(const struct tsr_args *args, const struct tsr_merged *merged)
{
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    TSR_TRY(print(args, &merged->study.info, merged->rows, merged->study.n));
    tsr_study_notes(&merged->study);
    return args->out ? tsr_merged_write(merged) : TSR_OK;
}

static tsr_status merge(const struct tsr_args *args)
{
    struct tsr_merged merged;
    enum tsr_pictures pictures;
    if (!args->n_files)
        return tsr_fail(TSR_ECONFIG, "--merge: found no folder; allowed: those of the parts");
    if (args->part || args->measured || args->n_sets || args->only || args->emit[0] ||
        args->no_traces || args->traces)
        return tsr_fail(
            TSR_ECONFIG,
            "--merge: found --part, --measured, --set, --only, --emit, --traces or --no-traces; "
            "allowed: --out, --format, --wide, --pictures");
    TSR_TRY(tsr_args_pictures(args, &pictures));
    TSR_TRY(tsr_merged_open(args->files, args->n_files, args->out, &merged));
    merged.study.request.pictures = pictures;
    tsr_status status = print_merged(args, &merged);
    tsr_merged_fini(&merged);
    return status;
}

tsr_status tsr_cmd_compare(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_study *study = NULL;
    TSR_TRY(tsr_args_format(args, formats));
    if (args->merge)
        return merge(args);
    TSR_TRY(tsr_args_need_file(usage, args));
    if (args->print_config)
        return tsr_print_config(args);
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = args->part ? compare_part(args, study) : compare(args, study);
    tsr_study_close(study);
    return status;
}
