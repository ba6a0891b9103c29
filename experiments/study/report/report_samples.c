/* report_samples.c: the table of percentiles below the comparison, of rows that were sampled. */
#include "experiments/study/report/report_cells.h"

enum { N_COLUMNS = 6 };
static const struct tsr__table_column columns[N_COLUMNS] = {
    {"step ms with noise", true},
    {"samples", false},
    {"p5", false},
    {"p50", false},
    {"p95", false},
    {"mean", false},
};

static void walk(struct tsr__table *table, const struct tsr_row *rows, size_t n)
{
    tsr__cell cells[N_COLUMNS];
    for (size_t i = 0; i < n; i++) {
        const struct tsr_samples *s = &rows[i].samples;
        const double times[] = {s->p5_s, s->p50_s, s->p95_s, s->mean_s};
        if (!s->n)
            continue;
        tsr__cell_name(cells[0], rows[i].strategy, "");
        (void)snprintf(cells[1], TSR__CELL_BYTES, "%u", s->n);
        for (int k = 0; k < 4; k++)
            (void)snprintf(cells[2 + k], TSR__CELL_BYTES, "%.2f", times[k] * 1e3);
        tsr__table_row(table, (const tsr__cell *)cells);
    }
}

void tsr__put_samples(FILE *out, const struct tsr_row *rows, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || rows[i].samples.n;
    if (!any)
        return;
    tsr__put_table(out, columns, N_COLUMNS, walk, rows, n);
    fputc('\n', out);
}
