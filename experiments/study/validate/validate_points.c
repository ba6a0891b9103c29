/* validate_points.c: rows become recipes, recipes are simulated once each, and every measured
 * figure of a row gets its prediction; quantiles of the errors, and the rank correlation.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/pool.h"
#include "experiments/study/validate/validate.h"
#include "sim/base/quantile.h"

#define GIB 1073741824.0

enum { ENDS = 2 }; /* of a range of GPUs */
enum { SMALL_COLLECTIVE = 64 * 1024 };

/* A row at one end of its range. */
struct shot {
    struct tsr_recipe recipe;
    uint32_t gpus;
    size_t job; /* index of the recipe that is simulated for it; SIZE_MAX: refused */
};

struct jobs {
    struct tsr_validation *v;
    struct shot *shots;          /* [rows][ENDS] */
    const struct shot **first;   /* [n]: the shot that a job is simulated for */
    struct tsr_outcome *outcome; /* [n] */
    size_t n;
};

/* ---- recipes ----------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static bool same_recipe(const struct tsr_recipe *a, const struct tsr_recipe *b)
{
    if (!same_text(a->collective.kind, b->collective.kind) ||
        a->collective.gpus != b->collective.gpus || a->collective.nodes != b->collective.nodes ||
        a->collective.bytes != b->collective.bytes)
        return false;
    if (a->n_sets != b->n_sets || a->accumulation != b->accumulation ||
        !same_text(a->model, b->model))
        return false;
    for (size_t i = 0; i < a->n_sets; i++)
        if (strcmp(a->sets[i], b->sets[i]))
            return false;
    return true;
}

static void assign_job(struct jobs *jobs, struct shot *shot)
{
    shot->job = SIZE_MAX;
    if (shot->recipe.refuse)
        return;
    for (size_t k = 0; k < jobs->n; k++) {
        if (same_recipe(&jobs->first[k]->recipe, &shot->recipe)) {
            shot->job = k;
            return;
        }
    }
    shot->job = jobs->n;
    jobs->first[jobs->n++] = shot;
}

static tsr_status make_recipe(const struct jobs *jobs, const struct tsr_csv_row *row, uint32_t gpus,
                              bool readable, struct tsr_recipe *out)
{
    struct tsr_validation *v = jobs->v;
    if (readable)
        return tsr_rules_apply(v->conditions, v->table, row, gpus, &v->arena, out);
    return tsr_rules_refuse(&v->arena, tsr_table_reason(v->table), out);
}

/* A cell that cannot be read makes its row one that is not modelled; tsr_table_open() has refused
 * it before if the table is read strictly. */
static tsr_status make_shots(struct jobs *jobs)
{
    const struct tsr_table *table = jobs->v->table;
    for (size_t i = 0; i < table->csv.n_rows; i++) {
        const struct tsr_csv_row *row = &table->csv.rows[i];
        uint32_t gpus[ENDS] = {0};
        tsr_status status = tsr_table_gpus(table, row, gpus);
        if (status != TSR_OK && table->strict)
            return status;
        if (status == TSR_OK)
            status = tsr_table_check_row(table, row);
        for (size_t end = 0; end < ENDS; end++) {
            struct shot *shot = &jobs->shots[ENDS * i + end];
            shot->gpus = gpus[end];
            TSR_TRY(make_recipe(jobs, row, gpus[end], status == TSR_OK, &shot->recipe));
            assign_job(jobs, shot);
        }
    }
    return TSR_OK;
}

/* ---- the pool ---------------------------------------------------------------------------- */

static void run_job(void *user, size_t item, void *result)
{
    const struct jobs *jobs = user;
    tsr_outcome_of(jobs->v->conditions, &jobs->first[item]->recipe, jobs->v->sets, jobs->v->n_sets,
                   result);
}

/* A row whose simulation dies is a row that is not modelled: the others go on. */
static tsr_status take_job(void *user, size_t item, const void *result, const char *end)
{
    struct jobs *jobs = user;
    memcpy(&jobs->outcome[item], result, sizeof jobs->outcome[item]);
    if (end)
        snprintf(jobs->outcome[item].failure, sizeof jobs->outcome[item].failure,
                 "the simulation ended by %s", end);
    return TSR_OK;
}

static const char *name_job(void *user, size_t item)
{
    (void)user;
    (void)item;
    return "row";
}

