/* report_table.c: the comparison as tables on a stream: its rows; what takes the memory of the card
 * and of the host; percentiles under noise.
 *
 * Markdown tables are padded so that they read well in a terminal. Units stand in the head; memory
 * in GiB as PyTorch reports it, bytes on the wire in GB as nccl-tests does.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/job/result.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_answer.h"
#include "experiments/study/report/report_fits.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "sim/base/text.h"

/* ---- padded tables --------------------------------------------------------------------------- */

enum { TSR__CELL_BYTES = 128, TSR__MAX_CELLS = 16 };
typedef char tsr__cell[TSR__CELL_BYTES];

struct tsr__table_column {
    const char *head;
    bool left;
    bool wide; /* only where there is room for all */
};

struct tsr__table {
    const struct tsr__table_column *columns;
    int n;             /* columns, at most TSR__MAX_CELLS */
    unsigned left_out; /* set of columns that are not shown */
    int widths[TSR__MAX_CELLS];
    FILE *out; /* NULL while the columns are measured */
};

/* Prints a table; `walk` hands every line to tsr__table_row() and is called twice. */
typedef void (*tsr__table_fn)(struct tsr__table *table, const struct tsr_row *rows, size_t n);

/* Columns that a text takes in a terminal. */
static int width_of(const char *text)
{
    return (int)tsr_text_columns(text);
}

/* A name inside a table: '|' would end the cell. `mark` comes behind it. */
static void tsr__cell_name(tsr__cell out, const char *name, const char *mark)
{
    bool escaped;
    size_t n = 0;
    while (*name && n + 2 * TSR_TEXT_PIECE < TSR__CELL_BYTES) {
        if (*name == '|')
            out[n++] = '\\';
        n += tsr_text_next(&name, out + n, &escaped);
    }
    (void)snprintf(out + n, TSR__CELL_BYTES - n, "%s", mark);
}

/* Bytes as GiB; negative: "?". */
static void tsr__cell_gib(tsr__cell out, int64_t bytes)
{
    (void)snprintf(out, TSR__CELL_BYTES, bytes < 0 ? "?" : "%.2f", (double)bytes / TSR__GIB);
}

/* Of NCCL the least may be known: ">0.30". */
static void tsr__cell_nccl(tsr__cell out, const struct tsr_row *row)
{
    bool is_least = row->fit.has_nccl && row->fit.nccl_at_most > row->fit.nccl;
    (void)snprintf(out, TSR__CELL_BYTES, row->nccl_bytes < 0 ? "?" : "%s%.2f", is_least ? ">" : "",
                   (double)row->nccl_bytes / TSR__GIB);
}

/* One line of the table. */
static void tsr__table_row(struct tsr__table *table, const tsr__cell *cells)
{
    for (int c = 0; c < table->n; c++) {
        int width = width_of(cells[c]), pad = table->widths[c] - width;
        if (table->left_out >> c & 1)
            continue;
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
        if (table->left_out >> c & 1)
            continue;
        fputc('|', table->out);
        fputc(table->columns[c].left ? ':' : '-', table->out);
        for (int i = 0; i < table->widths[c]; i++)
            fputc('-', table->out);
        fputc(table->columns[c].left ? '-' : ':', table->out);
    }
    fputs("|\n", table->out);
}

/* The columns that are only shown where there is room. */
static unsigned wide_columns(const struct tsr__table_column *columns, int n)
{
    unsigned set = 0;
    for (int c = 0; c < n; c++)
        set |= (unsigned)columns[c].wide << c;
    return set;
}

