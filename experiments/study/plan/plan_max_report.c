/* plan_max_report.c: the largest value that fits and the next one, as a table, CSV or JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_text.h"

static double gib(uint64_t bytes)
{
    return (double)bytes / TSR__GIB;
}

static void put_json_probe(FILE *out, const struct tsr_plan_probe *p)
{
    fprintf(out, "{\"value\": %" PRIu64 ", \"fits\": %s, ", p->value, p->fits ? "true" : "false");
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
    fprintf(out, " \"strategy\": \"%s\",\n \"key\": \"%s\",\n", plan->base->name, l->key);
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
    snprintf(cells[1], CELL, "%s", p->fits ? "yes" : "NO");
    snprintf(cells[2], CELL, "?");
    snprintf(cells[3], CELL, "?");
    snprintf(cells[4], CELL, "%s", row->failure);
    if (!p->known)
        return;
    snprintf(cells[2], CELL, "%.2f", gib(tsr_plan_allocated(row)));
    snprintf(cells[3], CELL, "%.2f", gib(tsr_plan_need(row)));
    snprintf(cells[4], CELL, "%s, %s", row->peak_phase, row->peak_module);
}

static void put_table(FILE *out, const char *what, const struct tsr_plan_probe *best,
                      const struct tsr_plan_probe *next)
{
    static const char *const heads[N_COLUMNS] = {NULL, "fits", "peak GiB", "needs GiB", "peak at"};
    cell cells[3][N_COLUMNS] = {{""}};
    size_t n = next ? 3 : 2;
    int widths[N_COLUMNS] = {0};
    for (size_t c = 0; c < N_COLUMNS; c++)
        snprintf(cells[0][c], CELL, "%s", c ? heads[c] : what);
    fill(best, cells[1]);
    if (next)
        fill(next, cells[2]);
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
    fprintf(out,
            "%zu configurations were emitted, none simulated. `needs`: reserved memory at "
            "its most, context, libraries and NCCL.\n",
            l->n);
}

static void put_markdown(FILE *out, struct tsr_plan *plan, const struct tsr_plan_largest *l,
                         const struct tsr_plan_probe *best, const struct tsr_plan_probe *next)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, best->value);
    const char *set = tsr_plan_set(&plan->experiment, plan->base, l->key, text);
    fprintf(out, "Largest %s that fits into %.2f GiB: %" PRIu64 "\n\n", l->words, gib(plan->budget),
            best->value);
    fprintf(out, "%s on %s, %" PRIu32 " GPUs, strategy %s\n\n", plan->job.model.name,
            plan->job.cluster.name, plan->job.world, plan->base->name);
    put_table(out, l->what, best, next);
    fputs("\nThis runs it:\n\n    ", out);
    if (set)
        tsr_plan_put_command(out, plan, &set, 1);
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
