/* part_merge.c: `compare --merge`: the tables and files of one run from its parts (part.h). */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/disk.h"
#include "experiments/study/base/folder.h"
#include "experiments/study/base/out_file.h"
#include "experiments/study/compare/part.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"

struct merge {
    const struct tsr_args *args;
    struct tsr_study study;
    struct tsr_part_rows rows;
    json_t *said;              /* study.json */
    const char **home;         /* [strategy]: the folder that has it */
    struct tsr_row *collected; /* [strategy] */
};

static tsr_status same_experiment(const char *first, const char *other)
{
    char path[2][TSR_PATH_BYTES];
    char *text[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    TSR_TRY(tsr_path(path[0], "%s/experiment.yaml", first));
    TSR_TRY(tsr_path(path[1], "%s/experiment.yaml", other));
    tsr_status status = tsr_disk_read_file(path[0], 1 << 28, &text[0], &n[0]);
    if (status == TSR_OK)
        status = tsr_disk_read_file(path[1], 1 << 28, &text[1], &n[1]);
    bool same = status == TSR_OK && n[0] == n[1] && !memcmp(text[0], text[1], n[0]);
    free(text[0]);
    free(text[1]);
    if (status != TSR_OK)
        return tsr_fail(TSR_ECONFIG,
                        "--merge: %s: found no experiment.yaml; allowed: what compare --part "
                        "I/N --out left",
                        other);
    return same ? TSR_OK
                : tsr_fail(TSR_ECONFIG,
                           "--merge: %s: found another experiment than that of %s; allowed: parts "
                           "of one experiment",
                           other, first);
}

/* The study as the parts saw it: its file is where the first part copied it. */
static tsr_status open_study(struct merge *m)
{
    char path[TSR_PATH_BYTES];
    const char *dir = m->args->files[0];
    struct tsr_args args = *m->args;
    for (size_t i = 0; i < m->args->n_files; i++)
        TSR_TRY(same_experiment(dir, m->args->files[i]));
    TSR_TRY(tsr_path(path, "%s/experiment.yaml", dir));
    args.file = path;
    TSR_TRY(tsr_study_open(&args, &m->study));
    TSR_TRY(tsr_path(path, "%s/study.json", dir));
    m->said = json_load_file(path, 0, NULL);
    const char *title = json_string_value(json_object_get(m->said, "title"));
    const char *file = json_string_value(json_object_get(m->said, "experiment_file"));
    if (!title || !file)
        return tsr_fail(TSR_ECONFIG,
                        "--merge: %s: found no title and file in it; allowed: what compare --part "
                        "I/N --out left",
                        path);
    m->study.info.title = title;
    m->study.info.config_path = file;
    return TSR_OK;
}

static tsr_status find(struct merge *m, size_t item)
{
    for (size_t i = 0; i < m->args->n_files && !m->home[item]; i++) {
        bool found;
        TSR_TRY(tsr_part_find(&m->rows, m->args->files[i], item, &m->collected[item], &found));
        if (found)
            m->home[item] = m->args->files[i];
    }
    return TSR_OK;
}

static tsr_status collect(struct merge *m)
{
    size_t missing = 0, first = 0;
    for (size_t i = 0; i < m->study.n; i++) {
        TSR_TRY(find(m, i));
        if (!m->home[i] && missing++ == 0)
            first = i;
    }
    if (!missing)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "--merge: found no row of %s%s (%zu of %zu strategies); allowed: parts that "
                    "were run to their end, by this version, with these files",
                    m->study.jobs[first].strategy->name, missing > 1 ? " and others" : "", missing,
                    m->study.n);
}

static tsr_status copy_files(const struct merge *m, const char *out)
{
    for (size_t i = 0; i < m->study.n; i++) {
        char name[256], from[TSR_PATH_BYTES], to[TSR_PATH_BYTES];
        tsr__folder_name(m->study.jobs[i].strategy->name, name, sizeof name);
        TSR_TRY(tsr_path(from, "%s/%s", m->home[i], name));
        TSR_TRY(tsr_path(to, "%s/%s", out, name));
        TSR_TRY(tsr_folder_copy(from, to));
    }
    return TSR_OK;
}

static tsr_status report(const struct merge *m)
{
    const struct tsr_args *args = m->args;
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    TSR_TRY(tsr_report_table(stdout, args->format, &m->study.info, m->collected, m->study.n));
    TSR_TRY(tsr_flush(stdout, "standard output"));
    tsr_study_notes(&m->study);
    if (!args->out)
        return TSR_OK;
    TSR_TRY(copy_files(m, args->out));
    return tsr_study_write(&m->study, args->out, m->collected, m->study.n);
}

static tsr_status merge(struct merge *m)
{
    TSR_TRY(open_study(m));
    TSR_TRY(tsr_part_rows_open(&m->study, &m->rows));
    m->home = calloc(m->study.n + 1, sizeof *m->home);
    m->collected = calloc(m->study.n + 1, sizeof *m->collected);
    if (!m->home || !m->collected)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    TSR_TRY(collect(m));
    return report(m);
}

tsr_status tsr_part_merge(const struct tsr_args *args)
{
    struct merge m = {.args = args};
    if (!args->n_files)
        return tsr_fail(TSR_ECONFIG, "--merge: found no folder; allowed: those of the parts");
    if (args->part || args->measured || args->n_sets || args->only)
        return tsr_fail(TSR_ECONFIG,
                        "--merge: found --part, --measured, --set or --only; allowed: --out, "
                        "--format");
    tsr_status status = merge(&m);
    free(m.home);
    free(m.collected);
    json_decref(m.said);
    tsr_study_fini(&m.study);
    return status;
}
