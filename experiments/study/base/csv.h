/* csv.h: a table of comma-separated values with a head line: fields may be quoted ("a, b", "" is a
 * quote inside), lines end in LF or CRLF, lines that begin with '#' and empty lines are skipped.
 */
#ifndef TSR_CLI_CSV_H
#define TSR_CLI_CSV_H

#include "engine/program/base.h"

struct tsr_csv_row {
    int line;           /* in the file, from 1 */
    const char **cells; /* [n_columns] */
};

struct tsr_csv {
    struct tsr_arena arena; /* owns everything but `rows` */
    const char *path;
    size_t n_columns, n_rows;
    const char **columns;
    struct tsr_csv_row *rows;
};

/* Errors: TSR_ECONFIG with file and line (no head line, a column twice, a line with another number
 * of fields, a quote that does not end), TSR_ENOMEM. On failure *out needs no tsr_csv_fini(). */
tsr_status tsr_csv_load(const char *path, struct tsr_csv *out) TSR_MUST_USE;
void tsr_csv_fini(struct tsr_csv *csv);

/* Index of a column; n_columns if there is none. */
size_t tsr_csv_column(const struct tsr_csv *csv, const char *name);
/* The cell of a column by name; "" if there is no such column. */
const char *tsr_csv_cell(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                         const char *name);
/* A number of a cell. An empty cell leaves *found false. Errors: TSR_ECONFIG with file, line,
 * column and what was found. */
tsr_status tsr_csv_number(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                          const char *name, double *out, bool *found) TSR_MUST_USE;

#endif
