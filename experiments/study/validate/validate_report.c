/* validate_report.c: what `tessera validate` prints and writes: a table for people, JSON, CSV, and
 * the data of the picture.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/validate/validate.h"
#include "sim/base/text.h"

enum { CLAIMED = 10, NODE = 8, MAX_GPUS = 16, MAX_QUANTITIES = 8 };

/* ---- classes ----------------------------------------------------------------------------- */

/* The classes that a summary tells apart: all rows, one node, more than that; each also by kind of
 * GPU. */
struct class_list {
    struct class_item {
        char name[96];
        struct tsr_point_class which;
        struct tsr_error_stats stats;
        double rank;
    } items[6 * (MAX_GPUS + 1)];
    size_t n;
};

static tsr_status add_class(const struct tsr_validation *v, struct class_list *list,
                            const char *quantity, const char *gpu, uint32_t min, uint32_t max)
{
    struct class_item *item = &list->items[list->n];
    if (list->n == sizeof list->items / sizeof list->items[0])
        return TSR_OK;
    item->which = (struct tsr_point_class){quantity, gpu, min, max};
    TSR_TRY(tsr_error_stats_of(v, &item->which, &item->stats));
    TSR_TRY(tsr_rank_correlation(v, &item->which, &item->rank));
    snprintf(item->name, sizeof item->name, "%s%s%s", gpu ? gpu : "all",
             min ? ", more than 8 GPUs" : "", max ? ", up to 8 GPUs" : "");
    list->n += item->stats.n > 0;
    return TSR_OK;
}

static size_t list_gpus(const struct tsr_validation *v, const char **gpus)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n_points; i++) {
        size_t k = 0;
        while (k < n && strcmp(gpus[k], v->points[i].gpu))
            k++;
        if (k == n && n < MAX_GPUS && v->points[i].gpu[0])
            gpus[n++] = v->points[i].gpu;
    }
    return n;
}

static size_t add_quantities(const struct tsr_validation *v, bool small, const char **out, size_t n,
                             size_t size)
{
    for (size_t i = 0; i < v->n_points; i++) {
        size_t k = 0;
        while (k < n && strcmp(out[k], v->points[i].quantity))
            k++;
        if (k == n && n < size && v->points[i].counts && v->points[i].small == small)
            out[n++] = v->points[i].quantity;
    }
    return n;
}

/* Quantities in the order of the table, those of small collectives last; returns how many. */
static size_t list_quantities(const struct tsr_validation *v, const char **out, size_t size)
{
    return add_quantities(v, true, out, add_quantities(v, false, out, 0, size), size);
}

static tsr_status list_classes(const struct tsr_validation *v, const char *quantity,
                               struct class_list *list)
{
    const char *gpus[MAX_GPUS];
    size_t n = list_gpus(v, gpus);
    list->n = 0;
    TSR_TRY(add_class(v, list, quantity, NULL, 0, 0));
    TSR_TRY(add_class(v, list, quantity, NULL, 0, NODE));
    TSR_TRY(add_class(v, list, quantity, NULL, NODE + 1, 0));
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(add_class(v, list, quantity, gpus[i], 0, 0));
        TSR_TRY(add_class(v, list, quantity, gpus[i], 0, NODE));
        TSR_TRY(add_class(v, list, quantity, gpus[i], NODE + 1, 0));
    }
    return TSR_OK;
}

/* ---- for people -------------------------------------------------------------------------- */

/* "7b 2048 x 8 x 4, a100_80gb": the cells that tell rows apart. */
void tsr_validation_describe(const struct tsr_validation *v, const struct tsr_point *point,
                             char *out, size_t size)
{
    static const char *const columns[] = {"framework",
                                          "model",
                                          "collective",
                                          "gpu",
                                          "sharding",
                                          "activation_checkpointing",
                                          "fsdp_mixed_precision",
                                          "torch_compile",
                                          "compile"};
    static const struct {
        const char *column, *before;
    } numbers[] = {{"seq_len", "seq "},     {"microbatch_size", "mb "},
                   {"local_batch", "mb "},  {"local_or_micro_batch", "mb "},
                   {"micro_batch", "mb "},  {"grad_accum", "x "},
                   {"size_bytes", "bytes "}};
    const struct tsr_csv *csv = &v->table->csv;
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        const char *cell = tsr_csv_cell(csv, point->row, columns[i]);
        if (*cell && strcmp(cell, "False"))
            snprintf(out + used, size - used, "%s%.24s", used ? ", " : "",
                     !strcmp(cell, "True") ? "recomputed" : cell);
        used = strlen(out);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const char *cell = tsr_csv_cell(csv, point->row, numbers[i].column);
        if (*cell)
            snprintf(out + used, size - used, ", %s%.12s", numbers[i].before, cell);
        used = strlen(out);
    }
}

