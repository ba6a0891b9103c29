/* part_merge.c: `compare --merge`: the tables and files of one run from its parts (part.h). */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/compare/part.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"

static tsr_status same_experiment(const char *first, const char *other)
{
    char path[2][TSR_FILE_NAME_BYTES];
    char *text[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    TSR_TRY(tsr_file_name(path[0], "%s/experiment.yaml", first));
    TSR_TRY(tsr_file_name(path[1], "%s/experiment.yaml", other));
    tsr_status status = tsr_read_file(path[0], 1 << 28, &text[0], &n[0]);
    if (status == TSR_OK)
        status = tsr_read_file(path[1], 1 << 28, &text[1], &n[1]);
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
static tsr_status open_study(struct tsr_merged *m)
{
    struct tsr_study_request request = {.path = m->path, .out = m->out};
    char said[TSR_FILE_NAME_BYTES];
    const char *dir = m->folders[0];
    for (size_t i = 0; i < m->n_folders; i++)
        TSR_TRY(same_experiment(dir, m->folders[i]));
    TSR_TRY(tsr_file_name(m->path, "%s/experiment.yaml", dir));
    TSR_TRY(tsr_study_read(&request, &m->study));
    TSR_TRY(tsr_study_build(&m->study));
    TSR_TRY(tsr_file_name(said, "%s/study.json", dir));
    m->said = json_load_file(said, 0, NULL);
    const char *title = json_string_value(json_object_get(m->said, "title"));
    const char *file = json_string_value(json_object_get(m->said, "experiment_file"));
    if (!title || !file)
        return tsr_fail(TSR_ECONFIG,
                        "--merge: %s: found no title and file in it; allowed: what compare --part "
                        "I/N --out left",
                        said);
    m->study.info.title = title;
    m->study.info.config_path = file;
    return TSR_OK;
}

static tsr_status find(struct tsr_merged *m, const struct tsr_part_rows *rows, size_t item)
{
    for (size_t i = 0; i < m->n_folders && !m->home[item]; i++) {
        bool found;
        TSR_TRY(tsr_part_find(rows, m->folders[i], item, &m->rows[item], &found));
        if (found)
            m->home[item] = m->folders[i];
    }
    return TSR_OK;
}

static tsr_status collect(struct tsr_merged *m)
{
    struct tsr_part_rows rows;
    size_t missing = 0, first = 0;
    TSR_TRY(tsr_part_rows_open(&m->study, &rows));
    m->home = calloc(m->study.n + 1, sizeof *m->home);
    m->rows = calloc(m->study.n + 1, sizeof *m->rows);
    if (!m->home || !m->rows)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < m->study.n; i++) {
        TSR_TRY(find(m, &rows, i));
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

tsr_status tsr_merged_open(const char *const *folders, size_t n, const char *out,
                           struct tsr_merged *merged)
{
    *merged = (struct tsr_merged){.folders = folders, .n_folders = n, .out = out};
    tsr_status status = open_study(merged);
    if (status == TSR_OK)
        status = collect(merged);
    if (status != TSR_OK)
        tsr_merged_fini(merged);
    return status;
}

void tsr_merged_fini(struct tsr_merged *m)
{
    free(m->home);
    free(m->rows);
    json_decref(m->said);
    tsr_study_fini(&m->study);
    *m = (struct tsr_merged){0};
}

tsr_status tsr_merged_write(const struct tsr_merged *m)
{
    for (size_t i = 0; i < m->study.n; i++) {
        char name[256], from[TSR_FILE_NAME_BYTES], to[TSR_FILE_NAME_BYTES];
        tsr__folder_name(m->study.jobs[i].strategy->name, name, sizeof name);
        TSR_TRY(tsr_file_name(from, "%s/%s", m->home[i], name));
        TSR_TRY(tsr_file_name(to, "%s/%s", m->out, name));
        TSR_TRY(tsr_folder_copy(from, to));
    }
    return tsr_study_files(&m->study, m->out, m->rows, m->study.n);
}