/* ---- points ------------------------------------------------------------------------------ */

static double predict(const struct tsr_outcome *o, const struct tsr_measured_column *column)
{
    double rate = o->step_s > 0 ? o->tokens / o->step_s : 0;
    switch (column->figure) {
    case TSR_FIGURE_RATE:
        return rate;
    case TSR_FIGURE_RATE_ALL:
        return rate * o->world;
    case TSR_FIGURE_STEP:
        return o->step_s;
    case TSR_FIGURE_TFLOPS:
        return o->step_s > 0 ? o->flops / o->step_s * 1e-12 : 0;
    case TSR_FIGURE_RESERVED:
        return o->reserved_bytes / GIB;
    case TSR_FIGURE_SECONDS:
        return o->seconds;
    case TSR_FIGURE_BUSBW:
        return o->busbw * 1e-9;
    }
    return 0;
}

/* The measured figure as a factor of the predicted one scales its utilisation, too. */
static void set_mfu(struct tsr_point *point, const struct tsr_outcome *o,
                    const struct tsr_measured_column *column)
{
    if (o->mfu <= 0 || !point->has_measured || column->figure >= TSR_FIGURE_RESERVED)
        return;
    double ratio = point->measured / point->predicted;
    point->mfu_predicted = o->mfu;
    point->mfu_measured = o->mfu * (column->figure == TSR_FIGURE_STEP ? 1 / ratio : ratio);
}

static void set_prediction(const struct jobs *jobs, const struct shot *shot,
                           const struct tsr_measured_column *column, struct tsr_point *out)
{
    const struct tsr_outcome *o = shot->job == SIZE_MAX ? NULL : &jobs->outcome[shot->job];
    out->gpus = shot->gpus;
    out->status = TSR_POINT_NOT_MODELLED;
    out->error = 1;
    if (!o || o->failure[0]) {
        out->reason = o ? o->failure : shot->recipe.refuse;
        return;
    }
    out->class = o->class;
    snprintf(out->gpu, sizeof out->gpu, "%s", o->gpu);
    out->status = TSR_POINT_PREDICTED;
    out->predicted = predict(o, column);
    out->step_s = o->step_s;
    out->compute_s = o->compute_s;
    out->comm_s = o->comm_s;
    out->exposed_s = o->exposed_s;
    out->error = out->measured > 0 ? fabs(out->predicted - out->measured) / out->measured : 0;
    set_mfu(out, o, column);
}

/* A collective that latency decides. */
static bool is_small(const struct tsr_csv *csv, const struct tsr_csv_row *row)
{
    double bytes = 0;
    bool found = false;
    return tsr_csv_number(csv, row, "size_bytes", &bytes, &found) == TSR_OK && found &&
           bytes < SMALL_COLLECTIVE;
}

static tsr_status add_point(struct jobs *jobs, size_t i, const struct tsr_measured_column *column,
                            double measured, bool found)
{
    struct tsr_validation *v = jobs->v;
    const struct tsr_csv *csv = &v->table->csv;
    const struct tsr_csv_row *row = &csv->rows[i];
    const char *id = tsr_csv_cell(csv, row, "row_id");
    struct tsr_point *point = &v->points[v->n_points];
    struct tsr_point end[ENDS];
    const char *quantity = column->quantity;
    bool small = column->figure >= TSR_FIGURE_SECONDS && is_small(csv, row);
    if (small)
        quantity = tsr_arena_printf(&v->arena, "%s_under_64KiB", column->quantity);
    if (!*id)
        id = tsr_arena_printf(&v->arena, "%d", row->line);
    if (!id || !quantity)
        return tsr_no_memory(NULL);
    for (size_t k = 0; k < ENDS; k++) {
        end[k] = (struct tsr_point){.row_id = id,
                                    .row = row,
                                    .quantity = quantity,
                                    .unit = column->unit,
                                    .beside = column->beside,
                                    .small = small,
                                    .has_measured = found,
                                    .measured = measured * column->scale};
        end[k].duplicate = !strcmp(tsr_csv_cell(csv, row, "duplicate_of_head"), "yes");
        end[k].counts = found && !end[k].duplicate;
        set_prediction(jobs, &jobs->shots[ENDS * i + k], column, &end[k]);
    }
    *point = end[1].error > end[0].error ? end[1] : end[0];
    if (point->reason) {
        point->reason = tsr_arena_strdup(&v->arena, point->reason);
        if (!point->reason)
            return tsr_no_memory(NULL);
    }
    v->n_points++;
    return TSR_OK;
}