static void put_share(FILE *out, double share)
{
    if (isnan(share))
        fprintf(out, " %8s |", "-");
    else
        fprintf(out, " %7.2f%% |", 100 * share);
}

static void put_point(FILE *out, const struct tsr_validation *v, const struct tsr_point *p)
{
    char what[256];
    tsr_validation_describe(v, p, what, sizeof what);
    char gpus[16] = "-"; /* the cell cannot be read */
    if (p->gpus)
        snprintf(gpus, sizeof gpus, "%u", (unsigned)p->gpus);
    fprintf(out, "| %-8s | %4s | %-22s |", tsr_show(p->row_id).text, gpus,
            tsr_show(p->quantity).text);
    if (p->status == TSR_POINT_PREDICTED)
        fprintf(out, " %10.5g |", p->predicted);
    else
        fprintf(out, " %10s |", "-");
    if (p->has_measured)
        fprintf(out, " %10.5g |", p->measured);
    else
        fprintf(out, " %10s |", "-");
    if (!p->has_measured)
        fprintf(out, " %8s |", "-");
    else if (p->status == TSR_POINT_PREDICTED)
        fprintf(out, " %+7.2f%% |", 100 * (p->predicted / p->measured - 1));
    else
        put_share(out, p->error);
    fprintf(out, " %s%s%s%s |\n", tsr_show_line(what).text,
            p->duplicate ? "; twice in the table" : "", p->reason ? "; NOT MODELLED: " : "",
            p->reason ? tsr_show_line(p->reason).text : "");
}

/* Classes that are reported, not claimed. */
static void put_small(FILE *out, const struct class_list *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i].stats.n < CLAIMED)
            fprintf(out, "%s%s", n++ ? "; " : "\nOf fewer than 10 rows, reported and not claimed: ",
                    tsr_show(list->items[i].name).text);
    fputs(n ? ".\n" : "", out);
}

static void put_summary(FILE *out, const char *quantity, const struct class_list *list)
{
    fprintf(out, "\n%s\n\n", tsr_show_line(quantity).text);
    fputs("| class                              | rows | median   | mean     | p90      | max      "
          "| bias     | rank of MFU | not modelled |\n"
          "|:-----------------------------------|-----:|---------:|---------:|---------:|---------:"
          "|---------:|------------:|-------------:|\n",
          out);
    for (size_t i = 0; i < list->n; i++) {
        const struct class_item *item = &list->items[i];
        fprintf(out, "| %-34s | %4zu |", tsr_show(item->name).text, item->stats.n);
        put_share(out, item->stats.median);
        put_share(out, item->stats.mean);
        put_share(out, item->stats.p90);
        put_share(out, item->stats.max);
        put_share(out, item->stats.bias);
        if (isnan(item->rank))
            fprintf(out, " %11s |", "-");
        else
            fprintf(out, " %11.3f |", item->rank);
        fprintf(out, " %12zu |\n", item->stats.not_modelled);
    }
    put_small(out, list);
}

/* Columns that nothing is read from, if there are any. */
static void put_unread(FILE *out, const struct tsr_validation *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->table->csv.n_columns; i++)
        if (!tsr_table_knows(v->table, i))
            fprintf(out, "%s%s",
                    n++ ? ", " : "\nColumns that no table of this kind has, not read: ",
                    tsr_show_line(v->table->csv.columns[i]).text);
    fputs(n ? ".\n" : "", out);
}

tsr_status tsr_validation_print(FILE *out, const struct tsr_validation *v)
{
    const char *quantities[MAX_QUANTITIES];
    size_t n = list_quantities(v, quantities, MAX_QUANTITIES);
    struct class_list list;
    fprintf(out,
            "%s: kind %s, %zu rows, %zu simulations; conditions: %s\n\n"
            "| row      | GPUs | quantity               | predicted  | measured   | error    | "
            "what |\n"
            "|:---------|-----:|:-----------------------|-----------:|-----------:|---------:|:"
            "-----|\n",
            tsr_show_line(v->table->csv.path).text, v->table->kind->name, v->table->csv.n_rows,
            v->n_simulated, tsr_show_line(v->conditions->path).text);
    for (size_t i = 0; i < v->n_points; i++)
        put_point(out, v, &v->points[i]);
    put_unread(out, v);
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(list_classes(v, quantities[i], &list));
        put_summary(out, quantities[i], &list);
    }
    return TSR_OK;
}

