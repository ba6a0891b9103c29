/* report_table.c: the comparison as a table on a stream.
 *
 * The Markdown table is padded so that it reads well in a terminal. Units stand in the head;
 * memory in GiB as PyTorch reports it, bytes on the wire in GB as nccl-tests does.
 */
#include "report.h"
#include "report_file.h"
#include "report_rows.h"
#include "report_text.h"

#include <inttypes.h>
#include <string.h>

enum { N_COLUMNS = 12, CELL_BYTES = 128 };

struct table_column {
    const char *head;
    bool left;
};

static const struct table_column columns[N_COLUMNS] = {
    {"strategy", true},   {"step ms", false},      {"tokens/s/GPU", false}, {"MFU %", false},
    {"peak GiB", false},  {"reserved GiB", false}, {"fits", true},          {"exposed ms", false},
    {"exposed %", false}, {"in node GB", false},   {"between GB", false},   {"first ms", false},
};

typedef char cell[CELL_BYTES];

/* Columns that a text takes in a terminal: bytes that do not continue a UTF-8 character. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0U) != 0x80U;
    return width;
}

/* A name inside a Markdown table: '|' would end the cell. */
static void put_name(char *out, size_t size, const char *name, const char *mark)
{
    size_t n = 0;
    for (; *name && n + 8 < size; name++) {
        if (*name == '|')
            out[n++] = '\\';
        out[n++] = *name;
    }
    (void)snprintf(out + n, size - n, "%s", mark);
}

static const char *fits_text(int fits)
{
    return fits < 0 ? "?" : (fits ? "yes" : "NO");
}

/* A figure of a GPU's step in bytes, as GB. */
static void put_gb(cell out, uint64_t bytes)
{
    (void)snprintf(out, CELL_BYTES, "%.2f", (double)bytes / 1e9);
}

static void fill_row(cell *cells, const struct tsr_row *row, bool best, int footnote)
{
    char mark[24] = "";
    if (best)
        (void)snprintf(mark, sizeof mark, " *");
    else if (footnote)
        (void)snprintf(mark, sizeof mark, " [%d]", footnote);
    put_name(cells[0], CELL_BYTES, row->strategy, mark);
    if (row->failure[0]) {
        for (int c = 1; c < N_COLUMNS; c++)
            (void)snprintf(cells[c], CELL_BYTES, "-");
        if (row->failure_status == 3)
            (void)snprintf(cells[6], CELL_BYTES, "NO");
        return;
    }
    const struct tsr_metrics *m = &row->steady;
    double step = m->step_s;
    (void)snprintf(cells[1], CELL_BYTES, "%.2f", step * 1e3);
    (void)snprintf(cells[2], CELL_BYTES, step > 0 ? "%.0f" : "?",
                   step > 0 ? (double)row->tokens_per_rank / step : 0.0);
    (void)snprintf(cells[3], CELL_BYTES, row->mfu >= 0 ? "%.1f" : "?", row->mfu * 100);
    (void)snprintf(cells[4], CELL_BYTES, "%.2f", (double)row->peak_allocated / TSR__GIB);
    (void)snprintf(cells[5], CELL_BYTES, "%.2f", (double)row->peak_reserved / TSR__GIB);
    (void)snprintf(cells[6], CELL_BYTES, "%s", fits_text(row->fits));
    (void)snprintf(cells[7], CELL_BYTES, "%.2f", m->exposed_s * 1e3);
    (void)snprintf(cells[8], CELL_BYTES, step > 0 ? "%.1f" : "?",
                   step > 0 ? m->exposed_s / step * 100 : 0.0);
    put_gb(cells[9], m->sent_intra);
    put_gb(cells[10], m->sent_inter);
    (void)snprintf(cells[11], CELL_BYTES, "%.2f", row->first.step_s * 1e3);
}

static void put_line(FILE *out, const cell *cells, const int *widths)
{
    for (int c = 0; c < N_COLUMNS; c++) {
        int pad = widths[c] - width_of(cells[c]);
        if (columns[c].left)
            fprintf(out, "| %s%*s ", cells[c], pad, "");
        else
            fprintf(out, "| %*s%s ", pad, "", cells[c]);
    }
    fputs("|\n", out);
}

static void put_rule(FILE *out, const int *widths)
{
    for (int c = 0; c < N_COLUMNS; c++) {
        fputc('|', out);
        fputc(columns[c].left ? ':' : '-', out);
        for (int i = 0; i < widths[c]; i++)
            fputc('-', out);
        fputc(columns[c].left ? '-' : ':', out);
    }
    fputs("|\n", out);
}

