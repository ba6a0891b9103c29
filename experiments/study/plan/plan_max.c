/* plan_max.c: the largest batch, sequence or number of layers that fits, by doubling and bisection;
 * every probe is a full emission.
 *
 * What is found is a boundary: the value fits and the next one does not. Memory grows with these
 * sizes but for the allocator's rounding, so that a still larger value may fit by chance; that is
 * not looked for, since nobody should rely on it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_fits.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/oom.h"
#include "sim/base/text.h"

static double gib(uint64_t bytes)
{
    return (double)bytes / TSR__GIB;
}

struct solver {
    struct tsr_plan *plan;
    uint64_t most; /* the largest value that is allowed */
    struct tsr_plan_largest *out;
};

static tsr_status probe(const void *user, uint64_t value, bool *fits)
{
    const struct solver *s = user;
    struct tsr_plan_largest *out = s->out;
    struct tsr_plan_measure m;
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    const char *set = tsr_plan_set(&s->plan->experiment, s->plan->base, out->key, text);
    if (!set)
        return tsr_no_memory(NULL);
    TSR_CHECK(out->n < TSR_PLAN_MAX_PROBES);
    tsr_status status = tsr_plan_measure(s->plan, &set, 1, false, &m);
    if (status != TSR_OK && status != TSR_EOOM)
        return status;
    bool known = status == TSR_OK;
    *fits = known && m.row.fits > TSR_FITS_NO;
    out->probes[out->n++] =
        (struct tsr_plan_probe){.value = value, .known = known, .fits = *fits, .row = m.row};
    return TSR_OK;
}

/* *best: in units; 0: none fits. */
static tsr_status solve(const struct solver *s, uint64_t *best)
{
    uint64_t low = 0, high = 1, unit = s->out->unit, most = s->most / unit;
    bool fits = false;
    for (;;) { /* low fits (0: by definition) */
        TSR_TRY(probe(s, high * unit, &fits));
        if (!fits)
            break;
        low = high;
        if (low == most)
            break;
        high = high <= most / 2 ? 2 * high : most;
    }
    *best = low;
    if (fits)
        return TSR_OK;
    TSR_TRY(tsr_oom_largest(probe, s, unit, low * unit, high * unit, best));
    *best /= unit;
    return TSR_OK;
}

static void begin(struct solver *s, enum tsr_plan_size size)
{
    static const struct tsr_plan_largest names[] = {
        [TSR_PLAN_BATCH] = {.what = "batch", .words = "batch"},
        [TSR_PLAN_SEQ] = {.what = "seq", .words = "seq"},
        [TSR_PLAN_LAYERS] = {.what = "layers", .words = "number of layers"}};
    static const enum tsr_key_id keys[] = {[TSR_PLAN_BATCH] = TSR_K_BATCH,
                                           [TSR_PLAN_SEQ] = TSR_K_SEQ,
                                           [TSR_PLAN_LAYERS] = TSR_K_MODEL_LAYERS};
    const struct tsr_job *job = &s->plan->job;
    struct tsr_plan_largest *out = s->out;
    *out = names[size];
    out->key = tsr_keys[keys[size]].name;
    out->unit = 1;
    out->budget = s->plan->budget;
    s->most = 1048576;
    if (size != TSR_PLAN_SEQ)
        return;
    s->most = 16777216;
    if (job->model.positions_are_hard && job->model.max_positions < s->most)
        s->most = job->model.max_positions;
    if (job->settings->tp > 1 && job->settings->sequence_parallel)
        out->unit = job->settings->tp; /* the sequence is cut into that many parts */
}

static size_t find(const struct tsr_plan_largest *largest, uint64_t value)
{
    for (size_t i = 0; i < largest->n; i++)
        if (largest->probes[i].value == value)
            return i;
    return SIZE_MAX;
}

/* Kernels are made for multiples of 128: 32511 tokens are odd to train with. Memory is not quite
 * monotonic: the multiple is probed, and smaller ones while it does not fit. */
