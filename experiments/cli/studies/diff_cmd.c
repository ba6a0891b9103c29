/* diff_cmd.c: `tessera diff`: where the memory of two strategies or recorded runs parts. */
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/diff/diff.h"
#include "experiments/study/report/report_rows.h"

static const char *const formats[] = {"text", "json", NULL};

/* A recording merges micro-batches: numbers of one side alone would only hide what is alike. */
static void merge_micros(struct tsr_diff_run *run)
{
    for (size_t i = 0; i < run->n; i++)
        run->points[i].micro = 0;
}

static tsr_status print(const struct tsr_args *args, struct tsr_diff_run *a, struct tsr_diff_run *b)
{
    json_t *report = NULL;
    if (!strcmp(a->kind, "recording") || !strcmp(b->kind, "recording")) {
        merge_micros(a);
        merge_micros(b);
    }
    tsr_status status = tsr_diff_report(a, b, &report);
    if (status == TSR_OK && !strcmp(args->format, "json")) {
        status = tsr_print_report(stdout, report);
    } else if (status == TSR_OK) {
        tsr_diff_print(stdout, report, (size_t)args->top);
    }
    json_decref(report);
    return status;
}

tsr_status tsr_cmd_diff(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_diff_run a, b;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (!args->second_file)
        return tsr_fail(TSR_ECONFIG, "diff: found one run, %s; allowed: two", args->file);
    TSR_TRY(tsr_args_format(args, formats));
    TSR_TRY(tsr_diff_load(args->file, args->sets, args->n_sets, &a));
    tsr_status status = tsr_diff_load(args->second_file, args->sets, args->n_sets, &b);
    if (status == TSR_OK) {
        status = print(args, &a, &b);
        tsr_diff_run_fini(&b);
    }
    tsr_diff_run_fini(&a);
    return status;
}
