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
    {"memory, GiB", true, false}, {"max reserved", false, false}, {"context", false, false},
    {"libraries", false, false},  {"NCCL", false, false},         {"known sum", false, false},
    {"usable", false, false},     {"fits", true, false},          {"host", false, true},
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

static void put_host(FILE *out, const struct tsr_row *rows, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || (!rows[i].failure[0] && rows[i].node_host.ranks);
    if (!any)
        return;
    tsr__put_table(out, host_columns, HOST_COLUMNS, 0, walk_host, rows, n);
    fputc('\n', out);
}

/* The tables below the comparison: what takes the memory of the card and of the host; and, of the
 * runs that ask for it, the peak of each section. */
static void tsr__put_card(FILE *out, const struct tsr_row *rows, size_t n, bool wide)
{
    const double least = TSR__GIB / 200; /* shown as 0.01 */
    bool any = false, uses_host = false;
    for (size_t i = 0; i < n; i++) {
        const struct tsr_row *r = &rows[i];
        any = any || !r->failure[0];
        bool is_much = (double)(r->host_bytes + r->pinned_bytes) >= least;
        bool is_short = r->node_host.verdict == TSR_HOST_TOO_SMALL;
        uses_host = uses_host || (!r->failure[0] && (is_much || is_short));
    }
    if (!any)
        return;
    /* Something is offloaded: then the host's memory belongs to the answer. */
    unsigned left_out = wide || uses_host ? 0 : wide_columns(card_columns, CARD_COLUMNS);
    tsr__put_table(out, card_columns, CARD_COLUMNS, left_out, walk_card, rows, n);
    fputc('\n', out);
    if (!left_out)
        put_host(out, rows, n);
    tsr__put_fits(out, rows, n);
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

enum { N_COLUMNS = 13, DEVICE_COLUMN = 12 };

static const struct tsr__table_column columns[N_COLUMNS] = {
    {"strategy", true, false},     {"step ms", false, false},    {"tokens/s/GPU", false, false},
    {"MFU %", false, false},       {"peak GiB", false, false},   {"reserved", false, false},
    {"fits", true, false},         {"exposed ms", false, true},  {"exposed %", false, false},
    {"in node GiB", false, true},  {"between GiB", false, true}, {"first ms", false, true},
    {"ranks, device", true, true},
};

/* Writes bytes that a GPU sends in a step, in the unit of all other sizes. */
static void put_gib(tsr__cell out, uint64_t bytes)
{
    (void)snprintf(out, TSR__CELL_BYTES, "%.2f", (double)bytes / TSR__GIB);
}

static void fill_row(tsr__cell *cells, const struct tsr_row *row, bool best, int footnote)
{
    char mark[24] = "";
    if (footnote)
        (void)snprintf(mark, sizeof mark, " [%d]", footnote);
    else if (best || row->changes.kinds)
        (void)snprintf(mark, sizeof mark, " %s%s%s", best ? "*" : "",
                       row->changes.kinds & TSR_CHANGES_NUMBERS ? "~" : "",
                       row->changes.kinds & TSR_CHANGES_HARDWARE ? "^" : "");
    tsr__cell_name(cells[0], row->strategy, mark);
    if (row->failure[0]) {
        for (int c = 1; c < N_COLUMNS; c++)
            (void)snprintf(cells[c], TSR__CELL_BYTES, "-");
        if (row->failure_status == 3)
            (void)snprintf(cells[6], TSR__CELL_BYTES, "NO");
        return;
    }
    const struct tsr_metrics *m = &row->steady;
    double step = m->step_s;
    (void)snprintf(cells[1], TSR__CELL_BYTES, "%.2f", step * 1e3);
    (void)snprintf(cells[2], TSR__CELL_BYTES, step > 0 ? "%.0f" : "?",
                   step > 0 ? (double)row->tokens_per_rank / step : 0.0);
    (void)snprintf(cells[3], TSR__CELL_BYTES, row->mfu >= 0 ? "%.1f" : "?", row->mfu * 100);
    (void)snprintf(cells[4], TSR__CELL_BYTES, "%.2f", (double)row->peak_allocated / TSR__GIB);
    (void)snprintf(cells[5], TSR__CELL_BYTES, "%.2f", (double)row->peak_reserved / TSR__GIB);
    (void)snprintf(cells[6], TSR__CELL_BYTES, "%s", tsr__fits_text(row));
    (void)snprintf(cells[7], TSR__CELL_BYTES, "%.2f", m->exposed_s * 1e3);
    (void)snprintf(cells[8], TSR__CELL_BYTES, step > 0 ? "%.1f" : "?",
                   step > 0 ? m->exposed_s / step * 100 : 0.0);
    put_gib(cells[9], m->sent_intra);
    put_gib(cells[10], m->sent_inter);
    (void)snprintf(cells[11], TSR__CELL_BYTES, "%.2f", row->first.step_s * 1e3);
    (void)snprintf(cells[DEVICE_COLUMN], TSR__CELL_BYTES, "%" PRIu32 " x %s", row->world,
                   row->device);
}

/* The columns of the terminal: beside a run each row says on what it is. */
static unsigned left_out_columns(const struct tsr_row *rows, size_t n, bool wide)
{
    unsigned narrow = wide ? 0 : wide_columns(columns, N_COLUMNS);
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
            fprintf(out, "[%d] %s: %s%s%s\n\n", ++footnote, tsr_show(rows[i].strategy).text,
                    tsr_show_line(rows[i].failure).text, rows[i].remedy[0] ? "; " : "",
                    tsr_show_line(rows[i].remedy).text);
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
    fprintf(out, "No strategy fits; the smallest, %s, reserves %.2f GiB%s.\n\n",
            tsr_show(rows[least].strategy).text, (double)rows[least].peak_reserved / TSR__GIB,
            rows[least].node_host.verdict == TSR_HOST_TOO_SMALL
                ? ", and its ranks need more memory than their host has"
                : "");
}

/* The command that runs a row. */
static void put_run(FILE *out, const struct tsr_study_info *info, const struct tsr_row *row)
{
    const struct tsr_run_words *run = tsr__run_of(info, row->strategy);
    fputs("\n\n    tessera run ", out);
    tsr__put_word(out, info->config_path);
    fputs(" --strategy ", out);
    tsr__put_word(out, run ? run->name : row->strategy);
    for (size_t i = 0; run && i < run->n_set; i++) {
        fputs(" --set ", out);
        tsr__put_word(out, run->set[i]);
    }
    fputs(row->trains ? " --on host\n\n(--on host trains on this machine's cores; --on sim "
                        "simulates again)\n\n"
                      : " --on sim\n\n(--on host trains a small model on this machine's cores)\n\n",
          out);
}

/* What is faster than the winner and no answer to the same question. */
static void put_faster(FILE *out, const struct tsr_row *rows, size_t n, const struct tsr_row *best)
{
    static const char *const what[] = {
        "", "it changes what is computed (~)", "it runs on something else (^)",
        "it changes what is computed and runs on something else (~^)"};
    for (unsigned changes = best->changes.kinds + 1; changes <= TSR_ALL_CHANGES; changes++) {
        int at = tsr__fastest_row(rows, n, 1, changes);
        double ratio = at < 0 ? 1 : tsr__token_s(&rows[at]) / tsr__token_s(best);
        if (ratio < 1)
            fprintf(out, "Faster, but %s: %s, %.1f %% less time per token and GPU: %s.\n\n",
                    what[changes], tsr_show(rows[at].strategy).text, (1 - ratio) * 100,
                    tsr_show_line(rows[at].changes.words).text);
    }
}

static void put_best(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                     size_t n)
{
    int at = tsr__best_row(rows, n);
    if (at < 0) {
        put_none_fits(out, rows, n);
        return;
    }
    const struct tsr_row *best = &rows[at];
    fprintf(out, "%s%s (marked \"*\"): %s", best->fits > 0 ? "Fastest that fits" : "Fastest",
            tsr__same_tokens(rows, n) ? "" : ", by time per token and GPU",
            tsr_show(best->strategy).text);
    if (best->changes.kinds)
        fprintf(out, ", which changes %s (nothing fits without such a change)",
                tsr_show_line(best->changes.words).text);
    fputs(". This runs it:", out);
    put_run(out, info, best);
    put_faster(out, rows, n, best);
}

/* What the marks behind names say, where there are such. */
static void put_marks(FILE *out, const struct tsr_row *rows, size_t n)
{
    static const char *const legend[] = {
        "`~`: changes what is computed (model, sequence, precision, optimizer, clipping)",
        "`^`: runs on other hardware, or under other conditions"};
    unsigned kinds = 0;
    for (size_t i = 0; i < n; i++)
        kinds |= rows[i].failure[0] ? 0 : rows[i].changes.kinds;
    for (unsigned k = 0; k < 2; k++)
        if (kinds >> k & 1)
            fprintf(out, "%s; never the winner over rows that do not.\n", legend[k]);
}

static bool has_measured(const struct tsr_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i].measured)
            return true;
    return false;
}

