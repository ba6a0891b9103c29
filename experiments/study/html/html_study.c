/* html_study.c: the page of a comparison: its rows, which of them are best, and how to repeat them.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/html/html.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_answer.h"
#include "experiments/study/report/report_text.h"

struct study {
    const char *dir, *only;
    const struct tsr_study_info *info;
    const struct tsr_row *rows;
    size_t n;
};

/* " --only a,b" or " --strategy a" as a shell reads it; to be freed. */
static char *option_text(const char *option, const char *value, const char *more)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return NULL;
    fprintf(stream, " %s ", option);
    tsr__put_word(stream, value);
    fputs(more, stream);
    if (fclose(stream) == 0)
        return text;
    free(text);
    return NULL;
}

/* `on`: " --on sim". What a run in earnest was asked for is not known here: such rows have another
 * name than the strategy. */
static json_t *run_command(const struct study *study, const struct tsr_row *row, const char *on)
{
    const struct tsr_study_info *info = study->info;
    if (row->measured)
        return json_null();
    const struct tsr_run_words *run = tsr__run_of(info, row->strategy);
    char *which = option_text("--strategy", run ? run->name : row->strategy, on);
    json_t *value = tsr_html_command("run", info->config_path, run ? run->set : NULL,
                                     run ? run->n_set : 0, which);
    free(which);
    return value;
}

/* What to do with a row next: the command that writes its code. */
static json_t *next_command(const struct study *study, const struct tsr_row *row)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = row->measured ? NULL : open_memstream(&text, &n);
    if (!stream)
        return row->measured ? json_null() : NULL;
    tsr__put_next(stream, study->info, row, NULL);
    json_t *value = fclose(stream) == 0 ? tsr_html_text(text) : NULL;
    free(text);
    return value;
}

static json_t *compare_command(const struct study *study)
{
    const struct tsr_study_info *info = study->info;
    if (study->n == 1)
        return run_command(study, study->rows, " --on sim");
    char *only = study->only ? option_text("--only", study->only, "") : NULL;
    json_t *value = tsr_html_command("compare", info->config_path, info->sets, info->n_sets, only);
    free(only);
    return value;
}

/* What the page says of a row beside its columns. */
static bool add_marks(const struct study *study, json_t *page)
{
    json_t *rows = json_object_get(page, "rows");
    int best = tsr__best_row(study->rows, study->n);
    bool mixed = tsr__is_mixed(study->rows, study->n);
    bool ok = true;
    for (size_t i = 0; i < study->n && ok; i++) {
        json_t *row = json_array_get(rows, i);
        ok = json_object_set_new(row, "on_front",
                                 json_boolean(tsr__on_front(study->rows, study->n, i))) == 0 &&
             json_object_set_new(row, "is_best", json_boolean((int)i == best)) == 0 &&
             json_object_set_new(row, "measured", json_boolean(mixed && study->rows[i].measured)) ==
                 0 &&
             json_object_set_new(row, "command", next_command(study, &study->rows[i])) == 0;
    }
    return ok;
}

static tsr_status write_page(const struct study *study, const char *const *views)
{
    json_t *page = tsr__rows_json(study->info, study->rows, study->n, true);
    bool ok = page && json_object_set_new(page, "kind", json_string("compare")) == 0 &&
              json_object_set_new(page, "command", compare_command(study)) == 0 &&
              add_marks(study, page);
    if (!ok) {
        json_decref(page);
        return tsr_no_memory("report.html");
    }
    return tsr_html_write(study->dir, page, views, study->n);
}

tsr_status tsr_html_study(const char *dir, const struct tsr_study_info *info, const char *only,
                          const struct tsr_row *rows, size_t n)
{
    const struct study study = {dir, only, info, rows, n};
    char **views = calloc(n + 1, sizeof *views);
    tsr_status status = views ? TSR_OK : tsr_no_memory("report.html");
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        char name[256];
        if (rows[i].failure[0])
            continue;
        tsr__folder_name(rows[i].strategy, name, sizeof name);
        views[i] = tsr_path_join(dir, name);
        status = views[i] ? TSR_OK : TSR_ENOMEM;
    }
    if (status == TSR_OK)
        status = write_page(&study, (const char *const *)views);
    for (size_t i = 0; views && i < n; i++)
        free(views[i]);
    free(views);
    return status;
}
