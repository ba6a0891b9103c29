/* report_rows.h: the rows of a comparison as CSV and JSON: one table of columns for both. */
#ifndef TSR_STUDY_REPORT_ROWS_H
#define TSR_STUDY_REPORT_ROWS_H

#include "experiments/study/job/result.h"

#include <jansson.h>
#include <stdio.h>

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
/* A row as tsr__rows_json() wrote it. Keys that are missing or null leave what is unknown. */
void tsr__row_of_json(const json_t *object, struct tsr_row *row);

#endif
