/* csv.h: tables of comma-separated values with a head line: fields may be quoted ("a, b", "" is a
 * quote inside, and so are ends of lines, RFC 4180), lines end in LF or CRLF, lines that begin with
 * '#' and empty lines are skipped. An apostrophe before = + - @, a tab, an end of a line or another
 * apostrophe, at the beginning of a field, only tells a spreadsheet that a text follows, and is no
 * part of it. A table of a user is read as a whole, with complaints about each cell; what this
 * program wrote is read back line by line, however long it is.
 */
#ifndef TSR_STUDY_CSV_H
#define TSR_STUDY_CSV_H

#include <stdio.h>

#include "engine/program/base.h"

/* What a field that is no number must not begin with in a spreadsheet, where it would be computed.
 */
#define TSR_CSV_MARKED "=+-@\t\r\n"

/* ---- a whole table ----------------------------------------------------------------------- */

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

/* ---- line by line ------------------------------------------------------------------------ */

enum { TSR_CSV_FIELDS = 40, TSR_CSV_RECORD_BYTES = 1 << 24 };

/* An open file and its current row. Fields beyond TSR_CSV_FIELDS are counted, and kept nowhere. */
struct tsr_csv_reader {
    const char *path; /* borrowed */
    FILE *file;
    char *text; /* of a file NAME.gz: what `file` reads; else NULL */
    char *line;
    size_t cap, number; /* of the line, from 1 */
    size_t n;
    char *fields[TSR_CSV_FIELDS]; /* [n], in `line` */
    char flaw[128];               /* why there is no next line; "": it is the end */
};

/* Errors: TSR_ECONFIG. */
tsr_status tsr_csv_open(const char *path, struct tsr_csv_reader *out) TSR_MUST_USE;
void tsr_csv_close(struct tsr_csv_reader *table);
/* The next record that is no comment; false at the end, and at a line that is none of text. A quote
 * that does not end within TSR_CSV_RECORD_BYTES ends there. */
bool tsr_csv_next(struct tsr_csv_reader *table);
/* After the last line. Errors: TSR_ECONFIG: it was not the last, but one that is no UTF-8, has
 * control characters, more than 1 MiB or a quote that does not end. */
tsr_status tsr_csv_end(const struct tsr_csv_reader *table) TSR_MUST_USE;

/* "FILE:LINE: what: found "found"; allowed: allowed" */
tsr_status tsr_csv_bad(const struct tsr_csv_reader *table, const char *what, const char *found,
                       const char *allowed) TSR_MUST_USE;
/* The first line: the names of the columns. `is_head`: it begins as one of these files does. */
tsr_status tsr_csv_check_head(const struct tsr_csv_reader *table, bool is_head,
                              const char *allowed) TSR_MUST_USE;
tsr_status tsr_csv_seconds(const struct tsr_csv_reader *table, size_t field,
                           double *out) TSR_MUST_USE;
tsr_status tsr_csv_bytes(const struct tsr_csv_reader *table, size_t field,
                         uint64_t *out) TSR_MUST_USE;

#endif