/* Called twice: without `out` it only widens the columns. */
static void walk_rows(FILE *out, const struct tsr_row *rows, size_t n, int *widths)
{
    cell cells[N_COLUMNS];
    int best = tsr__best_row(rows, n), footnote = 0;
    for (size_t i = 0; i < n; i++) {
        fill_row(cells, &rows[i], (int)i == best, rows[i].failure[0] ? ++footnote : 0);
        for (int c = 0; c < N_COLUMNS; c++) {
            int width = width_of(cells[c]);
            widths[c] = width > widths[c] ? width : widths[c];
        }
        if (out)
            put_line(out, (const cell *)cells, widths);
    }
}

static void put_table(FILE *out, const struct tsr_row *rows, size_t n)
{
    int widths[N_COLUMNS];
    cell head[N_COLUMNS];
    for (int c = 0; c < N_COLUMNS; c++) {
        (void)snprintf(head[c], CELL_BYTES, "%s", columns[c].head);
        widths[c] = width_of(columns[c].head);
    }
    walk_rows(NULL, rows, n, widths);
    put_line(out, (const cell *)head, widths);
    put_rule(out, widths);
    walk_rows(out, rows, n, widths);
}

/* ---- what stands above and below ---------------------------------------------------------- */

static uint64_t usable_of(const struct tsr_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].failure[0] && rows[i].usable_bytes)
            return rows[i].usable_bytes;
    }
    return 0;
}

static void put_failures(FILE *out, const struct tsr_row *rows, size_t n)
{
    int footnote = 0;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].failure[0])
            fprintf(out, "[%d] %s: %s\n\n", ++footnote, rows[i].strategy, rows[i].failure);
    }
}

/* No row fits: what the smallest one would need. */
static void put_none_fits(FILE *out, const struct tsr_row *rows, size_t n)
{
    int least = -1;
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].failure[0] && (least < 0 || rows[i].peak_reserved < rows[least].peak_reserved))
            least = (int)i;
    }
    if (least < 0) {
        fputs("No strategy could be simulated.\n\n", out);
        return;
    }
    fprintf(out, "No strategy fits; the smallest, %s, reserves %.2f GiB.\n\n", rows[least].strategy,
            (double)rows[least].peak_reserved / TSR__GIB);
}

static void put_best(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                     size_t n)
{
    int best = tsr__best_row(rows, n);
    if (best < 0) {
        put_none_fits(out, rows, n);
        return;
    }
    fprintf(out, "%s (marked \"*\"): %s. This runs it:\n\n    tessera run ",
            rows[best].fits > 0 ? "Fastest that fits" : "Fastest", rows[best].strategy);
    tsr__put_word(out, info->config_path);
    fputs(" --strategy ", out);
    tsr__put_word(out, rows[best].strategy);
    fputs(" --on sim\n\n(the same command with --on cuda once this build executes on GPUs)\n\n",
          out);
}

static void put_notes(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                      size_t n)
{
    uint64_t usable = usable_of(rows, n);
    fprintf(out, "All times are simulated, for the device file %s.\n", info->device_file);
    fputs(
        "Steady step; `first`: the first one. `peak`, `reserved`: allocated and reserved memory of "
        "the fullest GPU",
        out);
    if (usable)
        fprintf(out, ", of %.2f usable.\n", (double)usable / TSR__GIB);
    else
        fputs(".\n", out);
    fputs("`exposed`: communication while no kernel runs. `in node`, `between`: bytes that a GPU "
          "sends inside and between nodes.\n`?`: unknown in the device file.\n",
          out);
}

static void put_markdown(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                         size_t n)
{
    if (info->title && info->title[0])
        fprintf(out, "## %s\n\n", info->title);
    fprintf(out, "%s on %s: %" PRIu32 " x %s", info->model_name, info->cluster_name, info->world,
            info->gpu_name);
    bool same = n > 0;
    for (size_t i = 1; i < n; i++)
        same = same && rows[i].tokens_per_rank == rows[0].tokens_per_rank;
    if (same)
        fprintf(out, ", %" PRIu64 " tokens per GPU and step", rows[0].tokens_per_rank);
    fputs("\n\n", out);
    put_table(out, rows, n);
    fputc('\n', out);
    put_failures(out, rows, n);
    put_best(out, info, rows, n);
    put_notes(out, info, rows, n);
}

tsr_status tsr_report_table(FILE *out, const char *format, const struct tsr_study_info *info,
                            const struct tsr_row *rows, size_t n)
{
    if (strcmp(format, "md") == 0) {
        put_markdown(out, info, rows, n);
    } else if (strcmp(format, "csv") == 0) {
        tsr__put_rows_csv(out, rows, n);
    } else if (strcmp(format, "json") == 0) {
        json_t *value = tsr__rows_json(info, rows, n, false);
        tsr_status status = tsr__put_json_value(out, value);
        json_decref(value);
        TSR_TRY(status);
    } else {
        return tsr_fail(TSR_ECONFIG, "--format %s: must be md, csv or json", format);
    }
    return tsr_flush(out, "standard output");
}