static void tsr__put_table(FILE *out, const struct tsr__table_column *columns, int n_columns,
                           unsigned left_out, tsr__table_fn walk, const struct tsr_row *rows,
                           size_t n)
{
    struct tsr__table table = {.columns = columns, .n = n_columns, .left_out = left_out};
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

/* ---- memory against the card ----------------------------------------------------------------- */

enum { CARD_COLUMNS = 10 };
static const struct tsr__table_column card_columns[CARD_COLUMNS] = {
    {"GiB", true, false},        {"max reserved", false, false}, {"context", false, false},
    {"libraries", false, false}, {"NCCL", false, false},         {"needed", false, false},
    {"usable", false, false},    {"fits", true, false},          {"host", false, true},
    {"pinned", false, true},
};

static void walk_card(struct tsr__table *table, const struct tsr_row *rows, size_t n)
{
    tsr__cell cells[CARD_COLUMNS];
    for (size_t i = 0; i < n; i++) {
        const struct tsr_row *r = &rows[i];
        const int64_t outside[] = {r->context_bytes, r->library_bytes, r->nccl_bytes};
        int64_t sum = (int64_t)r->most_reserved;
        if (r->failure[0])
            continue;
        tsr__cell_name(cells[0], r->strategy, "");
        tsr__cell_gib(cells[1], sum);
        for (int k = 0; k < 3; k++) {
            tsr__cell_gib(cells[2 + k], outside[k]);
            sum += outside[k] > 0 ? outside[k] : 0;
        }
        tsr__cell_nccl(cells[4], r);
        tsr__cell_gib(cells[5], sum);
        tsr__cell_gib(cells[6], r->usable_bytes ? (int64_t)r->usable_bytes : -1);
        (void)snprintf(cells[7], TSR__CELL_BYTES, "%s", tsr__fits_text(r));
        tsr__cell_gib(cells[8], (int64_t)r->host_bytes);
        tsr__cell_gib(cells[9], (int64_t)r->pinned_bytes);
        tsr__table_row(table, (const tsr__cell *)cells);
    }
}

/* True if a rank holds memory on its host that is worth a column, or has too little. */
static bool uses_host(const struct tsr_row *rows, size_t n)
{
    const double least = TSR__GIB / 200; /* shown as 0.01 */
    for (size_t i = 0; i < n; i++) {
        const struct tsr_row *r = &rows[i];
        if (!r->failure[0] && ((double)(r->host_bytes + r->pinned_bytes) >= least ||
                               r->node_host.verdict == TSR_HOST_TOO_SMALL))
            return true;
    }
    return false;
}

enum { HOST_COLUMNS = 8 };
static const struct tsr__table_column host_columns[HOST_COLUMNS] = {
    {"host of a node, GiB", true, false},
    {"ranks", false, false},
    {"at most", false, false},
    {"phase", true, false},
    {"one rank", false, false},
    {"steady step", false, false},
    {"memory", false, false},
    {"fits", true, false},
};

static void walk_host(struct tsr__table *table, const struct tsr_row *rows, size_t n)
{
    tsr__cell cells[HOST_COLUMNS];
    for (size_t i = 0; i < n; i++) {
        const struct tsr_host_fit *host = &rows[i].node_host;
        if (rows[i].failure[0] || !host->ranks)
            continue;
        tsr__cell_name(cells[0], rows[i].strategy, "");
        (void)snprintf(cells[1], TSR__CELL_BYTES, "%" PRIu32, host->ranks);
        tsr__cell_gib(cells[2], (int64_t)host->required);
        (void)snprintf(cells[3], TSR__CELL_BYTES, "%s", host->section);
        tsr__cell_gib(cells[4], (int64_t)host->rank_bytes);
        tsr__cell_gib(cells[5], (int64_t)host->steady);
        tsr__cell_gib(cells[6], host->memory ? (int64_t)host->memory : -1);
        (void)snprintf(cells[7], TSR__CELL_BYTES, "%s", tsr_host_text(host->verdict));
        tsr__table_row(table, (const tsr__cell *)cells);
    }
}

static bool any_host(const struct tsr_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!rows[i].failure[0] && rows[i].node_host.ranks)
            return true;
    return false;
}

/* Shows what the ranks of a node hold on its host, where strategies use it. */
static void tsr__put_hosts(FILE *out, const struct tsr_row *rows, size_t n, bool wide)
{
    if (!any_host(rows, n) || (!wide && !uses_host(rows, n)))
        return;
    tsr__put_table(out, host_columns, HOST_COLUMNS, 0, walk_host, rows, n);
    fputc('\n', out);
}

