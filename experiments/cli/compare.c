/* compare.c: `tessera compare`: every strategy of a file, one table. */
#include <stdlib.h>

#include "cmd.h"
#include "measured.h"
#include "report.h"
#include "report_file.h"
#include "study.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

static tsr_status compare(const struct tsr_args *args, const struct tsr_study *study)
{
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    struct tsr_row *rows = calloc(study->n + 1, sizeof(*rows));
    size_t n = study->n;
    if (!rows)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    tsr_status status = TSR_OK;
    if (args->measured)
        status = tsr_measured_load(args->measured, args->out, &rows[n++]);
    if (status == TSR_OK)
        status = tsr_pool_run(study, args->out, args->jobs, rows);
    if (status == TSR_OK)
        status = tsr_report_table(stdout, args->format, &study->info, rows, n);
    if (status == TSR_OK)
        status = tsr_flush(stdout, "standard output");
    if (status == TSR_OK)
        tsr_study_notes(study);
    if (status == TSR_OK && args->out)
        status = tsr_study_write(study, args->out, rows, n);
    free(rows);
    return status;
}

static tsr_status run(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_study study;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->print_config)
        return tsr_print_config(args);
    TSR_TRY(tsr_study_open(args, &study));
    tsr_status status = compare(args, &study);
    tsr_study_fini(&study);
    return status;
}

int tsr_cmd_compare(int argc, char **argv)
{
    return tsr_command("compare", argc, argv, run);
}
