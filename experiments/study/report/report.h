/* report.h: what a comparison leaves behind: tables, data files, traces and pictures.
 *
 * Everything is derived from the rows and details of result.h; nothing is simulated here. Files are
 * written atomically (files.h). Errors: TSR_EIO, TSR_ENOMEM, TSR_EBACKEND (gnuplot failed).
 */
#ifndef TSR_STUDY_REPORT_H
#define TSR_STUDY_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "experiments/study/config/request.h"
#include "experiments/study/job/result.h"

/* Prints the comparison: "md" for people (also valid Markdown), "wide" the same with all columns,
 * "narrow" with few, "csv" and "json" for programs (SI base units, stable names). What explains a
 * report for people goes to `notes`, a line for each note. Errors: also TSR_ECONFIG for another
 * format. */
tsr_status tsr_report_table(FILE *out, FILE *notes, const char *format,
                            const struct tsr_study_info *info, const struct tsr_row *rows,
                            size_t n) TSR_MUST_USE;

/* Files of one strategy in DIR/STRATEGY: memory.csv, streams.csv, trace.json and snapshot.pickle;
 * what the pictures need besides: memory-plot.csv, in-use-plot.csv, phases.csv, peak.csv,
 * timeline.csv. With sections to show also run.csv, run-plot.csv and run-peaks.csv. */
tsr_status tsr_report_detail(const char *dir, const struct tsr_study_info *info,
                             const struct tsr_detail *detail) TSR_MUST_USE;

/* The memory of a run from the start of the process: what torch.cuda.memory._snapshot() would give
 * if the history had been recorded from the beginning. */
struct tsr_history {
    const struct tsr_program *const *programs; /* [n]: the initialisation, iterations */
    uint32_t n;
    size_t n_last;                                /* instructions of the last program that count */
    struct tsr_sim_span *const *spans;            /* [n]; NULL: no times are known */
    const struct tsr_allocator_config *allocator; /* NULL: the defaults */
    const struct tsr_oom *oom;                    /* what ended it; NULL: nothing */
};
/* FOLDER/snapshot.pickle, which opens in pytorch.org/memory_viz. */
tsr_status tsr_report_snapshot(const char *folder, const struct tsr_history *history) TSR_MUST_USE;

/* Files of the study in DIR: summary.csv and summary.json; for the pictures compare.csv,
 * compare-frame.csv, compare-front.csv and compare-categories.csv; of measured rows beside
 * simulated ones measured.csv and measured-frame.csv. */
tsr_status tsr_report_study(const char *dir, const struct tsr_study_info *info,
                            const struct tsr_row *rows, size_t n) TSR_MUST_USE;

/* Draws every picture whose data files are in DIR. *skipped: none was asked for, or there is no
 * gnuplot; one line on stderr says so. */
tsr_status tsr_report_plots(const char *dir, const struct tsr_row *rows, size_t n,
                            enum tsr_pictures pictures, bool *skipped) TSR_MUST_USE;
/* Draws one picture, DIR/NAME.svg and .png, with plots/NAME.gp; without gnuplot as above. `name`
 * is borrowed until it returns. */
tsr_status tsr_report_picture(const char *dir, const char *name) TSR_MUST_USE;

/* ---- rows ------------------------------------------------------------------------------------ */

/* As CSV and JSON: one table of columns for both (report_rows.c). */

/* Raised when a name or a meaning changes; new columns do not raise it. */
#define TSR__ROWS_SCHEMA 1

void tsr__put_rows_csv(FILE *out, const struct tsr_row *rows, size_t n);
/* The rows with what is known of the study; NULL when out of memory. `full`: also the resolved
 * configuration and the versions, so that the study can be repeated. */
json_t *tsr__rows_json(const struct tsr_study_info *info, const struct tsr_row *rows, size_t n,
                       bool full);
tsr_status tsr__put_json_value(FILE *out, const json_t *value);
/* A report that was put together as JSON, indented for people. */
tsr_status tsr_print_report(FILE *out, const json_t *report) TSR_MUST_USE;
/* As the first one, and gives `value` back. */
tsr_status tsr_put_json(FILE *out, json_t *value) TSR_MUST_USE;
/* Returns a text as a JSON string, null for NULL. A file name need not be UTF-8, JSON must be: then
 * all but ASCII becomes '?'. */
json_t *tsr__text_json(const char *text);
/* Returns a row as an object with all its columns; NULL when out of memory. */
json_t *tsr__row_json(const struct tsr_row *row);
/* A row as tsr__rows_json() wrote it. Keys that are missing or null leave what is unknown. */
void tsr__row_of_json(const json_t *object, struct tsr_row *row);

#endif