/* Traced kernels that the cost model has no rule for. */
static void put_unknown(FILE *out, const struct tsr_row *rows, size_t n)
{
    const struct tsr_row *most = NULL;
    double share = 0;
    for (size_t i = 0; i < n; i++)
        if (!rows[i].failure[0] && rows[i].unknown_s > share * rows[i].steady.step_s) {
            most = &rows[i];
            share = rows[i].unknown_s / rows[i].steady.step_s;
        }
    if (most)
        fprintf(out,
                "Kernels of the trace that the cost model does not know are priced by FLOP and "
                "bytes: up to %.1f %% of the step (%s).\n",
                100 * share, tsr_show(most->strategy).text);
}

/* Says why a utilisation is above 1: only attention that is counted and not computed can do that.
 */
static void put_over_peak(FILE *out, const struct tsr_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!rows[i].failure[0] && rows[i].mfu > 1) {
            fputs(TSR_MFU_OVER_PEAK "\n", out);
            return;
        }
}

static void put_notes(FILE *out, const struct tsr_row *rows, size_t n, bool wide)
{
    uint64_t usable = usable_of(rows, n);
    fprintf(out, "Steady step%s. `peak`, `reserved`: allocated and reserved GiB of the fullest GPU",
            wide ? "; `first`: the first one" : "");
    if (usable)
        fprintf(out, ", of %.2f usable.\n", (double)usable / TSR__GIB);
    else
        fputs(".\n", out);
    fprintf(out, "`exposed`: communication while no kernel runs.%s\n",
            wide ? " `in node`, `between`: bytes that a GPU sends inside and between nodes."
                 : " --wide has more columns.");
    fputs("`max reserved`: the most of all phases that were emitted; "
          "context, libraries and NCCL lie outside the allocator; host and pinned: of one "
          "rank; node: of the ranks of a node.\n`?`: unknown in the device or node file; `>`: at "
          "least.\n",
          out);
}