static tsr_status find_even(const struct solver *s, uint64_t largest)
{
    enum { TRIES = 8 };
    struct tsr_plan_largest *out = s->out;
    bool fits = false;
    if (strcmp(out->what, "seq") != 0 || largest % TSR_PLAN_EVEN == 0)
        return TSR_OK;
    uint64_t value = largest - largest % TSR_PLAN_EVEN;
    for (int i = 0; i < TRIES && value && !fits && out->n < TSR_PLAN_MAX_PROBES; i++) {
        size_t known = find(out, value);
        if (known != SIZE_MAX)
            fits = out->probes[known].fits;
        else if (value % out->unit == 0)
            TSR_TRY(probe(s, value, &fits));
        out->even = fits ? value : 0;
        value -= TSR_PLAN_EVEN;
    }
    return TSR_OK;
}

/* ---- report ---------------------------------------------------------------------------------- */

/* The value that fits and the next one, as a table, CSV or JSON. */

/* The CSV of some probes: all, or those that are reported. */
static void tsr_plan_put_probes(FILE *out, const struct tsr_plan_largest *largest,
                                const struct tsr_plan_probe *const *probes, size_t n)
{
    fputs("schema_version,key,value,fits,peak_allocated_bytes,needed_bytes,"
          "first_peak_reserved_bytes,steady_peak_reserved_bytes,peak_phase,peak_module,"
          "budget_bytes\n",
          out);
    for (size_t i = 0; i < n; i++) {
        const struct tsr_row *row = &probes[i]->row;
        fprintf(out, "1,%s,%" PRIu64 ",%s,", largest->key, probes[i]->value,
                probes[i]->fits ? tsr_fits_word(row->fits) : "no");
        if (probes[i]->known) {
            fprintf(out, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%s,",
                    tsr_plan_allocated(row), tsr_plan_need(row), row->first_peak_reserved,
                    row->peak_reserved, row->peak_phase);
            tsr__put_csv(out, row->peak_module);
        } else {
            fputs(",,,,,", out);
        }
        fprintf(out, ",%" PRIu64 "\n", largest->budget);
    }
}

static void put_json_probe(FILE *out, const struct tsr_plan_probe *p)
{
    fprintf(out, "{\"value\": %" PRIu64 ", \"fits\": %s, \"verdict\": \"%s\", ", p->value,
            p->fits ? "true" : "false", p->fits ? tsr_fits_word(p->row.fits) : "no");
    if (!p->known) {
        fputs("\"failure\": ", out);
        tsr__put_json(out, p->row.failure);
        fputs(", \"peak_allocated_bytes\": null, \"needed_bytes\": null}", out);
        return;
    }
    fprintf(out, "\"peak_allocated_bytes\": %" PRIu64 ", \"needed_bytes\": %" PRIu64 ", ",
            tsr_plan_allocated(&p->row), tsr_plan_need(&p->row));
    fprintf(out, "\"peak_phase\": \"%s\", \"peak_module\": ", p->row.peak_phase);
    tsr__put_json(out, p->row.peak_module);
    fputc('}', out);
}

static void put_json(FILE *out, const struct tsr_plan *plan, const struct tsr_plan_largest *l,
                     const struct tsr_plan_probe *best, const struct tsr_plan_probe *next)
{
    fputs("{\n \"schema\": \"tessera.plan.max\",\n \"schema_version\": 1,\n", out);
    fputs(" \"strategy\": ", out);
    tsr__put_json(out, plan->base->name);
    fprintf(out, ",\n \"key\": \"%s\",\n", l->key);
    if (l->even)
        fprintf(out, " \"largest_multiple_of_128\": %" PRIu64 ",\n", l->even);
    fprintf(out, " \"budget_bytes\": %" PRIu64 ",\n \"emitted\": %zu,\n", l->budget, l->n);
    fprintf(out, " \"largest\": %" PRIu64 ",\n \"at_largest\": ", best->value);
    put_json_probe(out, best);
    fputs(",\n \"at_next\": ", out);
    if (next)
        put_json_probe(out, next);
    else
        fputs("null", out);
    fputs("\n}\n", out);
}

