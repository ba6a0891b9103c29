/* report_answer.c: what stands below the table of a comparison: what the verdicts are of, which row
 * wins and why, how it is run, and on what knowledge all of that rests. One screen with the table.
 */
#include "experiments/study/report/report_answer.h"

#include <math.h>
#include <stdio.h>

#include "experiments/study/base/files.h"
#include "experiments/study/report/report_fits.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "sim/base/text.h"

uint64_t tsr__usable_of(const struct tsr_row *rows, size_t n)
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

/* Prints a command about a row's strategy, which `option` names. */
static void put_command(FILE *out, const struct tsr_study_info *info, const struct tsr_row *row,
                        const char *subcommand, const char *option)
{
    const struct tsr_run_words *run = tsr__run_of(info, row->strategy);
    fprintf(out, "tessera %s ", subcommand);
    tsr__put_word(out, info->config_path);
    fprintf(out, " %s ", option);
    tsr__put_word(out, run ? run->name : row->strategy);
    for (size_t i = 0; run && i < run->n_set; i++) {
        fputs(" --set ", out);
        tsr__put_word(out, run->set[i]);
    }
}

/* No row fits: what the smallest one would need, and the search for settings that fit. */
static void put_none_fits(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                          size_t n)
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
    if (rows[least].measured)
        return;
    fputs("This searches for settings of it that fit:\n\n    ", out);
    put_command(out, info, &rows[least], "plan", "--strategy");
    fputs("\n\n", out);
}

/* ---- the winner ------------------------------------------------------------------------------ */

void tsr__put_next(FILE *out, const struct tsr_study_info *info, const struct tsr_row *row,
                   const char *on)
{
    put_command(out, info, row, on ? "run" : "compare", on ? "--strategy" : "--only");
    if (on)
        fprintf(out, " --on %s", on);
    else
        fputs(" --emit torch out/code", out);
}

/* What to do next: the code that needs PyTorch alone, and the runs that are possible here. */
static void put_run(FILE *out, const struct tsr_study_info *info, const struct tsr_row *row)
{
    if (row->measured) /* the strategy of the row above ran */
        return;
    fputs("This runs it, as PyTorch code that says at its top what it leaves to you:\n\n    ", out);
    tsr__put_next(out, info, row, NULL);
    if (row->trains) {
        fputs("\n    ", out);
        tsr__put_next(out, info, row, row->world <= info->gpus_here ? "cuda" : "host");
    }
    fputs("\n\n", out);
}

/* Returns the fastest of the other rows that fit and change as much as the winner, of equal ones
 * the first; NULL: there is none. Equal programs may differ in the last bits of their times. */
static const struct tsr_row *runner_up(const struct tsr_row *rows, size_t n,
                                       const struct tsr_row *best)
{
    const struct tsr_row *next = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct tsr_row *r = &rows[i];
        if (r != best && !r->failure[0] && r->fits == best->fits &&
            r->changes.kinds == best->changes.kinds && r->measured == best->measured &&
            (!next || tsr__token_s(r) < (1 - 1e-9) * tsr__token_s(next)))
            next = r;
    }
    return next;
}

/* Why the winner wins: what its step has less than that of the next. */
static void put_why(FILE *out, const struct tsr_row *rows, size_t n, const struct tsr_row *best)
{
    const struct tsr_row *next = runner_up(rows, n, best);
    if (!next || tsr__token_s(next) <= 0)
        return;
    double less = 1 - tsr__token_s(best) / tsr__token_s(next);
    const struct tsr_metrics *a = &best->steady, *b = &next->steady;
    if (less < 5e-5) {
        fprintf(out, " As fast: %s.", tsr_show(next->strategy).text);
        return;
    }
    fprintf(out, " The next, %s, takes %.1f %% longer", tsr_show(next->strategy).text,
            100 * less / (1 - less));
    if (best->tokens_per_rank == next->tokens_per_rank)
        fprintf(out, ": kernels %.2f ms against %.2f, exposed communication %.2f against %.2f",
                b->compute_s * 1e3, a->compute_s * 1e3, b->exposed_s * 1e3, a->exposed_s * 1e3);
    fputc('.', out);
}

/* By set of changes. */
static const char *const change_texts[TSR_ALL_CHANGES + 1] = {
    "",
    "needs other software (+)",
    "changes what is computed (~)",
    "needs other software and changes what is computed (+~)",
    "runs on something else (^)",
    "needs other software and runs on something else (+^)",
    "changes what is computed and runs on something else (~^)",
    "needs other software, changes what is computed and runs on something else (+~^)"};

/* What is faster than the winner and no answer to the same question. */
static void put_faster(FILE *out, const struct tsr_row *rows, size_t n, const struct tsr_row *best)
{
    for (unsigned changes = best->changes.kinds + 1; changes <= TSR_ALL_CHANGES; changes++) {
        int at = tsr__fastest_row(rows, n, 1, changes);
        double ratio = at < 0 ? 1 : tsr__token_s(&rows[at]) / tsr__token_s(best);
        if (ratio < 1)
            fprintf(out, "Faster, but it %s: %s, %.1f %% less time per token and GPU: %s.\n\n",
                    change_texts[changes], tsr_show(rows[at].strategy).text, (1 - ratio) * 100,
                    tsr_show_line(rows[at].changes.words).text);
    }
}