/* The table of what takes the memory of the card, part by part. */
static void tsr__put_card(FILE *out, const struct tsr_row *rows, size_t n, bool wide)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || !rows[i].failure[0];
    if (!any)
        return;
    /* Something is offloaded: then the host's memory belongs to the answer. */
    unsigned left_out = wide || uses_host(rows, n) ? 0 : wide_columns(card_columns, CARD_COLUMNS);
    tsr__put_table(out, card_columns, CARD_COLUMNS, left_out, walk_card, rows, n);
    fputc('\n', out);
}

/* ---- memory by section ----------------------------------------------------------------------- */

enum { SECTION_COLUMNS = 9 };
static const struct tsr__table_column section_columns[SECTION_COLUMNS] = {
    {"peak by phase, GiB", true, false},
    {"phase", true, false},
    {"allocated", false, false},
    {"reserved", false, false},
    {"host", false, false},
    {"pinned", false, false},
    {"node", false, true},
    {"adds, ms", false, false},
    {"made by", true, false},
};

static void put_section(struct tsr__table *table, const char *strategy, const char *name,
                        const struct tsr_section_peak *s)
{
    tsr__cell cells[SECTION_COLUMNS];
    const uint64_t bytes[] = {s->allocated, s->reserved, s->host, s->pinned, s->node_host};
    char by[2 * TSR__CELL_BYTES];
    tsr__cell_name(cells[0], strategy, "");
    (void)snprintf(cells[1], TSR__CELL_BYTES, "%s", name);
    for (int k = 0; k < 5; k++)
        tsr__cell_gib(cells[2 + k], (int64_t)bytes[k]);
    (void)snprintf(cells[7], TSR__CELL_BYTES, "%.1f", 1e3 * (s->added_s > 0 ? s->added_s : 0.0));
    (void)snprintf(by, sizeof by, "%s, %s", s->phase, s->module);
    tsr__cell_name(cells[8], by, "");
    tsr__table_row(table, (const tsr__cell *)cells);
}

static void walk_sections(struct tsr__table *table, const struct tsr_row *rows, size_t n)
{
    static const char *const names[TSR_N_SECTIONS] = {TSR_SECTION_WORDS};
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < TSR_N_SECTIONS; k++)
            if (!rows[i].failure[0] && (rows[i].show_sections >> k & 1))
                put_section(table, rows[i].strategy, names[k], &rows[i].sections[k]);
}

static void tsr__put_sections(FILE *out, const struct tsr_row *rows, size_t n, bool wide)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || (!rows[i].failure[0] && rows[i].show_sections);
    if (!any)
        return;
    unsigned left_out = wide ? 0 : wide_columns(section_columns, SECTION_COLUMNS);
    tsr__put_table(out, section_columns, SECTION_COLUMNS, left_out, walk_sections, rows, n);
    fputc('\n', out);
}

/* ---- under noise ----------------------------------------------------------------------------- */

enum { SAMPLE_COLUMNS = 6 };
static const struct tsr__table_column sample_columns[SAMPLE_COLUMNS] = {
    {"step ms with noise", true, false},
    {"samples", false, false},
    {"p5", false, false},
    {"p50", false, false},
    {"p95", false, false},
    {"mean", false, false},
};

