/* plan_report.c: what `tessera plan` prints: the fastest configurations that fit and the Pareto
 * front, each with the command that repeats it; as a table for people, CSV or JSON.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_rows.h"
#include "experiments/study/report/report_text.h"

enum { N_COLUMNS = 10, CELL = 512 };

static double gib(uint64_t bytes)
{
    return (double)bytes / TSR__GIB;
}

static double speed(const struct tsr_row *row)
{
    double time = tsr_plan_time(row);
    return time > 0 ? 1 / time : 0;
}

/* ---- commands ---------------------------------------------------------------------------- */

void tsr_plan_put_command(FILE *out, const struct tsr_plan *plan, const char *const *sets, size_t n)
{
    fputs("tessera run ", out);
    tsr__put_word(out, plan->args->file);
    fputs(" --strategy ", out);
    tsr__put_word(out, plan->base->name);
    for (size_t i = 0; i < plan->args->n_sets + n + plan->had_sweeps; i++) {
        const char *set = "sweeps=null";
        if (i < plan->args->n_sets)
            set = plan->args->sets[i];
        else if (i < plan->args->n_sets + n)
            set = sets[i - plan->args->n_sets];
        if (!strncmp(set, "plan.", 5) || !strncmp(set, "plan=", 5))
            continue;
        fputs(" --set ", out);
        tsr__put_word(out, set);
    }
    fputs(" --on sim\n", out);
}

static void put_point_command(FILE *out, const struct tsr_plan *plan, size_t i)
{
    const char *sets[TSR_PLAN_MAX_AXES];
    size_t n = tsr_plan_sets(&plan->space, i, sets);
    tsr_plan_put_command(out, plan, sets, n);
}

/* The same without the end of the line; to be freed, NULL when out of memory. */
static char *command_text(const struct tsr_plan *plan, size_t i)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return NULL;
    put_point_command(stream, plan, i);
    if (fclose(stream) != 0) {
        free(text);
        return NULL;
    }
    text[strcspn(text, "\n")] = 0;
    return text;
}

/* ---- the table --------------------------------------------------------------------------- */

typedef char cell[CELL];

static const struct column {
    const char *head;
    bool left;
} columns[N_COLUMNS] = {
    {"#", false},     {"settings", true},  {"step ms", false},   {"tokens/s/GPU", false},
    {"MFU %", false}, {"peak GiB", false}, {"needs GiB", false}, {"exposed ms", false},
    {"front", true},  {"alike", false}};

static void fill(const struct tsr_plan *plan, size_t k, cell *cells)
{
    const struct tsr_plan_point *point = &plan->points[plan->shown[k]];
    const struct tsr_row *row = &point->m.row;
    snprintf(cells[0], CELL, "%zu", k + 1);
    tsr_plan_words(&plan->space, plan->shown[k], cells[1], CELL);
    snprintf(cells[2], CELL, "%.2f", row->steady.step_s * 1e3);
    snprintf(cells[3], CELL, "%.0f", speed(row));
    snprintf(cells[4], CELL, row->mfu >= 0 ? "%.1f" : "?", row->mfu * 100);
    snprintf(cells[5], CELL, "%.2f", gib(tsr_plan_allocated(row)));
    snprintf(cells[6], CELL, "%.2f", gib(point->need));
    snprintf(cells[7], CELL, "%.2f", row->steady.exposed_s * 1e3);
    snprintf(cells[8], CELL, "%s", point->front ? "yes" : "");
    snprintf(cells[9], CELL, "%zu", point->n_like - 1);
    for (char *c = cells[1]; *c; c++)
        *c = *c == '|' ? '/' : *c; /* it would end the cell */
}

static void put_line(FILE *out, const cell *cells, const size_t *widths)
{
    for (size_t c = 0; c < N_COLUMNS; c++)
        fprintf(out, columns[c].left ? "| %-*s " : "| %*s ", (int)widths[c], cells[c]);
    fputs("|\n", out);
}

static void put_rule(FILE *out, const size_t *widths)
{
    for (size_t c = 0; c < N_COLUMNS; c++) {
        fputs(columns[c].left ? "|:" : "|-", out);
        for (size_t i = 0; i < widths[c]; i++)
            fputc('-', out);
        fputc(columns[c].left ? '-' : ':', out);
    }
    fputs("|\n", out);
}

