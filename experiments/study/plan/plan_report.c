/* plan_report.c: what `tessera plan` prints: the fastest configurations that fit and the Pareto
 * front, each with the command that repeats it; as a table for people, CSV or JSON; and its files.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "sim/base/text.h"

enum { N_COLUMNS = 11, STACK = 9, CELL = 512 };

static double gib(uint64_t bytes)
{
    return (double)bytes / TSR__GIB;
}

void tsr_plan_row_of(const struct tsr_plan *plan, size_t k, struct tsr_plan_row *out)
{
    size_t i = plan->shown[k];
    const struct tsr_plan_point *point = &plan->points[i];
    const struct tsr_row *row = &point->m->row;
    double time = tsr_plan_time(row);
    *out = (struct tsr_plan_row){.step_s = row->steady.step_s,
                                 .tokens_per_s = time > 0 ? 1 / time : 0,
                                 .mfu = row->mfu,
                                 .exposed_s = row->steady.exposed_s,
                                 .allocated = tsr_plan_allocated(row),
                                 .needed = point->need,
                                 .fits = row->fits,
                                 .front = point->front,
                                 .needs = tsr_plan_needs(&plan->space, i),
                                 .is_marked = point->is_marked,
                                 .alike = point->n_like - 1};
    tsr_plan_words(&plan->space, i, out->settings, sizeof out->settings);
    out->n_sets = tsr_plan_sets(&plan->space, i, out->sets);
}

/* ---- commands ---------------------------------------------------------------------------- */

void tsr_plan_put_command(FILE *out, const struct tsr_plan *plan, const char *const *sets, size_t n)
{
    fputs("tessera run ", out);
    tsr__put_word(out, plan->experiment.path);
    fputs(" --strategy ", out);
    tsr__put_word(out, plan->base->name);
    for (size_t i = 0; i < plan->request.n_sets + n + plan->had_sweeps; i++) {
        const char *set = "sweeps=null";
        if (i < plan->request.n_sets)
            set = plan->request.sets[i];
        else if (i < plan->request.n_sets + n)
            set = sets[i - plan->request.n_sets];
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
    bool wide; /* only where there is room for all */
} columns[N_COLUMNS] = {{"#", false, false},         {"settings", true, false},
                        {"step ms", false, false},   {"tokens/s/GPU", false, false},
                        {"MFU %", false, true},      {"peak GiB", false, false},
                        {"needs GiB", false, false}, {"exposed ms", false, true},
                        {"front", true, false},      {"stack", true, false},
                        {"alike", false, true}};

static void fill(const struct tsr_plan *plan, size_t k, cell *cells)
{
    struct tsr_plan_row row;
    tsr_plan_row_of(plan, k, &row);
    snprintf(cells[0], CELL, "%zu", k + 1);
    snprintf(cells[1], CELL, "%s", row.settings);
    snprintf(cells[2], CELL, "%.2f", row.step_s * 1e3);
    snprintf(cells[3], CELL, "%.0f", row.tokens_per_s);
    snprintf(cells[4], CELL, row.mfu >= 0 ? "%.1f" : "?", row.mfu * 100);
    snprintf(cells[5], CELL, "%.2f", gib(row.allocated));
    snprintf(cells[6], CELL, "%.2f", gib(row.needed));
    snprintf(cells[7], CELL, "%.2f", row.exposed_s * 1e3);
    snprintf(cells[8], CELL, "%s", row.front ? "yes" : "");
    tsr_needs_words(row.needs, cells[STACK], CELL);
    snprintf(cells[10], CELL, "%zu", row.alike);
    for (char *c = cells[1]; *c; c++)
        *c = *c == '|' ? '/' : *c; /* it would end the cell */
}

static void put_line(FILE *out, const cell *cells, const size_t *widths, bool wide)
{
    for (size_t c = 0; c < N_COLUMNS; c++)
        if (wide || !columns[c].wide)
            fprintf(out, columns[c].left ? "| %-*s " : "| %*s ", (int)widths[c], cells[c]);
    fputs("|\n", out);
}

static void put_rule(FILE *out, const size_t *widths, bool wide)
{
    for (size_t c = 0; c < N_COLUMNS; c++) {
        if (columns[c].wide && !wide)
            continue;
        fputs(columns[c].left ? "|:" : "|-", out);
        for (size_t i = 0; i < widths[c]; i++)
            fputc('-', out);
        fputc(columns[c].left ? '-' : ':', out);
    }
    fputs("|\n", out);
}

static void put_table(FILE *out, const struct tsr_plan *plan, bool wide)
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
    put_line(out, (const cell *)cells, widths, wide);
    put_rule(out, widths, wide);
    for (size_t k = 0; k < plan->n_shown; k++) {
        fill(plan, k, cells);
        put_line(out, (const cell *)cells, widths, wide);
    }
}