static void walk_samples(struct tsr__table *table, const struct tsr_row *rows, size_t n)
{
    tsr__cell cells[SAMPLE_COLUMNS];
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

/* Percentiles of the step under noise. */
static void tsr__put_samples(FILE *out, const struct tsr_row *rows, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || rows[i].samples.n;
    if (!any)
        return;
    tsr__put_table(out, sample_columns, SAMPLE_COLUMNS, 0, walk_samples, rows, n);
    fputc('\n', out);
}

/* ---- the comparison -------------------------------------------------------------------------- */

enum {
    TIME_COLUMN = 1,
    RATE_COLUMN = 2,
    UNKNOWN_COLUMN = 5,
    FITS_COLUMN = 8,
    DEVICE_COLUMN = 14,
    N_COLUMNS = 15
};

static const struct tsr__table_column columns[N_COLUMNS] = {
    {"strategy", true, false},    {"step ms", false, false},   {"tokens/s", false, false},
    {"MFU %", false, false},      {"exposed %", false, false}, {"unknown %", false, false},
    {"peak GiB", false, false},   {"needed", false, false},    {"fits", true, false},
    {"reserved", false, true},    {"exposed ms", false, true}, {"in node GiB", false, true},
    {"between GiB", false, true}, {"first ms", false, true},   {"ranks, device", true, true},
};

/* Writes bytes in the unit of all sizes. */
static void put_gib(tsr__cell out, uint64_t bytes)
{
    (void)snprintf(out, TSR__CELL_BYTES, "%.2f", (double)bytes / TSR__GIB);
}

/* A share that is not zero is not shown as zero. */
static void put_unknown(tsr__cell out, double share)
{
    bool rounds_to_zero = share > 0 && share < 5e-4;
    (void)snprintf(out, TSR__CELL_BYTES,
                   share < 0        ? "?"
                   : rounds_to_zero ? "<0.1"
                                    : "%.1f",
                   100 * share);
}

static void fill_row(tsr__cell *cells, const struct tsr_row *row, bool best, int footnote)
{
    char mark[24] = "";
    if (footnote)
        (void)snprintf(mark, sizeof mark, " [%d]", footnote);
    else if (best || row->changes.kinds)
        (void)snprintf(mark, sizeof mark, " %s%s%s%s", best ? "*" : "",
                       row->changes.kinds & TSR_CHANGES_STACK ? "+" : "",
                       row->changes.kinds & TSR_CHANGES_NUMBERS ? "~" : "",
                       row->changes.kinds & TSR_CHANGES_HARDWARE ? "^" : "");
    tsr__cell_name(cells[0], row->strategy, mark);
    if (row->failure[0]) {
        for (int c = 1; c < N_COLUMNS; c++)
            (void)snprintf(cells[c], TSR__CELL_BYTES, "-");
        if (row->failure_status == 3)
            (void)snprintf(cells[FITS_COLUMN], TSR__CELL_BYTES, "NO");
        return;
    }
    const struct tsr_metrics *m = &row->steady;
    double step = m->step_s;
    (void)snprintf(cells[1], TSR__CELL_BYTES, "%.2f", step * 1e3);
    (void)snprintf(cells[2], TSR__CELL_BYTES, step > 0 ? "%.0f" : "?",
                   step > 0 ? (double)row->tokens_per_rank / step : 0.0);
    (void)snprintf(cells[3], TSR__CELL_BYTES, row->mfu >= 0 ? "%.1f" : "?", row->mfu * 100);
    (void)snprintf(cells[4], TSR__CELL_BYTES, step > 0 ? "%.1f" : "?",
                   step > 0 ? m->exposed_s / step * 100 : 0.0);
    put_unknown(cells[UNKNOWN_COLUMN], tsr__unknown_share(row));
    put_gib(cells[6], row->peak_allocated);
    put_gib(cells[7], row->needed);
    (void)snprintf(cells[FITS_COLUMN], TSR__CELL_BYTES, "%s", tsr__fits_text(row));
    put_gib(cells[9], row->peak_reserved);
    (void)snprintf(cells[10], TSR__CELL_BYTES, "%.2f", m->exposed_s * 1e3);
    put_gib(cells[11], m->sent_intra);
    put_gib(cells[12], m->sent_inter);
    (void)snprintf(cells[13], TSR__CELL_BYTES, "%.2f", row->first.step_s * 1e3);
    (void)snprintf(cells[DEVICE_COLUMN], TSR__CELL_BYTES, "%" PRIu32 " x %s", row->world,
                   row->device);
}

/* Returns the columns that the terminal does not show: in which kernels are unknown where none is,
 * on what a row is unless it stands beside a run, and where there is little room, that one of time
 * and rate that does not rank rows. `format`: the first letter of its name. */
static unsigned left_out_columns(const struct tsr_row *rows, size_t n, char format)
{
    unsigned narrow = format == 'w' ? 0 : wide_columns(columns, N_COLUMNS);
    if (format == 'n' || (format == 'm' && tsr__is_mixed(rows, n)))
        narrow |= 1U << (tsr__same_tokens(rows, n) ? RATE_COLUMN : TIME_COLUMN);
    if (!tsr__any_unknown(rows, n))
        narrow |= 1U << UNKNOWN_COLUMN;
    unsigned device = 1U << DEVICE_COLUMN;
    return tsr__is_mixed(rows, n) ? narrow & ~device : narrow | device;
}

static void walk_rows(struct tsr__table *table, const struct tsr_row *rows, size_t n)
{
    tsr__cell cells[N_COLUMNS];
    int best = tsr__best_row(rows, n), footnote = 0;
    for (size_t i = 0; i < n; i++) {
        fill_row(cells, &rows[i], (int)i == best, rows[i].failure[0] ? ++footnote : 0);
        tsr__table_row(table, (const tsr__cell *)cells);
    }
}

/* ---- notes ----------------------------------------------------------------------------------- */

static void put_notes(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                      size_t n, bool wide)
{
    if (!wide)
        tsr__put_card(out, rows, n, false);
    tsr_put_validated(out, out, info);
    fprintf(out,
            "Steady step%s. `peak`: allocated memory of the fullest GPU. `needed`: `max "
            "reserved`, the most that the allocator holds in all phases that were emitted, with "
            "context, libraries and NCCL, which lie outside it.\n",
            wide ? "; `first`: the first one; `reserved`: by the allocator" : "");
    fprintf(out, "`exposed`: communication while no kernel runs.%s\n",
            wide ? " `in node`, `between`: bytes that a GPU sends inside and between nodes."
                 : " --wide has more columns.");
    fputs(
        "host and pinned: of one rank; "
        "node: of the ranks of a node.\n`?`: unknown in the device or node file; `>`: at least.\n",
        out);
}

static void put_markdown(FILE *out, FILE *notes, const struct tsr_study_info *info,
                         const struct tsr_row *rows, size_t n, char format)
{
    bool wide = format == 'w';
    if (info->title && info->title[0])
        fprintf(out, "## %s\n\n", tsr_show_line(info->title).text);
    char ranks[32];
    fprintf(out, "%s on %s: %s x %s", tsr_show_line(info->model_name).text,
            tsr_show_line(info->cluster_name).text, tsr__ranks_text(info, ranks),
            tsr_show_line(info->gpu_name).text);
    if (n && tsr__same_tokens(rows, n))
        fprintf(out, ", %" PRIu64 " tokens per GPU and step", rows[0].tokens_per_rank);
    if (tsr__usable_of(rows, n))
        fprintf(out, ", %.2f GiB usable", (double)tsr__usable_of(rows, n) / TSR__GIB);
    fputs("\n\n", out);
    tsr__put_table(out, columns, N_COLUMNS, left_out_columns(rows, n, format), walk_rows, rows, n);
    fputc('\n', out);
    tsr__put_samples(out, rows, n);
    if (wide)
        tsr__put_card(out, rows, n, true);
    tsr__put_sections(out, rows, n, wide);
    tsr__put_hosts(out, rows, n, wide);
    tsr__put_answer(out, info, rows, n);
    put_notes(notes, info, rows, n, wide);
}

tsr_status tsr_report_table(FILE *out, FILE *notes, const char *format,
                            const struct tsr_study_info *info, const struct tsr_row *rows, size_t n)
{
    if (strcmp(format, "md") == 0 || strcmp(format, "wide") == 0 || strcmp(format, "narrow") == 0) {
        put_markdown(out, notes, info, rows, n, format[0]);
    } else if (strcmp(format, "csv") == 0) {
        tsr__put_rows_csv(out, rows, n);
    } else if (strcmp(format, "json") == 0) {
        TSR_TRY(tsr_put_json(out, tsr__rows_json(info, rows, n, false)));
    } else {
        return tsr_fail(TSR_ECONFIG, "--format %s: must be md, csv or json", format);
    }
    return tsr_flush(out, "standard output");
}