static void put_best(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                     size_t n)
{
    int at = tsr__best_row(rows, n);
    if (at < 0) {
        put_none_fits(out, info, rows, n);
        return;
    }
    const struct tsr_row *best = &rows[at];
    size_t n_fit = 0;
    for (size_t i = 0; i < n; i++)
        n_fit += !rows[i].failure[0] && rows[i].fits > 0;
    fprintf(out, "%zu of %zu fit. %s%s (marked \"*\"): %s", n_fit, n,
            best->fits > 0 ? "Fastest that fits" : "Fastest",
            tsr__same_tokens(rows, n) ? "" : ", by time per token and GPU",
            tsr_show(best->strategy).text);
    if (best->changes.kinds)
        fprintf(out, ", which changes %s (nothing fits without such a change)",
                tsr_show_line(best->changes.words).text);
    fputc('.', out);
    put_why(out, rows, n, best);
    fputc('\n', out);
    put_run(out, info, best);
    put_faster(out, rows, n, best);
}

/* What the marks behind names say, where there are such. */
static void put_marks(FILE *out, const struct tsr_row *rows, size_t n)
{
    static const char *const legend[] = {
        "`+`: needs software that the reference does not (torch.compile, a loss in chunks, ...)",
        "`~`: changes what is computed (model, sequence, precision, optimizer, clipping)",
        "`^`: runs on other hardware, or under other conditions"};
    unsigned kinds = 0;
    for (size_t i = 0; i < n; i++)
        kinds |= rows[i].failure[0] ? 0 : rows[i].changes.kinds;
    for (unsigned k = 0; k < 3; k++)
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

/* Explains the column of that name. */
static void put_unknown(FILE *out, const struct tsr_row *rows, size_t n)
{
    if (tsr__any_unknown(rows, n))
        fputs("`unknown`: share of the step in kernels of the trace that the cost model does not "
              "know, which are priced by FLOP and bytes.\n",
              out);
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

/* ---- what it rests on ------------------------------------------------------------------------ */

/* What decides and is not known of a row. */
static void put_unknowns(FILE *out, const struct tsr_row *row)
{
    fputs("Not known: ", out);
    if (!row->usable_bytes)
        fputs("how much of the card a process can use, ", out);
    if (row->library_bytes < 0)
        fputs("the memory of CUDA's libraries outside the allocator", out);
    if (row->library_bytes < 0 && row->usable_bytes > row->needed)
        fprintf(out, " (%s has %.2f GiB left for it)", tsr_show(row->strategy).text,
                (double)(row->usable_bytes - row->needed) / TSR__GIB);
    if (row->library_bytes < 0)
        fputs(", ", out);
    if (row->nccl_bytes < 0)
        fputs("that of NCCL, ", out);
    fputs("the time of loading data. Rows closer than the error may be ordered otherwise.\n", out);
}

/* Says what a run of ours takes beside PyTorch's memory; nothing for a row that it cannot train. */
static void put_workspaces(FILE *out, const struct tsr_row *row)
{
    if (!row->trains || row->measured || !row->run_workspace_bytes)
        return;
    fprintf(out, "tessera run --on cuda keeps %.2f GiB more for cuBLASLt and cuDNN",
            (double)row->run_workspace_bytes / TSR__GIB);
    if (row->run_workspace_deterministic_bytes != row->run_workspace_bytes)
        fprintf(out, ", %.2f with --deterministic",
                (double)row->run_workspace_deterministic_bytes / TSR__GIB);
    if (row->usable_bytes > 0 && row->needed <= row->usable_bytes &&
        row->needed + row->run_workspace_bytes > row->usable_bytes)
        fprintf(out, ", for which %s leaves no room", tsr_show(row->strategy).text);
    fputs(".\n", out);
}

static void put_trust(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                      size_t n)
{
    int at = tsr__best_row(rows, n);
    const struct tsr_row *shown = at >= 0 ? &rows[at] : n ? &rows[0] : NULL;
    fprintf(out,
            "Simulated, not run: times by a replay for the device file %s, memory by the rules "
            "of PyTorch's allocator%s.\n",
            tsr_show_line(info->device_file).text,
            has_measured(rows, n) ? "; rows named -measured are of a run" : "");
    tsr_put_validated_row(out, info, shown);
    if (shown) {
        put_unknowns(out, shown);
        put_workspaces(out, shown);
    }
    put_over_peak(out, rows, n);
    put_unknown(out, rows, n);
    put_marks(out, rows, n);
}

void tsr__put_answer(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                     size_t n)
{
    tsr__put_fits(out, rows, n);
    put_failures(out, rows, n);
    put_best(out, info, rows, n);
    put_trust(out, info, rows, n);
}
