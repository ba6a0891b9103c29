/* validate_page.c: report.html of a validation: predicted against measured, every row, errors by
 * class. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/html/html.h"
#include "experiments/study/validate/validate.h"

static json_t *rows_table(const struct tsr_validation *v)
{
    static const struct tsr_html_column columns[] = {
        {"row", "row", "text"},
        {"what", "what", "text"},
        {"gpu", "GPU", "text"},
        {"gpus", "GPUs", "1"},
        {"quantity", "quantity", "text"},
        {"predicted", "predicted", "figure"},
        {"measured", "measured", "figure"},
        {"error", "error", "error"},
        {"counts", "counts", "flag"},
        {"reason", "not modelled because", "text"},
        {NULL, NULL, NULL},
    };
    json_t *table = tsr_html_table("rows", "Every row", columns);
    for (size_t i = 0; i < v->n_points; i++) {
        const struct tsr_point *p = &v->points[i];
        bool predicted = p->status == TSR_POINT_PREDICTED;
        char what[256];
        tsr_validation_describe(v, p, what, sizeof what);
        tsr_html_row(
            table,
            json_pack("[o, o, o, I, o, o, o, o, b, o]", tsr_html_text(p->row_id),
                      tsr_html_text(what), tsr_html_text(p->gpu), (json_int_t)p->gpus,
                      tsr_html_text(p->quantity), tsr_html_number(predicted ? p->predicted : NAN),
                      tsr_html_number(p->has_measured ? p->measured : NAN),
                      tsr_html_number(predicted && p->has_measured ? p->predicted / p->measured - 1
                                                                   : NAN),
                      (int)p->counts, tsr_html_text(p->reason ? p->reason : "")));
    }
    return table;
}

static json_t *line(const char *name, double from, double to, double factor, bool dashed)
{
    return json_pack("{s:o, s:o, s:[[f, f], [f, f]]}", "name", tsr_html_text(name), "dash",
                     dashed ? json_pack("[i, i]", 5, 4) : json_array(), "points", from,
                     from * factor, to, to * factor);
}

/* Predicted over measured of one quantity, between lines of 10 %. */
static json_t *quantity_plot(const struct tsr_validation *v, const char *quantity, const char *unit)
{
    char x[128], y[128];
    (void)snprintf(x, sizeof x, "measured %s (%s)", quantity, unit);
    (void)snprintf(y, sizeof y, "predicted %s (%s)", quantity, unit);
    json_t *plot = tsr_html_plot(quantity, x, "figure", y, "figure");
    double low = INFINITY, high = 0;
    for (size_t i = 0; i < v->n_points; i++) {
        const struct tsr_point *p = &v->points[i];
        char what[256], name[400];
        if (!p->counts || p->status != TSR_POINT_PREDICTED || strcmp(p->quantity, quantity) != 0)
            continue;
        tsr_validation_describe(v, p, what, sizeof what);
        (void)snprintf(name, sizeof name, "%s: %s", p->row_id, what);
        tsr_html_point(plot, p->measured, p->predicted, name, p->error > 0.1 ? "bad" : "good",
                       false, false);
        low = fmin(low, p->measured);
        high = fmax(high, p->measured);
    }
    json_t *lines = json_object_get(plot, "lines");
    json_array_append_new(lines, line("equal", low / 2, high * 2, 1, false));
    json_array_append_new(lines, line("10 % more or less", low / 2, high * 2, 1.1, true));
    json_array_append_new(lines, line(NULL, low / 2, high * 2, 0.9, true));
    json_object_set_new(plot, "quiet", json_true());
    json_object_set_new(plot, "names",
                        json_pack("{s:s, s:s}", "good", "within 10 %", "bad", "farther off"));
    return plot;
}

static const char *unit_of(const struct tsr_validation *v, const char *quantity)
{
    for (size_t i = 0; i < v->n_points; i++)
        if (!strcmp(v->points[i].quantity, quantity))
            return v->points[i].unit;
    return "";
}

static tsr_status add_quantities(const struct tsr_validation *v, json_t *page)
{
    static const struct tsr_html_column columns[] = {
        {"quantity", "quantity", "text"},
        {"n", "rows", "1"},
        {"median", "median", "error"},
        {"mean", "mean", "error"},
        {"p90", "p90", "error"},
        {"max", "max", "error"},
        {"bias", "bias", "error"},
        {"no", "not modelled", "1"},
        {NULL, NULL, NULL},
    };
    json_t *table = tsr_html_table("quantities", "Errors by quantity", columns);
    for (size_t i = 0; i < v->n_points; i++) {
        const char *quantity = v->points[i].quantity;
        struct tsr_point_class which = {.quantity = quantity};
        struct tsr_error_stats s;
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            seen = !strcmp(v->points[k].quantity, quantity);
        if (seen)
            continue;
        TSR_TRY(tsr_error_stats_of(v, &which, &s));
        if (!s.n)
            continue;
        tsr_html_row(table,
                     json_pack("[o, I, o, o, o, o, o, I]", tsr_html_text(quantity), (json_int_t)s.n,
                               tsr_html_number(s.median), tsr_html_number(s.mean),
                               tsr_html_number(s.p90), tsr_html_number(s.max),
                               tsr_html_number(s.bias), (json_int_t)s.not_modelled));
    }
    tsr_html_add(page, "tables", table);
    return TSR_OK;
}

static tsr_status say(const struct tsr_validation *v, json_t *page)
{
    const char *drawn = tsr_validation_drawn(v);
    struct tsr_error_stats s;
    if (!drawn) {
        tsr_html_say(page, "verdict", "No row of the table could be predicted.");
        return TSR_OK;
    }
    struct tsr_point_class which = {.quantity = drawn};
    TSR_TRY(tsr_error_stats_of(v, &which, &s));
    tsr_html_say(page, "verdict",
                 "%s: %zu figures, median error %.1f %%, 90 %% within %.1f %%, largest %.1f %%.",
                 drawn, s.n, 100 * s.median, 100 * s.p90, 100 * s.max);
    tsr_html_add(page, "plots", quantity_plot(v, drawn, unit_of(v, drawn)));
    return TSR_OK;
}

tsr_status tsr_validation_page(const char *dir, const struct tsr_validation *v)
{
    char subtitle[1200];
    const char *slash = strrchr(v->table->csv.path, '/');
    (void)snprintf(subtitle, sizeof subtitle, "%zu rows, %zu simulations; conditions: %s",
                   v->table->csv.n_rows, v->n_simulated, v->conditions->path);
    json_t *page = tsr_html_page(
        "validate", slash ? slash + 1 : v->table->csv.path, subtitle,
        tsr_html_command("validate", v->table->csv.path, v->sets, v->n_sets, NULL), NULL);
    tsr_status status = say(v, page);
    if (status == TSR_OK)
        status = add_quantities(v, page);
    if (status != TSR_OK) {
        json_decref(page);
        return status;
    }
    tsr_html_add(page, "tables", rows_table(v));
    tsr_html_say(page, "notes",
                 "Error: of the prediction against the measured figure; counts: measured, and not "
                 "twice in the table.");
    return tsr_html_write(dir, page, NULL, 0);
}