static void put_markdown(FILE *out, FILE *notes, const struct tsr_study_info *info,
                         const struct tsr_row *rows, size_t n, bool wide)
{
    if (info->title && info->title[0])
        fprintf(out, "## %s\n\n", tsr_show_line(info->title).text);
    char ranks[32];
    fprintf(out, "%s on %s: %s x %s", tsr_show_line(info->model_name).text,
            tsr_show_line(info->cluster_name).text, tsr__ranks_text(info, ranks),
            tsr_show_line(info->gpu_name).text);
    if (n && tsr__same_tokens(rows, n))
        fprintf(out, ", %" PRIu64 " tokens per GPU and step", rows[0].tokens_per_rank);
    fputs("\n\n", out);
    tsr__put_table(out, columns, N_COLUMNS, left_out_columns(rows, n, wide), walk_rows, rows, n);
    fputc('\n', out);
    tsr__put_samples(out, rows, n);
    tsr__put_card(out, rows, n, wide);
    tsr__put_sections(out, rows, n, wide);
    put_failures(out, rows, n);
    put_best(out, info, rows, n);
    fprintf(out, "All times are simulated, for the device file %s%s.\n",
            tsr_show_line(info->device_file).text,
            has_measured(rows, n) ? "; those of rows named -measured are of a run" : "");
    tsr_put_validated(out, notes, info);
    put_over_peak(out, rows, n);
    put_unknown(out, rows, n);
    put_marks(out, rows, n);
    put_notes(notes, rows, n, wide);
}

tsr_status tsr_report_table(FILE *out, FILE *notes, const char *format,
                            const struct tsr_study_info *info, const struct tsr_row *rows, size_t n)
{
    if (strcmp(format, "md") == 0 || strcmp(format, "wide") == 0) {
        put_markdown(out, notes, info, rows, n, format[0] == 'w');
    } else if (strcmp(format, "csv") == 0) {
        tsr__put_rows_csv(out, rows, n);
    } else if (strcmp(format, "json") == 0) {
        TSR_TRY(tsr_put_json(out, tsr__rows_json(info, rows, n, false)));
    } else {
        return tsr_fail(TSR_ECONFIG, "--format %s: must be md, csv or json", format);
    }
    return tsr_flush(out, "standard output");
}
