/* report_cells.c: see the header. */
#include "experiments/study/report/report_cells.h"

#include "experiments/study/report/report_text.h"

/* Columns that a text takes in a terminal: bytes that do not continue a UTF-8 character. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0U) != 0x80U;
    return width;
}

void tsr__cell_name(tsr__cell out, const char *name, const char *mark)
{
    size_t n = 0;
    for (; *name && n + 8 < TSR__CELL_BYTES; name++) {
        if (*name == '|')
            out[n++] = '\\';
        out[n++] = *name;
    }
    (void)snprintf(out + n, TSR__CELL_BYTES - n, "%s", mark);
}

void tsr__cell_gib(tsr__cell out, int64_t bytes)
{
    (void)snprintf(out, TSR__CELL_BYTES, bytes < 0 ? "?" : "%.2f", (double)bytes / TSR__GIB);
}

const char *tsr__fits_text(int fits)
{
    return fits < 0 ? "?" : (fits ? "yes" : "NO");
}

void tsr__table_row(struct tsr__table *table, const tsr__cell *cells)
{
    for (int c = 0; c < table->n; c++) {
        int width = width_of(cells[c]), pad = table->widths[c] - width;
        if (!table->out) {
            table->widths[c] = width > table->widths[c] ? width : table->widths[c];
            continue;
        }
        if (table->columns[c].left)
            fprintf(table->out, "| %s%*s ", cells[c], pad, "");
        else
            fprintf(table->out, "| %*s%s ", pad, "", cells[c]);
    }
    if (table->out)
        fputs("|\n", table->out);
}

static void put_rule(const struct tsr__table *table)
{
    for (int c = 0; c < table->n; c++) {
        fputc('|', table->out);
        fputc(table->columns[c].left ? ':' : '-', table->out);
        for (int i = 0; i < table->widths[c]; i++)
            fputc('-', table->out);
        fputc(table->columns[c].left ? '-' : ':', table->out);
    }
    fputs("|\n", table->out);
}

void tsr__put_table(FILE *out, const struct tsr__table_column *columns, int n_columns,
                    tsr__table_fn walk, const struct tsr_row *rows, size_t n)
{
    struct tsr__table table = {.columns = columns, .n = n_columns};
    tsr__cell head[TSR__MAX_CELLS];
    for (int c = 0; c < n_columns; c++)
        (void)snprintf(head[c], TSR__CELL_BYTES, "%s", columns[c].head);
    tsr__table_row(&table, (const tsr__cell *)head);
    walk(&table, rows, n);
    table.out = out;
    tsr__table_row(&table, (const tsr__cell *)head);
    put_rule(&table);
    walk(&table, rows, n);
}