static void put_table(FILE *out, const struct tsr_plan *plan)
{
    size_t widths[N_COLUMNS] = {0};
    cell cells[N_COLUMNS];
    for (size_t k = 0; k < plan->n_shown; k++) {
        fill(plan, k, cells);
        for (size_t c = 0; c < N_COLUMNS; c++)
            widths[c] = strlen(cells[c]) > widths[c] ? strlen(cells[c]) : widths[c];
    }
    for (size_t c = 0; c < N_COLUMNS; c++) {
        widths[c] = strlen(columns[c].head) > widths[c] ? strlen(columns[c].head) : widths[c];
        snprintf(cells[c], CELL, "%s", columns[c].head);
    }
    put_line(out, (const cell *)cells, widths);
    put_rule(out, widths);
    for (size_t k = 0; k < plan->n_shown; k++) {
        fill(plan, k, cells);
        put_line(out, (const cell *)cells, widths);
    }
}

static const char *first_refusal(const struct tsr_plan *plan)
{
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state == TSR_PLAN_IMPOSSIBLE)
            return plan->points[i].m.row.failure;
    return "";
}

static void put_counts(FILE *out, const struct tsr_plan *plan)
{
    const struct tsr_plan_counts *c = &plan->counts;
    fprintf(out,
            "%zu configurations of %s: %zu emitted, %zu of them different, %zu of these fit, "
            "%zu simulated.\n",
            plan->space.n, plan->space.is_default ? "the default space" : "plan.space", c->emitted,
            c->distinct, c->fitting, c->simulated);
    if (c->too_large)
        fprintf(out,
                "%zu were not emitted: with a smaller batch or seq their tensors alone exceed "
                "the budget.\n",
                c->too_large);
    if (!plan->args->exhaustive && c->simulated < c->fitting)
        fputs("What was not simulated is neither among the fastest nor on the front: its kernels "
              "alone "
              "take longer.\n",
              out);
    if (c->impossible)
        fprintf(out, "%zu are not possible; the first: %s\n", c->impossible, first_refusal(plan));
}

static void put_markdown(FILE *out, const struct tsr_plan *plan)
{
    const struct tsr_job *job = &plan->job;
    if (plan->experiment.title[0])
        fprintf(out, "## %s\n\n", plan->experiment.title);
    fprintf(out,
            "%s on %s: %" PRIu32 " x %s; strategy %s with other settings; budget %.2f GiB%s\n\n",
            job->model.name, job->cluster.name, job->world, job->cluster.gpu.name, plan->base->name,
            gib(plan->budget), plan->own_budget ? "" : ", what the card certainly has");
    put_table(out, plan);
    fputs("\nThese run them:\n\n", out);
    for (size_t k = 0; k < plan->n_shown; k++) {
        fprintf(out, "    # %zu\n    ", k + 1);
        put_point_command(out, plan, plan->shown[k]);
    }
    fputc('\n', out);
    put_counts(out, plan);
    fprintf(out,
            "All times are simulated, for the device file %s; ordered by tokens per second.\n"
            "`peak`: allocated memory of the fullest GPU. `needs`: what the card must have for it: "
            "reserved memory at its most, context, libraries and NCCL.\n"
            "`front`: nothing else that fits is as fast and as small. `alike`: other "
            "configurations with the same figures.\n",
            job->cluster.gpu.path);
}

/* ---- for programs ------------------------------------------------------------------------ */

void tsr_plan_put_csv(FILE *out, const struct tsr_plan *plan)
{
    char words[CELL];
    fputs("schema_version,rank,settings,step_time_s,tokens_per_s_per_gpu,mfu,peak_allocated_bytes,"
          "needed_bytes,exposed_communication_s,fits,front,alike,command\n",
          out);
    for (size_t k = 0; k < plan->n_shown; k++) {
        const struct tsr_plan_point *point = &plan->points[plan->shown[k]];
        const struct tsr_row *row = &point->m.row;
        char *command = command_text(plan, plan->shown[k]);
        tsr_plan_words(&plan->space, plan->shown[k], words, sizeof words);
        fprintf(out, "1,%zu,", k + 1);
        tsr__put_csv(out, words);
        fprintf(out, ",%.9g,%.9g,", row->steady.step_s, speed(row));
        if (row->mfu >= 0)
            fprintf(out, "%.9g", row->mfu);
        fprintf(out, ",%" PRIu64 ",%" PRIu64 ",%.9g,yes,%s,%zu,", tsr_plan_allocated(row),
                point->need, row->steady.exposed_s, point->front ? "yes" : "no", point->n_like - 1);
        tsr__put_csv(out, command ? command : "");
        fputc('\n', out);
        free(command);
    }
}

