/* report_table.c: the comparison as a table on a stream.
 *
 * The Markdown table is padded so that it reads well in a terminal. Units stand in the head;
 * memory in GiB as PyTorch reports it, bytes on the wire in GB as nccl-tests does.
 */
#include "experiments/study/base/out_file.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_cells.h"
#include "experiments/study/report/report_rows.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/report_validated.h"

#include <inttypes.h>
#include <string.h>

enum { N_COLUMNS = 12 };

static const struct tsr__table_column columns[N_COLUMNS] = {
    {"strategy", true},   {"step ms", false},      {"tokens/s/GPU", false}, {"MFU %", false},
    {"peak GiB", false},  {"reserved GiB", false}, {"fits", true},          {"exposed ms", false},
    {"exposed %", false}, {"in node GB", false},   {"between GB", false},   {"first ms", false},
};

/* A figure of a GPU's step in bytes, as GB. */
static void put_gb(tsr__cell out, uint64_t bytes)
{
    (void)snprintf(out, TSR__CELL_BYTES, "%.2f", (double)bytes / 1e9);
}

static void fill_row(tsr__cell *cells, const struct tsr_row *row, bool best, int footnote)
{
    char mark[24] = "";
    if (best)
        (void)snprintf(mark, sizeof mark, " *");
    else if (footnote)
        (void)snprintf(mark, sizeof mark, " [%d]", footnote);
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
    (void)snprintf(cells[6], TSR__CELL_BYTES, "%s", tsr__fits_text(row->fits));
    (void)snprintf(cells[7], TSR__CELL_BYTES, "%.2f", m->exposed_s * 1e3);
    (void)snprintf(cells[8], TSR__CELL_BYTES, step > 0 ? "%.1f" : "?",
                   step > 0 ? m->exposed_s / step * 100 : 0.0);
    put_gb(cells[9], m->sent_intra);
    put_gb(cells[10], m->sent_inter);
    (void)snprintf(cells[11], TSR__CELL_BYTES, "%.2f", row->first.step_s * 1e3);
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
            fprintf(out, "[%d] %s: %s%s%s\n\n", ++footnote, rows[i].strategy, rows[i].failure,
                    rows[i].remedy[0] ? "; " : "", rows[i].remedy);
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
    for (size_t i = 0; i < info->n_sets; i++) {
        fputs(" --set ", out);
        tsr__put_word(out, info->sets[i]);
    }
    fputs(rows[best].trains
              ? " --on host\n\n(--on host trains on this machine's cores; --on sim simulates "
                "again)\n\n"
              : " --on sim\n\n(--on host trains a small model on this machine's cores)\n\n",
          out);
}

static bool has_measured(const struct tsr_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(rows[i].strategy, "-measured"))
            return true;
    return false;
}

static void put_notes(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                      size_t n)
{
    uint64_t usable = usable_of(rows, n);
    fprintf(out, "All times are simulated, for the device file %s%s.\n", info->device_file,
            has_measured(rows, n) ? "; those of rows named -measured are of a run" : "");
    tsr__put_validated(out, info);
    fputs(
        "Steady step; `first`: the first one. `peak`, `reserved`: allocated and reserved memory of "
        "the fullest GPU",
        out);
    if (usable)
        fprintf(out, ", of %.2f usable.\n", (double)usable / TSR__GIB);
    else
        fputs(".\n", out);
    fputs("`exposed`: communication while no kernel runs. `in node`, `between`: bytes that a GPU "
          "sends inside and between nodes.\nReserved memory is the most of all phases that were "
          "emitted; "
          "context, libraries and NCCL lie outside the allocator; host and pinned: of one "
          "rank.\n`?`: unknown in the device file.\n",
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
    tsr__put_table(out, columns, N_COLUMNS, walk_rows, rows, n);
    fputc('\n', out);
    tsr__put_samples(out, rows, n);
    tsr__put_card(out, rows, n);
    tsr__put_sections(out, rows, n);
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
        TSR_TRY(tsr_put_json(out, tsr__rows_json(info, rows, n, false)));
    } else {
        return tsr_fail(TSR_ECONFIG, "--format %s: must be md, csv or json", format);
    }
    return tsr_flush(out, "standard output");
}