enum { N_COLUMNS = 5, CELL = 640 };

typedef char cell[CELL];

/* The largest value that fits, and the next one. */
static void fill(const struct tsr_plan_probe *p, cell *cells)
{
    const struct tsr_row *row = &p->row;
    snprintf(cells[0], CELL, "%" PRIu64, p->value);
    snprintf(cells[1], CELL, "%s",
             p->fits || (p->known && row->fits == TSR_FITS_NO) ? tsr__fits_text(row) : "NO");
    snprintf(cells[2], CELL, "?");
    snprintf(cells[3], CELL, "?");
    (void)tsr_text_show(cells[4], CELL, row->failure);
    if (!p->known)
        return;
    snprintf(cells[2], CELL, "%.2f", gib(tsr_plan_allocated(row)));
    snprintf(cells[3], CELL, "%.2f", gib(tsr_plan_need(row)));
    snprintf(cells[4], CELL, "%s, %s", row->peak_phase, tsr_show(row->peak_module).text);
}

static void put_table(FILE *out, const char *what, const struct tsr_plan_probe *const *probes,
                      size_t n_probes)
{
    static const char *const heads[N_COLUMNS] = {NULL, "fits", "peak GiB", "needs GiB", "peak at"};
    cell cells[4][N_COLUMNS] = {{""}};
    size_t n = n_probes + 1;
    int widths[N_COLUMNS] = {0};
    for (size_t c = 0; c < N_COLUMNS; c++)
        snprintf(cells[0][c], CELL, "%s", c ? heads[c] : what);
    for (size_t i = 0; i < n_probes; i++)
        fill(probes[i], cells[i + 1]);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c + 1 < N_COLUMNS; c++)
            widths[c] = (int)tsr_max_u64((uint64_t)widths[c], strlen(cells[i][c]));
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "| %*s | %-*s | %*s | %*s | %s |\n", widths[0], cells[i][0], widths[1],
                cells[i][1], widths[2], cells[i][2], widths[3], cells[i][3], cells[i][4]);
        if (i > 0)
            continue;
        static const char dashes[] = "--------------------------------";
        fprintf(out, "|%.*s:|:%.*s|%.*s:|%.*s:|:--------|\n", widths[0] + 1, dashes, widths[1] + 1,
                dashes, widths[2] + 1, dashes, widths[3] + 1, dashes);
    }
}

static void put_notes(FILE *out, const struct tsr_plan_largest *l,
                      const struct tsr_plan_probe *best, const struct tsr_plan_probe *next)
{
    if (next)
        fprintf(out,
                "\nThis is a boundary: it fits at %" PRIu64 ", not at %" PRIu64
                "; larger values may fit by chance, see experiments/guide/plan.md.\n",
                best->value, next->value);
    else
        fprintf(out, "\n%" PRIu64 " is the largest value of %s that is allowed.\n", best->value,
                l->key);
    if (best->row.fits == TSR_FITS_RETRIES)
        fputs("`yes, retries`: the card is full, so the allocator frees what it has cached and "
              "asks again; `sim` says what that costs.\n",
              out);
    fprintf(out,
            "%zu configurations were emitted, none simulated. `needs`: reserved memory at "
            "its most, context, libraries and NCCL.\n",
            l->n);
}