static json_t *point_json(const struct tsr_plan *plan, size_t k)
{
    const struct tsr_plan_point *point = &plan->points[plan->shown[k]];
    const struct tsr_row *row = &point->m.row;
    char *command = command_text(plan, plan->shown[k]);
    const char *sets[TSR_PLAN_MAX_AXES];
    char words[CELL];
    size_t n = tsr_plan_sets(&plan->space, plan->shown[k], sets);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(sets[i]));
    tsr_plan_words(&plan->space, plan->shown[k], words, sizeof words);
    json_t *out = json_pack("{s:I, s:s, s:o, s:f, s:f, s:o, s:I, s:I, s:f, s:b, s:b, s:I, s:s}",
                            "rank", (json_int_t)k + 1, "settings", words, "set", list,
                            "step_time_s", row->steady.step_s, "tokens_per_s_per_gpu", speed(row),
                            "mfu", row->mfu >= 0 ? json_real(row->mfu) : json_null(),
                            "peak_allocated_bytes", (json_int_t)tsr_plan_allocated(row),
                            "needed_bytes", (json_int_t)point->need, "exposed_communication_s",
                            row->steady.exposed_s, "fits", 1, "front", (int)point->front, "alike",
                            (json_int_t)point->n_like - 1, "command", command ? command : "");
    free(command);
    return out;
}

static json_t *counts_json(const struct tsr_plan *plan)
{
    const struct tsr_plan_counts *c = &plan->counts;
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:f}", "space", (json_int_t)plan->space.n,
        "impossible", (json_int_t)c->impossible, "too_large", (json_int_t)c->too_large, "emitted",
        (json_int_t)c->emitted, "different", (json_int_t)c->distinct, "fitting",
        (json_int_t)c->fitting, "simulated", (json_int_t)c->simulated, "exhaustive",
        (int)plan->args->exhaustive, "emission_wall_s", c->emit_s, "simulation_wall_s", c->sim_s);
}

static json_t *space_json(const struct tsr_plan_space *space)
{
    json_t *out = json_object();
    for (size_t k = 0; k < space->n_axes; k++) {
        json_t *list = json_array();
        for (size_t i = 0; i < space->axes[k].n; i++)
            json_array_append_new(list, json_string(space->axes[k].values[i].text));
        json_object_set_new(out, space->axes[k].key, list);
    }
    return out;
}

tsr_status tsr_plan_put_json(FILE *out, const struct tsr_plan *plan)
{
    const struct tsr_job *job = &plan->job;
    json_t *rows = json_array();
    for (size_t k = 0; k < plan->n_shown; k++)
        json_array_append_new(rows, point_json(plan, k));
    json_t *value = json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:I, s:o, s:o, s:o}", "schema",
        "tessera.plan", "schema_version", 1, "times", "simulated", "title", plan->experiment.title,
        "experiment_file", plan->args->file, "model", job->model.name, "cluster", job->cluster.name,
        "world_size", (json_int_t)job->world, "device_file", job->cluster.gpu.path, "strategy",
        plan->base->name, "budget_bytes", (json_int_t)plan->budget, "space",
        space_json(&plan->space), "configurations", counts_json(plan), "rows", rows);
    tsr_status status = tsr__put_json_value(out, value);
    json_decref(value);
    return status;
}

tsr_status tsr_plan_report(FILE *out, const struct tsr_plan *plan)
{
    if (!strcmp(plan->args->format, "json"))
        return tsr_plan_put_json(out, plan);
    if (!strcmp(plan->args->format, "csv"))
        tsr_plan_put_csv(out, plan);
    else
        put_markdown(out, plan);
    return TSR_OK;
}
