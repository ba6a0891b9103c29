/* plan_report.c: what `tessera plan` prints for programs, CSV and JSON: the fastest configurations
 * that fit and the Pareto front, each with the command that repeats it. The report for people is
 * plan_screen.c. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "sim/base/text.h"

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
                                 .alike = point->n_like - 1,
                                 .time_error = tsr_time_error_word(&row->time_error),
                                 .unknown_share = fmax(tsr__unknown_share(row), 0)};
    tsr_plan_words(&plan->space, i, out->settings, sizeof out->settings);
    out->n_sets = tsr_plan_sets(&plan->space, i, out->sets);
}

/* ---- commands ---------------------------------------------------------------------------- */

void tsr_plan_put_command(FILE *out, const struct tsr_plan *plan, const char *subcommand,
                          const char *const *sets, size_t n)
{
    fprintf(out, "tessera %s ", subcommand);
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
}

void tsr_plan_put_shown_command(FILE *out, const struct tsr_plan *plan, const char *subcommand,
                                size_t k)
{
    const char *sets[TSR_PLAN_MAX_AXES];
    size_t n = tsr_plan_sets(&plan->space, plan->shown[k], sets);
    tsr_plan_put_command(out, plan, subcommand, sets, n);
}

char *tsr_plan_command(const struct tsr_plan *plan, size_t k)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return NULL;
    tsr_plan_put_shown_command(stream, plan, "sim", k);
    if (fclose(stream) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- for programs ------------------------------------------------------------------------ */

static void put_csv(FILE *out, const struct tsr_plan *plan)
{
    fputs("schema_version,rank,settings,step_time_s,tokens_per_s_per_gpu,mfu,peak_allocated_bytes,"
          "needed_bytes,exposed_communication_s,fits,front,alike,command,needs,marked,time_error,"
          "unknown_kernels_share\n",
          out);
    for (size_t k = 0; k < plan->n_shown; k++) {
        struct tsr_plan_row row;
        char needs[128], *command = tsr_plan_command(plan, k);
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
        fprintf(out, ",%s,", row.is_marked ? "yes" : "no");
        tsr__put_csv(out, row.time_error);
        fprintf(out, ",%.9g\n", row.unknown_share);
        free(command);
    }
}

static json_t *point_json(const struct tsr_plan *plan, size_t k)
{
    struct tsr_plan_row row;
    char *command = tsr_plan_command(plan, k);
    json_t *list = json_array(), *needs = json_array();
    tsr_plan_row_of(plan, k, &row);
    for (unsigned i = 0; i < TSR_N_NEEDS; i++)
        if (row.needs >> i & 1)
            json_array_append_new(needs, json_string(tsr_words_need[i]));
    for (size_t i = 0; i < row.n_sets; i++)
        json_array_append_new(list, json_string(row.sets[i]));
    json_t *out = json_pack(
        "{s:I, s:s, s:o, s:f, s:f, s:o, s:I, s:I, s:f, s:b, s:s, s:b, s:o, s:b, s:I, s:s, s:s, "
        "s:f}",
        "rank", (json_int_t)k + 1, "settings", row.settings, "set", list, "step_time_s", row.step_s,
        "tokens_per_s_per_gpu", row.tokens_per_s, "mfu",
        row.mfu >= 0 ? json_real(row.mfu) : json_null(), "peak_allocated_bytes",
        (json_int_t)row.allocated, "needed_bytes", (json_int_t)row.needed,
        "exposed_communication_s", row.exposed_s, "fits", 1, "verdict", tsr_fits_word(row.fits),
        "front", (int)row.front, "needs", needs, "marked", (int)row.is_marked, "alike",
        (json_int_t)row.alike, "command", command ? command : "", "time_error", row.time_error,
        "unknown_kernels_share", row.unknown_share);
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

tsr_status tsr_plan_report(FILE *out, FILE *notes, const struct tsr_plan *plan, const char *format,
                           const struct tsr_plan_view *view)
{
    if (!strcmp(format, "json"))
        return tsr_plan_put_json(out, plan);
    if (!strcmp(format, "csv"))
        put_csv(out, plan);
    else
        tsr_plan_put_screen(out, notes, plan, !strcmp(format, "wide"), view);
    return TSR_OK;
}