static void put_markdown(FILE *out, struct tsr_plan *plan, const struct tsr_plan_largest *l,
                         const struct tsr_plan_probe *best, const struct tsr_plan_probe *next)
{
    const struct tsr_plan_probe *probes[3];
    size_t n = 0, even = l->even ? find(l, l->even) : SIZE_MAX;
    char text[24];
    if (even != SIZE_MAX)
        probes[n++] = &l->probes[even];
    probes[n++] = best;
    if (next)
        probes[n++] = next;
    snprintf(text, sizeof text, "%" PRIu64, probes[0]->value);
    const char *set = tsr_plan_set(&plan->experiment, plan->base, l->key, text);
    fprintf(out, "Largest %s that fits into %.2f GiB: %" PRIu64, l->words, gib(plan->budget),
            best->value);
    if (l->even)
        fprintf(out, "; largest multiple of %d: %" PRIu64, (int)TSR_PLAN_EVEN, l->even);
    fputs("\n\n", out);
    fprintf(out, "%s on %s, %" PRIu32 " GPUs, strategy %s\n\n",
            tsr_show_line(plan->job.model.name).text, tsr_show_line(plan->job.cluster.name).text,
            plan->job.world, tsr_show(plan->base->name).text);
    put_table(out, l->what, probes, n);
    fputs("\nNext: it as PyTorch code, with what you bring at its top:\n\n    ", out);
    if (set)
        tsr_plan_put_command(out, plan, "sim", &set, 1);
    fputs(" --emit torch out/code\n", out);
    put_notes(out, l, best, next);
}

tsr_status tsr_plan_largest_report(FILE *out, struct tsr_plan *plan,
                                   const struct tsr_plan_largest *l, const char *format)
{
    const struct tsr_plan_probe *best = &l->probes[l->best];
    const struct tsr_plan_probe *next = l->next == SIZE_MAX ? NULL : &l->probes[l->next];
    if (!strcmp(format, "csv"))
        tsr_plan_put_probes(out, l, (const struct tsr_plan_probe *[]){best, next}, next ? 2 : 1);
    else if (!strcmp(format, "json"))
        put_json(out, plan, l, best, next);
    else
        put_markdown(out, plan, l, best, next);
    return TSR_OK;
}

/* ---- results ----------------------------------------------------------------------------- */

static tsr_status write_probes(FILE *stream, const void *user)
{
    const struct tsr_plan_largest *largest = user;
    const struct tsr_plan_probe *probes[TSR_PLAN_MAX_PROBES];
    for (size_t i = 0; i < largest->n; i++)
        probes[i] = &largest->probes[i];
    tsr_plan_put_probes(stream, largest, probes, largest->n);
    return TSR_OK;
}

static tsr_status nothing(const struct tsr_plan *plan, const struct tsr_plan_largest *largest)
{
    const struct tsr_plan_probe *p = &largest->probes[0];
    if (!p->known)
        return tsr_fail(TSR_EOOM, "plan: no %s fits into %.2f GiB: %s", largest->words,
                        gib(largest->budget), p->row.failure);
    if (tsr_plan_lacks_host(&p->row)) {
        char words[160];
        tsr__host_words(&p->row.node_host, words, sizeof words);
        return tsr_fail(TSR_EOOM,
                        "plan: no %s fits: with %" PRIu64 " and strategy %s the ranks of a node "
                        "need more memory than its host has: %s",
                        largest->words, p->value, plan->base->name, words);
    }
    return tsr_fail(TSR_EOOM,
                    "plan: no %s fits into %.2f GiB: %" PRIu64 " needs %.2f GiB with strategy %s",
                    largest->words, gib(largest->budget), p->value, gib(tsr_plan_need(&p->row)),
                    plan->base->name);
}

tsr_status tsr_plan_solve(struct tsr_plan *plan, enum tsr_plan_size size, const char *dir,
                          struct tsr_plan_largest *out)
{
    struct solver s = {.plan = plan, .out = out};
    uint64_t units = 0;
    begin(&s, size);
    TSR_TRY(solve(&s, &units));
    if (units)
        TSR_TRY(find_even(&s, units * out->unit));
    if (dir)
        TSR_TRY(tsr_write_in(dir, "max.csv", write_probes, out));
    if (!units)
        return nothing(plan, out);
    out->best = find(out, units * out->unit);
    out->next = find(out, (units + 1) * out->unit);
    TSR_CHECK(out->best != SIZE_MAX && out->probes[out->best].fits &&
              (out->next == SIZE_MAX || !out->probes[out->next].fits));
    return TSR_OK;
}