static const char *first_refusal(const struct tsr_plan *plan)
{
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state == TSR_PLAN_IMPOSSIBLE)
            return plan->points[i].m ? plan->points[i].m->row.failure : tsr_plan_excludes(plan, i);
    return "";
}

/* Which of them give memory back and ask again. */
static void put_retries(FILE *out, const struct tsr_plan *plan)
{
    size_t n = 0;
    for (size_t k = 0; k < plan->n_shown; k++)
        if (plan->points[plan->shown[k]].m->row.fits == TSR_FITS_RETRIES)
            fprintf(out, "%s%zu", n++ ? ", " : "", k + 1);
    if (n)
        fputs(": the card is full, so the allocator frees what it has cached and asks again, which "
              "their times have in them.\n",
              out);
}

static void put_over_peak(FILE *out, const struct tsr_plan *plan)
{
    for (size_t k = 0; k < plan->n_shown; k++)
        if (plan->points[plan->shown[k]].m->row.mfu > 1) {
            fputs(TSR_MFU_OVER_PEAK "\n", out);
            return;
        }
}

static void put_marked(FILE *out, const struct tsr_plan *plan)
{
    if (plan->n_shown > plan->n_ranked)
        fputs(
            "`stack`: what a row needs and the strategy of the file does not. Such rows are ranked "
            "behind the others; --allow all, or some of these words, ranks them among them.\n",
            out);
}

static void put_counts(FILE *out, const struct tsr_plan *plan)
{
    const struct tsr_plan_counts *c = &plan->counts;
    fprintf(out,
            "%zu configurations of %s: %zu emitted, %zu of them different, %zu of these fit, "
            "%zu simulated.\n",
            plan->space.n - c->repeats, plan->space.is_default ? "the default space" : "plan.space",
            c->emitted, c->distinct, c->fitting, c->simulated);
    if (c->too_large)
        fprintf(out, "%zu were not emitted: their tensors alone exceed the budget.\n",
                c->too_large);
    if (c->beaten)
        fprintf(out, "%zu were not emitted: others are faster than they can be, and need less.\n",
                c->beaten);
    if (c->interrupted)
        fprintf(out,
                "Interrupted: nothing is known yet of %zu; what is shown is the best so far.\n",
                c->left);
    if (!plan->options.exhaustive && c->simulated < c->fitting)
        fputs("What was not simulated is neither among the fastest nor on the front: its kernels "
              "alone "
              "take longer.\n",
              out);
    if (c->impossible)
        fprintf(out, "%zu are not possible; the first: %s\n", c->impossible,
                tsr_show_line(first_refusal(plan)).text);
}