/* ---- for programs ------------------------------------------------------------------------ */

static json_t *number(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

/* What errors.py makes classes of (report/validated.h). */
static void add_class_json(json_t *point, const struct tsr_measured_class *c)
{
    if (!c->api[0])
        return;
    json_t *more =
        json_pack("{s:s, s:s, s:s?, s:s, s:s, s:I}", "api", c->api, "nodes",
                  c->many_nodes ? "many" : "one", "stack", c->stack[0] ? c->stack : NULL, "model",
                  c->models, "varied", c->varied, "parameters", (json_int_t)c->min_params);
    json_object_update(point, more);
    json_decref(more);
}

static json_t *point_json(const struct tsr_point *p)
{
    bool predicted = p->status == TSR_POINT_PREDICTED;
    json_t *point = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:i, s:b, s:b, s:s*, s:s*}", "row_id", p->row_id,
        "status", predicted ? "predicted" : "not_modelled", "quantity", p->quantity, "unit",
        p->unit, "predicted", predicted ? json_real(p->predicted) : json_null(), "measured",
        p->has_measured ? json_real(p->measured) : json_null(), "error",
        p->has_measured ? json_real(p->error) : json_null(), "n_gpus", (int)p->gpus, "duplicate",
        p->duplicate, "beside", p->beside, "gpu", p->gpu[0] ? p->gpu : NULL, "reason", p->reason);
    add_class_json(point, &p->class);
    return point;
}

static json_t *class_json(const struct class_item *item)
{
    const struct tsr_error_stats *s = &item->stats;
    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "class", item->name, "n",
                     (json_int_t)s->n, "n_not_modelled", (json_int_t)s->not_modelled, "median",
                     number(s->median), "mean", number(s->mean), "p90", number(s->p90), "max",
                     number(s->max), "bias", number(s->bias), "rank_correlation_mfu",
                     number(item->rank), "claimed", s->n >= CLAIMED);
}

static tsr_status quantity_json(const struct tsr_validation *v, const char *quantity, json_t **out)
{
    struct class_list list;
    TSR_TRY(list_classes(v, quantity, &list));
    json_t *value = list.n ? class_json(&list.items[0]) : json_object(), *classes = json_array();
    for (size_t i = 1; i < list.n; i++)
        json_array_append_new(classes, class_json(&list.items[i]));
    json_object_del(value, "class");
    json_object_set_new(value, "quantity", quantity ? json_string(quantity) : json_null());
    json_object_set_new(value, "classes", classes);
    *out = value;
    return value && classes ? TSR_OK : tsr_no_memory(NULL);
}

/* The summary is that of the main quantity, with the others below it. */
static tsr_status summary_json(const struct tsr_validation *v, json_t **out)
{
    const char *quantities[MAX_QUANTITIES], *main = NULL;
    size_t n = list_quantities(v, quantities, MAX_QUANTITIES);
    for (size_t i = 0; i < v->n_points && !main; i++)
        if (!v->points[i].beside && !v->points[i].small && v->points[i].counts)
            main = v->points[i].quantity;
    if (!main && n)
        main = quantities[0];
    TSR_TRY(quantity_json(v, main, out));
    json_t *others = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *value = NULL;
        if (!strcmp(quantities[i], main))
            continue;
        TSR_TRY(quantity_json(v, quantities[i], &value));
        json_array_append_new(others, value);
    }
    json_object_set_new(*out, "other_quantities", others);
    return TSR_OK;
}

static tsr_status whole_json(const struct tsr_validation *v, json_t **out)
{
    json_t *rows = json_array(), *summary = NULL;
    for (size_t i = 0; i < v->n_points; i++)
        json_array_append_new(rows, point_json(&v->points[i]));
    tsr_status status = summary_json(v, &summary);
    *out = status == TSR_OK ? json_pack("{s:s, s:s, s:s, s:o, s:o}", "table", v->table->csv.path,
                                        "kind", v->table->kind->name, "conditions",
                                        v->conditions->path, "rows", rows, "summary", summary)
                            : NULL;
    if (status != TSR_OK) {
        json_decref(rows);
        json_decref(summary);
        return status;
    }
    return *out ? TSR_OK : tsr_no_memory(NULL);
}

