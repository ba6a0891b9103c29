/* study.c: studies (study.h): opens an experiment and runs all its strategies. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "experiments/study/base/files.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/study.h"

tsr_status tsr_study_open(const struct tsr_study_request *request, struct tsr_study **out)
{
    *out = NULL;
    struct tsr_study *study = calloc(1, sizeof *study);
    if (!study)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_study_read(request, study);
    if (status == TSR_OK)
        *out = study;
    else
        free(study);
    return status;
}

void tsr_study_close(struct tsr_study *study)
{
    if (study)
        tsr_study_fini(study);
    free(study);
}

size_t tsr_study_n_strategies(const struct tsr_study *study)
{
    return study->experiment.n;
}

const char *tsr_study_strategy(const struct tsr_study *study, size_t i)
{
    return study->experiment.strategies[i].name;
}

tsr_status tsr_study_print(struct tsr_study *study, char **out)
{
    return tsr_experiment_print(&study->experiment, out);
}

tsr_status tsr_study_check(struct tsr_study *study)
{
    return tsr_study_build(study);
}

const struct tsr_study_info *tsr_study_info(const struct tsr_study *study)
{
    return study->jobs ? &study->info : NULL;
}

/* ---- all strategies ---------------------------------------------------------------------- */

/* The row of a run that `run --profile --out RUN` left, and in `out` the files behind it. */
static tsr_status load_measured(const char *run, const char *out, struct tsr_row *row)
{
    char path[4096], name[256], to[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/measured/summary.json", run);
    json_t *summary = json_load_file(path, 0, &error);
    const json_t *first = json_array_get(json_object_get(summary, "rows"), 0);
    if (!first) {
        json_decref(summary);
        return tsr_fail(TSR_ECONFIG,
                        "--measured: %s: found no profile (%s); allowed: the --out folder of "
                        "tessera run --profile",
                        path, summary ? "no rows" : error.text);
    }
    tsr__row_of_json(first, row);
    json_decref(summary);
    if (!out)
        return TSR_OK;
    tsr__folder_name(row->strategy, name, sizeof name);
    snprintf(path, sizeof path, "%s/measured/%s", run, name);
    snprintf(to, sizeof to, "%s/%s", out, name);
    if (tsr_folder_copy(path, to) == TSR_OK)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--measured: %s", tsr_error_text());
}

tsr_status tsr_study_compare(struct tsr_study *study, const struct tsr_compare_options *options,
                             struct tsr_comparison *out)
{
    const char *dir = study->request.out;
    tsr_status status = TSR_OK;
    *out = (struct tsr_comparison){.n = 0};
    TSR_TRY(tsr_study_build(study));
    if (dir)
        TSR_TRY(tsr_prepare_out(dir));
    out->n = study->n;
    out->rows = calloc(study->n + 1, sizeof *out->rows);
    if (!out->rows)
        TSR_GOTO(failed, tsr_no_memory(NULL));
    if (options->measured)
        TSR_GOTO(failed, load_measured(options->measured, dir, &out->rows[out->n++]));
    TSR_GOTO(failed, tsr_pool_run(study, dir, options->jobs, NULL, out->rows));
    return TSR_OK;
failed:
    tsr_comparison_fini(out);
    return status;
}

void tsr_comparison_fini(struct tsr_comparison *comparison)
{
    free(comparison->rows);
    *comparison = (struct tsr_comparison){.n = 0};
}

tsr_status tsr_study_write(const struct tsr_study *study, const struct tsr_comparison *comparison)
{
    return tsr_study_files(study, study->request.out, comparison->rows, comparison->n);
}

tsr_status tsr_study_jobs(struct tsr_study *study, struct tsr_tenants *out)
{
    TSR_TRY(tsr_study_build(study));
    TSR_TRY(tsr_tenants_read(study, out));
    tsr_status status = tsr_tenants_simulate(study, out);
    if (status != TSR_OK)
        tsr_tenants_fini(out);
    return status;
}