static void put_markdown(FILE *out, const struct tsr_plan *plan, bool wide)
{
    const struct tsr_job *job = &plan->job;
    if (plan->experiment.title[0])
        fprintf(out, "## %s\n\n", tsr_show_line(plan->experiment.title).text);
    fprintf(out,
            "%s on %s: %" PRIu32 " x %s; strategy %s with other settings; budget %.2f GiB%s\n\n",
            tsr_show_line(job->model.name).text, tsr_show_line(job->cluster.name).text, job->world,
            tsr_show(job->cluster.gpu.name).text, tsr_show(plan->base->name).text,
            gib(plan->budget), plan->own_budget ? "" : ", what the card certainly has");
    put_table(out, plan, wide);
    fputs("\nThese run them:\n\n", out);
    for (size_t k = 0; k < plan->n_shown; k++) {
        fprintf(out, "    # %zu\n    ", k + 1);
        put_point_command(out, plan, plan->shown[k]);
    }
    fputc('\n', out);
    put_retries(out, plan);
    if (wide)
        put_over_peak(out, plan);
    put_marked(out, plan);
    put_counts(out, plan);
    fprintf(out,
            "All times are simulated, for the device file %s; ordered by tokens per second.\n"
            "`peak`: allocated memory of the fullest GPU. `needs`: what the card must have for it: "
            "reserved memory at its most, context, libraries and NCCL.\n"
            "`front`: nothing else that fits is as fast and as small. %s\n",
            tsr_show_line(job->cluster.gpu.path).text,
            wide ? "`alike`: other configurations with the same figures."
                 : "--wide has more columns.");
    tsr_put_validated(out, &plan->info);
}

/* ---- for programs ------------------------------------------------------------------------ */

static void put_csv(FILE *out, const struct tsr_plan *plan)
{
    fputs("schema_version,rank,settings,step_time_s,tokens_per_s_per_gpu,mfu,peak_allocated_bytes,"
          "needed_bytes,exposed_communication_s,fits,front,alike,command,needs,marked\n",
          out);
    for (size_t k = 0; k < plan->n_shown; k++) {
        struct tsr_plan_row row;
        char needs[128], *command = command_text(plan, plan->shown[k]);
        tsr_plan_row_of(plan, k, &row);
        fprintf(out, "1,%zu,", k + 1);
        tsr__put_csv(out, row.settings);
        fprintf(out, ",%.9g,%.9g,", row.step_s, row.tokens_per_s);
        if (row.mfu >= 0)
            fprintf(out, "%.9g", row.mfu);
        fprintf(out, ",%" PRIu64 ",%" PRIu64 ",%.9g,%s,%s,%zu,", row.allocated, row.needed,
                row.exposed_s, tsr_fits_word(row.fits), row.front ? "yes" : "no", row.alike);
        tsr__put_csv(out, command ? command : "");
        fputc(',', out);
        tsr_needs_words(row.needs, needs, sizeof needs);
        tsr__put_csv(out, needs);
        fprintf(out, ",%s\n", row.is_marked ? "yes" : "no");
        free(command);
    }
}

static json_t *point_json(const struct tsr_plan *plan, size_t k)
{
    struct tsr_plan_row row;
    char *command = command_text(plan, plan->shown[k]);
    json_t *list = json_array(), *needs = json_array();
    tsr_plan_row_of(plan, k, &row);
    for (unsigned i = 0; i < TSR_N_NEEDS; i++)
        if (row.needs >> i & 1)
            json_array_append_new(needs, json_string(tsr_words_need[i]));
    for (size_t i = 0; i < row.n_sets; i++)
        json_array_append_new(list, json_string(row.sets[i]));
    json_t *out = json_pack(
        "{s:I, s:s, s:o, s:f, s:f, s:o, s:I, s:I, s:f, s:b, s:s, s:b, s:o, s:b, s:I, s:s}", "rank",
        (json_int_t)k + 1, "settings", row.settings, "set", list, "step_time_s", row.step_s,
        "tokens_per_s_per_gpu", row.tokens_per_s, "mfu",
        row.mfu >= 0 ? json_real(row.mfu) : json_null(), "peak_allocated_bytes",
        (json_int_t)row.allocated, "needed_bytes", (json_int_t)row.needed,
        "exposed_communication_s", row.exposed_s, "fits", 1, "verdict", tsr_fits_word(row.fits),
        "front", (int)row.front, "needs", needs, "marked", (int)row.is_marked, "alike",
        (json_int_t)row.alike, "command", command ? command : "");
    free(command);
    return out;
}