/* A measured figure; what is not more than 0 is a mistake, but for the bandwidth of a few bytes,
 * which tables round to nothing. */
static tsr_status read_figure(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                              const struct tsr_measured_column *c, double *measured, bool *found)
{
    const char *column = c->column;
    TSR_TRY(tsr_csv_number(csv, row, column, measured, found));
    if (c->figure == TSR_FIGURE_BUSBW && *measured == 0)
        *found = false;
    if (*found && *measured <= 0)
        return tsr_fail(TSR_ECONFIG, "%s:%d: column %s: found %g; allowed: more than 0", csv->path,
                        row->line, column, *measured);
    return TSR_OK;
}

/* Before anything is simulated. */
static tsr_status check_figures(const struct tsr_table *table)
{
    double measured;
    bool found;
    for (size_t i = 0; i < table->csv.n_rows; i++)
        for (const struct tsr_measured_column *c = table->kind->measured; c->column; c++)
            TSR_TRY(read_figure(&table->csv, &table->csv.rows[i], c, &measured, &found));
    return TSR_OK;
}

/* A figure that cannot be read: nothing to compare with, and that is said. */
static tsr_status add_unread(struct jobs *jobs, size_t i, const struct tsr_measured_column *column)
{
    struct tsr_validation *v = jobs->v;
    const char *reason = tsr_arena_strdup(&v->arena, tsr_table_reason(v->table));
    if (!reason)
        return tsr_no_memory(NULL);
    TSR_TRY(add_point(jobs, i, column, 0, false));
    struct tsr_point *point = &v->points[v->n_points - 1];
    point->status = TSR_POINT_NOT_MODELLED;
    point->reason = reason;
    return TSR_OK;
}

/* The figures of a row; one without any still says what is predicted. */
static tsr_status add_row(struct jobs *jobs, size_t i)
{
    const struct tsr_csv *csv = &jobs->v->table->csv;
    const struct tsr_measured_column *main = NULL, *column = jobs->v->table->kind->measured;
    for (const struct tsr_measured_column *c = column; c->column; c++) {
        double measured;
        bool found;
        if (read_figure(csv, &csv->rows[i], c, &measured, &found) != TSR_OK) {
            TSR_TRY(add_unread(jobs, i, c));
            main = c->beside ? main : c;
            continue;
        }
        if (!found || (main && !c->beside))
            continue;
        TSR_TRY(add_point(jobs, i, c, measured, true));
        main = c->beside ? main : c;
    }
    while (column->beside)
        column++;
    return main ? TSR_OK : add_point(jobs, i, column, 0, false);
}

/* ---- all --------------------------------------------------------------------------------- */

static size_t most_points(const struct tsr_table *table)
{
    size_t n = 0;
    while (table->kind->measured[n].column)
        n++;
    return table->csv.n_rows * n + 1;
}

static tsr_status validate(struct jobs *jobs, uint64_t n_jobs)
{
    struct tsr_validation *v = jobs->v;
    size_t n_rows = v->table->csv.n_rows;
    v->points = calloc(most_points(v->table), sizeof(*v->points));
    jobs->shots = calloc(ENDS * n_rows + 1, sizeof(*jobs->shots));
    jobs->first = calloc(ENDS * n_rows + 1, sizeof(*jobs->first));
    jobs->outcome = calloc(ENDS * n_rows + 1, sizeof(*jobs->outcome));
    if (!v->points || !jobs->shots || !jobs->first || !jobs->outcome)
        return tsr_no_memory(NULL);
    if (v->table->strict)
        TSR_TRY(check_figures(v->table));
    TSR_TRY(tsr_outcome_check_sets(v->sets, v->n_sets));
    TSR_TRY(make_shots(jobs));
    struct tsr_pool_work work = {.n = jobs->n,
                                 .result_bytes = sizeof(struct tsr_outcome),
                                 .user = jobs,
                                 .run = run_job,
                                 .take = take_job,
                                 .name = name_job,
                                 .kept = "runs were simulated; the table is written at the end"};
    tsr_sim_prepare();
    TSR_TRY(tsr_pool_each(&work, n_jobs));
    v->n_simulated = jobs->n;
    for (size_t i = 0; i < n_rows; i++)
        TSR_TRY(add_row(jobs, i));
    return TSR_OK;
}

