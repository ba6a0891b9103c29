/* report_fits.c: the lines below the tables that say what a verdict other than yes and NO means,
 * and for whom. */
#include "experiments/study/report/report_fits.h"

#include <inttypes.h>
#include <stdio.h>

#include "experiments/study/report/report_text.h"
#include "sim/base/text.h"

enum { MOST_NAMES = 4 };

const char *tsr__fits_text(const struct tsr_row *row)
{
    if (row->measured)
        return "ran";
    if (row->fits != TSR_FITS_NO || row->node_host.verdict != TSR_HOST_TOO_SMALL)
        return tsr_fits_text(row->fits);
    return row->fit.verdict == TSR_FITS_NO ? "NO (GPU, host)" : "NO (host)";
}

void tsr__host_words(const struct tsr_host_fit *host, char *out, size_t size)
{
    char required[32], memory[32], rank[32], dataset[32], data[64] = "";
    tsr_bytes_text((double)host->required, required);
    tsr_bytes_text((double)host->memory, memory);
    tsr_bytes_text((double)host->rank_bytes, rank);
    if (host->dataset) {
        tsr_bytes_text((double)host->dataset, dataset);
        snprintf(data, sizeof data, ", the dataset %s", dataset);
    }
    if (host->ranks > 1)
        snprintf(out, size,
                 "%s of %s in %s (node %" PRIu32 ": %" PRIu32 " ranks, rank %" PRIu32
                 " alone %s%s)",
                 required, memory, host->section, host->node, host->ranks, host->rank, rank, data);
    else
        snprintf(out, size, "%s of %s in %s (node %" PRIu32 ": rank %" PRIu32 "%s)", required,
                 memory, host->section, host->node, host->rank, data);
}

typedef void (*say_fn)(FILE *out, const struct tsr_row *row);

static void say_retries(FILE *out, const struct tsr_row *row)
{
    const struct tsr_fit *fit = &row->fit;
    fprintf(out, "%s", tsr_show(row->strategy).text);
    if (fit->retries > 0)
        fprintf(out, " %.*f x a step", fit->retries < 10 && fit->retries != (int)fit->retries,
                fit->retries);
    else
        fputs(" in the first steps only", out);
    if (row->retry_s >= 0)
        fprintf(out, ", +%.1f ms", row->retry_s * 1e3);
}

static void say_short(FILE *out, const struct tsr_row *row)
{
    fprintf(out, "%s up to %.2f GiB", tsr_show(row->strategy).text,
            (double)row->fit.short_of / TSR__GIB);
}

static void put_rows(FILE *out, const struct tsr_row *rows, size_t n, int verdict, say_fn say)
{
    size_t n_said = 0, n_all = 0;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].failure[0] || rows[i].fits != verdict || !rows[i].usable_bytes)
            continue;
        if (n_all++ >= MOST_NAMES)
            continue;
        if (n_said++)
            fputs("; ", out);
        say(out, &rows[i]);
    }
    if (n_all > n_said)
        fprintf(out, "; %zu more", n_all - n_said);
    fputs(".\n", out);
}

static bool any(const struct tsr_row *rows, size_t n, int verdict, bool has_card)
{
    for (size_t i = 0; i < n; i++)
        if (!rows[i].failure[0] && !rows[i].measured && rows[i].fits == verdict &&
            (rows[i].usable_bytes > 0) == has_card)
            return true;
    return false;
}

/* Returns whether a host is too small for a row. */
static bool put_hosts(FILE *out, const struct tsr_row *rows, size_t n)
{
    size_t n_short = 0;
    for (size_t i = 0; i < n; i++) {
        const struct tsr_host_fit *host = &rows[i].node_host;
        if (rows[i].failure[0] || host->verdict != TSR_HOST_TOO_SMALL)
            continue;
        if (n_short++ >= MOST_NAMES)
            continue;
        char words[160];
        tsr__host_words(host, words, sizeof words);
        fprintf(out, "%s%s %s",
                n_short > 1 ? "; "
                            : "`NO (host)`: the ranks of a node need more memory than its host has "
                              "(host.memory_bytes of the node file): ",
                tsr_show(rows[i].strategy).text, words);
    }
    if (n_short > MOST_NAMES)
        fprintf(out, "; %zu more", n_short - MOST_NAMES);
    fputs(n_short ? ".\n" : "", out);
    return n_short > 0;
}

void tsr__put_fits(FILE *out, const struct tsr_row *rows, size_t n)
{
    bool retries = any(rows, n, TSR_FITS_RETRIES, true);
    bool unknown = any(rows, n, TSR_FITS_UNKNOWN, true);
    bool no_card = any(rows, n, TSR_FITS_UNKNOWN, false);
    bool no_host = put_hosts(out, rows, n);
    if (retries) {
        fputs("`yes, retries`: the card is full, so the allocator waits for the device, frees what "
              "it has cached and asks again: ",
              out);
        put_rows(out, rows, n, TSR_FITS_RETRIES, say_retries);
    }
    if (unknown) {
        fputs("`fits: ?`: what is not known of context, libraries and NCCL may be more than what "
              "is left: ",
              out);
        put_rows(out, rows, n, TSR_FITS_UNKNOWN, say_short);
    }
    if (no_card)
        fputs("`fits: ?`: the device file does not say how much of the card is usable "
              "(memory.visible_bytes).\n",
              out);
    if (retries || unknown || no_card || no_host)
        fputc('\n', out);
}