static json_t *counts_json(const struct tsr_plan *plan)
{
    const struct tsr_plan_counts *c = &plan->counts;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:I, s:f, s:f}", "space",
                     (json_int_t)(plan->space.n - c->repeats), "impossible",
                     (json_int_t)c->impossible, "too_large", (json_int_t)c->too_large, "beaten",
                     (json_int_t)c->beaten, "emitted", (json_int_t)c->emitted, "different",
                     (json_int_t)c->distinct, "fitting", (json_int_t)c->fitting, "simulated",
                     (json_int_t)c->simulated, "exhaustive", (int)plan->options.exhaustive,
                     "interrupted", (int)(c->interrupted != 0), "left", (json_int_t)c->left,
                     "emission_wall_s", c->emit_s, "simulation_wall_s", c->sim_s);
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

static tsr_status tsr_plan_put_json(FILE *out, const struct tsr_plan *plan)
{
    const struct tsr_job *job = &plan->job;
    json_t *rows = json_array();
    for (size_t k = 0; k < plan->n_shown; k++)
        json_array_append_new(rows, point_json(plan, k));
    json_t *value = json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:I, s:o, s:o, s:o, s:o}", "schema",
        "tessera.plan", "schema_version", 1, "times", "simulated", "title", plan->experiment.title,
        "experiment_file", plan->experiment.path, "model", job->model.name, "cluster",
        job->cluster.name, "world_size", (json_int_t)job->world, "device_file",
        job->cluster.gpu.path, "strategy", plan->base->name, "budget_bytes",
        (json_int_t)plan->budget, "space", space_json(&plan->space), "configurations",
        counts_json(plan), "rows", rows, "validated_error", tsr_validated_json(&plan->info));
    tsr_status status = tsr__put_json_value(out, value);
    json_decref(value);
    return status;
}

tsr_status tsr_plan_report(FILE *out, const struct tsr_plan *plan, const char *format)
{
    if (!strcmp(format, "json"))
        return tsr_plan_put_json(out, plan);
    if (!strcmp(format, "csv"))
        put_csv(out, plan);
    else
        put_markdown(out, plan, !strcmp(format, "wide"));
    return TSR_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* What `tessera plan --out` leaves behind: plan.csv has every configuration with what
 * became of it, plan-front.csv the Pareto front, summary.json what was printed; plan.svg and .png
 * draw the first two. */

static const char *const state_words[] = {
    [TSR_PLAN_NEW] = "new",         [TSR_PLAN_IMPOSSIBLE] = "impossible",
    [TSR_PLAN_REPEATS] = "repeats", [TSR_PLAN_TOO_LARGE] = "too large",
    [TSR_PLAN_BEATEN] = "beaten",   [TSR_PLAN_OOM] = "out of memory",
    [TSR_PLAN_EMITTED] = "emitted", [TSR_PLAN_SIMULATED] = "simulated"};

/* Words of the settings for a field that a plot script takes apart: no commas; those between
 * settings become a wider gap, those inside values semicolons. */
static void put_words(FILE *out, const struct tsr_plan *plan, size_t i)
{
    char words[512];
    int depth = 0;
    tsr_plan_words(&plan->space, i, words, sizeof words);
    for (char *c = words; *c; c++) {
        depth += strchr("[{", *c) ? 1 : strchr("]}", *c) ? -1 : 0;
        if (*c == ',')
            *c = depth > 0 ? ';' : ' ';
    }
    tsr__put_plain(out, words);
}

static void put_head(FILE *out, const struct tsr_plan *plan, const char *file_columns)
{
    tsr__put_provenance(out, &plan->info, plan->base->name, file_columns);
}

/* The allocator's retries are known of what was simulated. */
static const char *fits_word(const struct tsr_plan_point *point, const struct tsr_row *row)
{
    bool known = point->state == TSR_PLAN_SIMULATED && point->fits;
    return known ? tsr_fits_word(row->fits) : point->fits ? "yes" : "no";
}

static void put_point(FILE *out, const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_point *point = &plan->points[i];
    static const struct tsr_row none;
    const struct tsr_row *row = point->m ? &point->m->row : &none;
    bool emitted = point->state >= TSR_PLAN_EMITTED;
    fprintf(out, "%zu,", i);
    put_words(out, plan, i);
    fprintf(out, ",%s,", state_words[point->state]);
    if (emitted)
        fprintf(out, "%zu,%s,%s,%" PRIu64 ",%" PRIu64 ",", point->like, fits_word(point, row),
                point->front ? "yes" : "no", tsr_plan_allocated(row), point->need);
    else
        fputs(",no,no,,,", out);
    if (emitted && row->tokens_per_rank)
        fprintf(out, "%.9g", point->m->bound.step_s / (double)row->tokens_per_rank);
    fputc(',', out);
    if (point->state == TSR_PLAN_SIMULATED)
        fprintf(out, "%.9g,%.9g,", tsr_plan_time(row), row->steady.step_s);
    else
        fputs(",,", out);
    if (emitted)
        fprintf(out, "%s,%" PRIu64, tsr_host_word(row->node_host.verdict), row->node_host.required);
    else
        fputc(',', out);
    fputc(',', out);
    tsr__put_plain(out, row->failure);
    fputc(',', out);
    unsigned needs = tsr_plan_needs(&plan->space, i);
    for (unsigned k = 0, n = 0; k < TSR_N_NEEDS; k++)
        if (needs >> k & 1)
            fprintf(out, "%s%s", n++ ? " " : "", tsr_words_need[k]);
    fputs(point->is_marked ? ",yes\n" : ",no\n", out);
}

static tsr_status write_points(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    put_head(out, plan,
             "every configuration; what became of it; the one that has the same programs; figures "
             "of what was emitted (bytes, bound) and simulated (seconds)");
    fputs("configuration,settings,state,alike_to,fits,front,peak_allocated_bytes,"
          "needed_bytes,least_time_per_token_s,time_per_token_s,step_time_s,host_verdict,"
          "host_required_bytes_per_node,failure,needs,marked\n",
          out);
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state != TSR_PLAN_REPEATS)
            put_point(out, plan, i);
    return TSR_OK;
}

