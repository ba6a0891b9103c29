/* csv_read.h: reads back the CSV files that this program writes: one head, rows, lines of '#'. */
#ifndef TSR_CLI_CSV_READ_H
#define TSR_CLI_CSV_READ_H

#include <stdio.h>

#include "engine/program/base.h"

enum { TSR_CSV_FIELDS = 40 };

/* An open file and its current row. Fields beyond TSR_CSV_FIELDS are counted, and kept nowhere. */
struct tsr_csv {
    const char *path; /* borrowed */
    FILE *file;
    char *line;
    size_t cap, number; /* of the line, from 1 */
    size_t n;
    char *fields[TSR_CSV_FIELDS]; /* [n], in `line` */
};

/* Errors: TSR_ECONFIG. */
tsr_status tsr_csv_open(const char *path, struct tsr_csv *out) TSR_MUST_USE;
void tsr_csv_close(struct tsr_csv *table);
/* The next line that is no comment; false at the end. */
bool tsr_csv_next(struct tsr_csv *table);

/* "FILE:LINE: what: found "found"; allowed: allowed" */
tsr_status tsr_csv_bad(const struct tsr_csv *table, const char *what, const char *found,
                       const char *allowed) TSR_MUST_USE;
/* The first line: the names of the columns. `is_head`: it begins as one of these files does. */
tsr_status tsr_csv_check_head(const struct tsr_csv *table, bool is_head,
                              const char *allowed) TSR_MUST_USE;
tsr_status tsr_csv_seconds(const struct tsr_csv *table, size_t field, double *out) TSR_MUST_USE;
tsr_status tsr_csv_bytes(const struct tsr_csv *table, size_t field, uint64_t *out) TSR_MUST_USE;

#endif
