/* html_page.c: puts a page together: what is the same in all of them (page/, built into the
 * program), the study, and the views of its strategies. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/html/html.h"
#include "experiments/study/html/html_assets.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"

/* ---- values ---------------------------------------------------------------------------------- */

json_t *tsr_html_text(const char *text)
{
    char *shown = NULL;
    size_t n = 0;
    if (!text)
        return json_null();
    json_t *value = json_string(text);
    if (value)
        return value;
    FILE *stream = open_memstream(&shown, &n); /* bytes that are no UTF-8 */
    if (!stream)
        return NULL;
    tsr__put_json(stream, text);
    if (fclose(stream) == 0)
        value = json_loads(shown, JSON_DECODE_ANY, NULL);
    free(shown);
    return value;
}

json_t *tsr_html_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *tsr_html_table(const char *id, const char *title, const struct tsr_html_column *columns)
{
    json_t *table = json_pack("{s:s, s:o, s:[], s:[]}", "id", id, "title", tsr_html_text(title),
                              "columns", "rows");
    for (; columns->key; columns++)
        tsr_html_add_column(table, columns->key, columns->head, columns->kind);
    return table;
}

void tsr_html_add_column(json_t *table, const char *key, const char *head, const char *kind)
{
    json_array_append_new(json_object_get(table, "columns"),
                          json_pack("{s:s, s:s, s:s}", "key", key, "head", head, "kind", kind));
}

void tsr_html_row(json_t *table, json_t *row)
{
    json_array_append_new(json_object_get(table, "rows"), row);
}

json_t *tsr_html_plot(const char *title, const char *x_head, const char *x_kind, const char *y_head,
                      const char *y_kind)
{
    return json_pack("{s:o, s:{s:s, s:s}, s:{s:s, s:s}, s:[], s:[]}", "title", tsr_html_text(title),
                     "x", "head", x_head, "kind", x_kind, "y", "head", y_head, "kind", y_kind,
                     "points", "lines");
}

void tsr_html_point(json_t *plot, double x, double y, const char *name, const char *style,
                    bool front, bool best)
{
    if (isfinite(x) && isfinite(y))
        json_array_append_new(json_object_get(plot, "points"),
                              json_pack("[f, f, o, s, b, b]", x, y, tsr_html_text(name), style,
                                        (int)front, (int)best));
}

json_t *tsr_html_page(const char *kind, const char *title, const char *subtitle, json_t *command,
                      const char *yaml)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:[], s:[], s:[], s:[]}", "kind", kind, "title",
                     tsr_html_text(title && *title ? title : NULL), "subtitle",
                     tsr_html_text(subtitle), "command", command, "configuration_yaml",
                     tsr_html_text(yaml), "tables", "plots", "verdict", "notes");
}

void tsr_html_add(json_t *page, const char *list, json_t *value)
{
    json_array_append_new(json_object_get(page, list), value);
}

void tsr_html_say(json_t *page, const char *list, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tsr_html_add(page, list, tsr_html_text(text));
}

void tsr_html_say_errors(json_t *page, const struct tsr_study_info *info)
{
    json_t *all = info ? tsr_validated_json(info) : NULL, *one;
    size_t i;
    if (info && info->time_sources)
        tsr_html_say(page, "notes", "Times come from %s.", info->time_sources);
    json_array_foreach(all, i, one)
        tsr_html_add(page, "notes", json_incref(json_object_get(one, "text")));
    json_decref(all);
}

json_t *tsr_html_command(const char *words, const char *file, const char *const *sets,
                         size_t n_sets, const char *more)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return NULL;
    fprintf(stream, "tessera %s ", words);
    tsr__put_word(stream, file ? file : "");
    for (size_t i = 0; i < n_sets; i++) {
        fputs(" --set ", stream);
        tsr__put_word(stream, sets[i]);
    }
    fputs(more ? more : "", stream);
    json_t *value = fclose(stream) == 0 ? tsr_html_text(text) : NULL;
    free(text);
    return value;
}

/* ---- the page -------------------------------------------------------------------------------- */

struct page {
    json_t *study;
    const char *const *views;
    size_t n_views;
};

/* JSON inside a page: a '<' might end the element that it stands in, and may be written so in a
 * string, the only place where it can be. */
static void put_safe(FILE *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '<')
            fputs("\\u003c", out);
        else
            fputc(text[i], out);
    }
}

static tsr_status put_study(FILE *out, const json_t *study)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return tsr_no_memory("report.html");
    bool ok = tsr_json_dump(study, stream, JSON_COMPACT | JSON_REAL_PRECISION(12)) == 0;
    ok = fclose(stream) == 0 && ok;
    if (ok) {
        fputs("<script type=\"application/json\" id=\"study\">", out);
        put_safe(out, text, n);
        fputs("</script>\n", out);
    }
    free(text);
    return ok ? TSR_OK : tsr_no_memory("report.html");
}

/* A strategy without a view is shown without one. */
static void put_view(FILE *out, size_t number, const char *folder)
{
    char piece[4096], *path = tsr_path_join(folder, "view.json");
    const char *why;
    FILE *file = path ? tsr_file_stream(NULL, path, &why) : NULL;
    free(path);
    if (!file)
        return;
    fprintf(out, "<script type=\"application/json\" class=\"view\" data-view=\"%zu\">", number);
    for (size_t n; (n = fread(piece, 1, sizeof piece, file)) > 0;)
        put_safe(out, piece, n);
    fputs("</script>\n", out);
    (void)fclose(file);
}

static tsr_status write_page(FILE *out, const void *user)
{
    const struct page *page = user;
    (void)fwrite(tsr__html_head, 1, tsr__html_head_bytes, out);
    TSR_TRY(put_study(out, page->study));
    for (size_t i = 0; i < page->n_views; i++)
        if (page->views[i])
            put_view(out, i, page->views[i]);
    (void)fwrite(tsr__html_tail, 1, tsr__html_tail_bytes, out);
    return TSR_OK;
}

tsr_status tsr_html_write(const char *dir, json_t *study, const char *const *views, size_t n_views)
{
    const struct page page = {study, views, n_views};
    if (!study)
        return tsr_no_memory("report.html");
    bool ok = json_object_set_new(study, "report_version", json_integer(1)) == 0 &&
              json_object_set_new(study, "tessera", json_string(tsr__version())) == 0;
    tsr_status status =
        ok ? tsr_write_in(dir, "report.html", write_page, &page) : tsr_no_memory("report.html");
    json_decref(study);
    return status;
}