static tsr_status write_front(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    put_head(out, plan, "the Pareto front of those that fit, by memory");
    fputs("rank,settings,needed_bytes,time_per_token_s\n", out);
    for (size_t k = plan->n_shown; k-- > 0;) { /* from small and slow to large and fast */
        const struct tsr_plan_point *point = &plan->points[plan->shown[k]];
        if (!point->front)
            continue;
        fprintf(out, "%zu,", k + 1);
        put_words(out, plan, plan->shown[k]);
        fprintf(out, ",%" PRIu64 ",%.9g\n", point->need, tsr_plan_time(&point->m->row));
    }
    return TSR_OK;
}

static tsr_status write_frame(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    char head[512];
    snprintf(head, sizeof head, "%s · %s · %" PRIu32 " GPUs · strategy %s", plan->job.model.name,
             plan->job.cluster.name, plan->job.world, plan->base->name);
    put_head(out, plan, "what the picture of plan.csv says beside it");
    fputs("budget_bytes,is_card,configurations,emitted,simulated,head\n", out);
    fprintf(out, "%" PRIu64 ",%d,%zu,%zu,%zu,", plan->budget, !plan->own_budget,
            plan->space.n - plan->counts.repeats, plan->counts.emitted, plan->counts.simulated);
    tsr__put_plain(out, head);
    fputc('\n', out);
    return TSR_OK;
}

static tsr_status write_json(FILE *out, const void *user)
{
    return tsr_plan_put_json(out, user);
}

tsr_status tsr_plan_write(const struct tsr_plan *plan, const char *dir)
{
    static const struct tsr_named_write files[] = {{"plan.csv", write_points},
                                                   {"plan-front.csv", write_front},
                                                   {"plan-frame.csv", write_frame},
                                                   {"summary.json", write_json}};
    TSR_TRY(tsr_write_each(dir, files, sizeof files / sizeof *files, plan));
    return plan->n_shown ? tsr_report_picture(dir, "plan") : TSR_OK;
}