tsr_status tsr_validation_json(FILE *out, const struct tsr_validation *v)
{
    json_t *value = NULL;
    TSR_TRY(whole_json(v, &value));
    tsr_status status = tsr__put_json_value(out, value);
    json_decref(value);
    return status;
}

tsr_status tsr_validation_csv(FILE *out, const struct tsr_validation *v)
{
    fputs("row_id,status,quantity,unit,predicted,measured,error,n_gpus,gpu,duplicate,what,"
          "reason,step_s,compute_s,communication_s,exposed_communication_s\n",
          out);
    for (size_t i = 0; i < v->n_points; i++) {
        const struct tsr_point *p = &v->points[i];
        char what[256];
        bool predicted = p->status == TSR_POINT_PREDICTED;
        tsr_validation_describe(v, p, what, sizeof what);
        tsr__put_csv(out, p->row_id);
        fprintf(out, ",%s,", predicted ? "predicted" : "not_modelled");
        tsr__put_plain(out, p->quantity);
        fputc(',', out);
        tsr__put_plain(out, p->unit);
        fputc(',', out);
        if (predicted)
            fprintf(out, "%.9g", p->predicted);
        fputc(',', out);
        if (p->has_measured)
            fprintf(out, "%.9g,%.9g", p->measured, p->error);
        else
            fputc(',', out);
        fprintf(out, ",%u,", (unsigned)p->gpus);
        tsr__put_plain(out, p->gpu);
        fprintf(out, ",%d,", p->duplicate);
        tsr__put_plain(out, what);
        fputc(',', out);
        tsr__put_plain(out, p->reason ? p->reason : "");
        if (predicted && p->step_s > 0)
            fprintf(out, ",%.9g,%.9g,%.9g,%.9g", p->step_s, p->compute_s, p->comm_s, p->exposed_s);
        else
            fputs(",,,,", out);
        fputc('\n', out);
    }
    return TSR_OK;
}

/* ---- files ------------------------------------------------------------------------------- */

static tsr_status write_csv(FILE *out, const void *user)
{
    return tsr_validation_csv(out, user);
}

static tsr_status write_json(FILE *out, const void *user)
{
    return tsr_validation_json(out, user);
}

/* The quantity that is drawn: of the most figures that are predicted; NULL if none is. */
const char *tsr_validation_drawn(const struct tsr_validation *v)
{
    const char *quantities[MAX_QUANTITIES], *best = NULL;
    size_t n = list_quantities(v, quantities, MAX_QUANTITIES), most = 0;
    for (size_t i = 0; i < n; i++) {
        size_t count = 0;
        for (size_t k = 0; k < v->n_points; k++)
            count += v->points[k].counts && v->points[k].status == TSR_POINT_PREDICTED &&
                     !v->points[k].beside && !strcmp(v->points[k].quantity, quantities[i]);
        best = count > most ? quantities[i] : best;
        most = count > most ? count : most;
    }
    return best;
}

/* What the picture says in its head: the table, and the errors of the quantity. */
static tsr_status write_frame(FILE *out, const void *user)
{
    const struct tsr_validation *v = user;
    const char *slash = strrchr(v->table->csv.path, '/'), *unit = "";
    struct tsr_point_class which = {.quantity = tsr_validation_drawn(v)};
    struct tsr_error_stats s;
    fputs("quantity,unit,figures,median,p90,max,table\n", out);
    if (!which.quantity)
        return TSR_OK;
    TSR_TRY(tsr_error_stats_of(v, &which, &s));
    for (size_t k = 0; k < v->n_points; k++)
        if (!strcmp(v->points[k].quantity, which.quantity))
            unit = v->points[k].unit;
    tsr__put_plain(out, which.quantity);
    fputc(',', out);
    tsr__put_plain(out, unit);
    fprintf(out, ",%zu,%.6g,%.6g,%.6g,", s.n, s.median, s.p90, s.max);
    tsr__put_plain(out, slash ? slash + 1 : v->table->csv.path);
    fputc('\n', out);
    return TSR_OK;
}

tsr_status tsr_validation_write(const char *dir, const struct tsr_validation *v)
{
    static const struct tsr_named_write files[] = {{"validate.csv", write_csv},
                                                   {"validate-frame.csv", write_frame},
                                                   {"summary.json", write_json}};
    TSR_TRY(tsr_write_each(dir, files, sizeof files / sizeof *files, v));
    TSR_TRY(tsr_validation_page(dir, v));
    return tsr_validation_drawn(v) ? tsr_report_picture(dir, "validate") : TSR_OK;
}
