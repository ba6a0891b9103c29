/* html.h: report.html, a study as one file to look at: no server, no network.
 *
 * While a strategy is simulated its programs and times become DIR/STRATEGY/view.json, packed; at
 * the end the page takes in the study's figures and the views that are there. Nothing is computed
 * for it alone: figures are those of the tables, slices and memory those of the trace.
 *
 * Names come from users: they stand in the page as data, in which no '<' is left, and its scripts
 * put them into text nodes only.
 *
 * Files are written atomically. Errors: TSR_EIO, TSR_ENOMEM.
 */
#ifndef TSR_STUDY_HTML_H
#define TSR_STUDY_HTML_H

#include <jansson.h>

#include "experiments/study/job/result.h"

/* Writes DIR/STRATEGY/view.json; the folder is made. */
tsr_status tsr_html_view(const char *dir, const struct tsr_study_info *info,
                         const struct tsr_detail *detail) TSR_MUST_USE;
/* Writes it as FOLDER/view.json. */
tsr_status tsr_html_view_in(const char *folder, const struct tsr_study_info *info,
                            const struct tsr_detail *detail) TSR_MUST_USE;

/* Writes DIR/report.html of a comparison. `only`: the strategies that were asked for, as the option
 * names them; NULL: all of the file. */
tsr_status tsr_html_study(const char *dir, const struct tsr_study_info *info, const char *only,
                          const struct tsr_row *rows, size_t n) TSR_MUST_USE;

/* ---- other studies: tables with a picture ---------------------------------------------------- */

/* A page that is put together: {"kind", "title", "subtitle", "command", "configuration_yaml",
 * "tables": [], "plots": [], "verdict": [], "notes": []}; page/README.md has what they may hold.
 * Values are taken over, also on failure; NULL stands for one that there was no memory for. */
json_t *tsr_html_page(const char *kind, const char *title, const char *subtitle, json_t *command,
                      const char *yaml);
void tsr_html_add(json_t *page, const char *list, json_t *value);
/* A line of text for "verdict" or "notes". */
void tsr_html_say(json_t *page, const char *list, const char *format, ...) TSR_PRINTF(3, 4);

/* Adds to "notes" the sentences of tsr_put_validated(): where times come from, and how far
 * predictions were off. `info`: NULL adds nothing. */
void tsr_html_say_errors(json_t *page, const struct tsr_study_info *info);

/* Writes DIR/report.html. `study` is taken over, also on failure; NULL: there was no memory for it.
 * views[n_views]: folders that have a view.json, or have none; the strategies are numbered so. */
tsr_status tsr_html_write(const char *dir, json_t *study, const char *const *views,
                          size_t n_views) TSR_MUST_USE;

/* A column. kind: "text", "flag" (true, false, null), or the unit of a number in SI ("s", "bytes",
 * "share", "1", "1/s"); what is shown of it, ms or GiB, is up to the page. */
struct tsr_html_column {
    const char *key, *head, *kind;
};
/* A table without rows: {"id", "title", "columns": [], "rows": []}; `columns` end with a key that
 * is NULL. NULL when out of memory, which all of these pass on. */
json_t *tsr_html_table(const char *id, const char *title, const struct tsr_html_column *columns);
/* One column more, of those that not every study has. */
void tsr_html_add_column(json_t *table, const char *key, const char *head, const char *kind);
/* A row: values in the order of the columns. */
void tsr_html_row(json_t *table, json_t *row);
/* {"title", "x", "y", "points": []}; heads and kinds are those of columns. */
json_t *tsr_html_plot(const char *title, const char *x_head, const char *x_kind, const char *y_head,
                      const char *y_kind);
/* style: "good", "bad" or "soft"; `name` is of any origin. */
void tsr_html_point(json_t *plot, double x, double y, const char *name, const char *style,
                    bool front, bool best);
/* A text of any origin as a JSON string; NULL gives null. */
json_t *tsr_html_text(const char *text);
/* A number; what is not finite gives null. */
json_t *tsr_html_number(double value);
/* "tessera WORDS... FILE --set A --set B": a command to copy. */
json_t *tsr_html_command(const char *words, const char *file, const char *const *sets,
                         size_t n_sets, const char *more);

#endif
