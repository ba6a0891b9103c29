/* report_cells.h: Markdown tables that are padded so that they read well in a terminal. */
#ifndef TSR_STUDY_REPORT_CELLS_H
#define TSR_STUDY_REPORT_CELLS_H

#include "experiments/study/job/result.h"

#include <stdio.h>

enum { TSR__CELL_BYTES = 128, TSR__MAX_CELLS = 16 };
typedef char tsr__cell[TSR__CELL_BYTES];

struct tsr__table_column {
    const char *head;
    bool left;
};

struct tsr__table {
    const struct tsr__table_column *columns;
    int n; /* columns, at most TSR__MAX_CELLS */
    int widths[TSR__MAX_CELLS];
    FILE *out; /* NULL while the columns are measured */
};

/* One line of the table. */
void tsr__table_row(struct tsr__table *table, const tsr__cell *cells);
/* Prints a table; `walk` hands every line to tsr__table_row() and is called twice. */
typedef void (*tsr__table_fn)(struct tsr__table *table, const struct tsr_row *rows, size_t n);
void tsr__put_table(FILE *out, const struct tsr__table_column *columns, int n_columns,
                    tsr__table_fn walk, const struct tsr_row *rows, size_t n);

/* A name inside a table: '|' would end the cell. `mark` comes behind it. */
void tsr__cell_name(tsr__cell out, const char *name, const char *mark);
/* Bytes as GiB; negative: "?". */
void tsr__cell_gib(tsr__cell out, int64_t bytes);
/* "yes", "NO", "?" */
const char *tsr__fits_text(int fits);

/* The tables below the comparison: what takes the memory of the card and of the host; and, of the
 * runs that ask for it, the peak of each section (report_card.c). */
void tsr__put_card(FILE *out, const struct tsr_row *rows, size_t n);
void tsr__put_sections(FILE *out, const struct tsr_row *rows, size_t n);
/* Percentiles of the step under noise (report_samples.c). */
void tsr__put_samples(FILE *out, const struct tsr_row *rows, size_t n);

#endif