tsr_status tsr_validate(const struct tsr_table *table, const struct tsr_rules *conditions,
                        const char *const *sets, size_t n_sets, uint64_t jobs,
                        struct tsr_validation *out)
{
    struct jobs work = {.v = out};
    memset(out, 0, sizeof(*out));
    tsr_arena_init(&out->arena);
    out->table = table;
    out->conditions = conditions;
    out->sets = sets;
    out->n_sets = n_sets;
    tsr_status status = validate(&work, jobs);
    free(work.shots);
    free(work.first);
    free(work.outcome);
    if (status != TSR_OK)
        tsr_validation_fini(out);
    return status;
}

void tsr_validation_fini(struct tsr_validation *validation)
{
    free(validation->points);
    tsr_arena_fini(&validation->arena);
    memset(validation, 0, sizeof(*validation));
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Quantiles of errors, and the rank correlation. */

static bool belongs(const struct tsr_point *point, const struct tsr_point_class *which)
{
    if (!point->counts)
        return false;
    return (!which->quantity || !strcmp(which->quantity, point->quantity)) &&
           (!which->gpu || !strcmp(which->gpu, point->gpu)) && point->gpus >= which->min_gpus &&
           (!which->max_gpus || point->gpus <= which->max_gpus);
}

static double *room(const struct tsr_validation *v, size_t each)
{
    return calloc(each * v->n_points + 1, sizeof(double));
}

tsr_status tsr_error_stats_of(const struct tsr_validation *v, const struct tsr_point_class *which,
                              struct tsr_error_stats *out)
{
    double *errors = room(v, 2), sum = 0;
    *out = (struct tsr_error_stats){0};
    if (!errors)
        return tsr_no_memory(NULL);
    double *bias = errors + v->n_points;
    size_t n = 0, n_bias = 0;
    for (size_t i = 0; i < v->n_points; i++) {
        const struct tsr_point *p = &v->points[i];
        if (!belongs(p, which))
            continue;
        sum += errors[n++] = p->error;
        if (p->status == TSR_POINT_PREDICTED)
            bias[n_bias++] = p->predicted / p->measured - 1;
        else
            out->not_modelled++;
    }
    tsr_sort_ascending(errors, n);
    tsr_sort_ascending(bias, n_bias);
    out->n = n;
    out->mean = n ? sum / (double)n : NAN;
    out->median = tsr_quantile(errors, n, 0.5);
    out->p90 = tsr_quantile(errors, n, 0.9);
    out->max = tsr_quantile(errors, n, 1);
    out->bias = tsr_quantile(bias, n_bias, 0.5);
    free(errors);
    return TSR_OK;
}

/* Ranks from 1; equal values share the mean of theirs. */
static void ranks_of(const double *values, size_t n, double *ranks)
{
    for (size_t i = 0; i < n; i++) {
        double below = 0, equal = 0;
        for (size_t k = 0; k < n; k++) {
            below += values[k] < values[i];
            equal += values[k] <= values[i] && values[k] >= values[i];
        }
        ranks[i] = below + (equal + 1) / 2;
    }
}

static double correlation(const double *a, const double *b, size_t n)
{
    double mean = ((double)n + 1) / 2, ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (a[i] - mean) * (b[i] - mean);
        aa += (a[i] - mean) * (a[i] - mean);
        bb += (b[i] - mean) * (b[i] - mean);
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

tsr_status tsr_rank_correlation(const struct tsr_validation *v, const struct tsr_point_class *which,
                                double *out)
{
    double *values = room(v, 4);
    *out = NAN;
    if (!values)
        return tsr_no_memory(NULL);
    double *predicted = values + v->n_points, *ranks = predicted + v->n_points;
    size_t n = 0;
    for (size_t i = 0; i < v->n_points; i++) {
        const struct tsr_point *p = &v->points[i];
        if (!belongs(p, which) || p->mfu_measured <= 0)
            continue;
        values[n] = p->mfu_measured;
        predicted[n++] = p->mfu_predicted;
    }
    ranks_of(values, n, ranks);
    ranks_of(predicted, n, ranks + n);
    if (n >= 3)
        *out = correlation(ranks, ranks + n, n);
    free(values);
    return TSR_OK;
}
