/* kernels_cmd.c: `tessera kernels`: measured kernels, rows of published tables, against the cost
 * model. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/cli/calibrate/kernel_cases.h"
#include "experiments/study/base/csv.h"
#include "experiments/study/base/paths.h"
#include "experiments/study/validate/validate.h"
#include "sim/base/quantile.h"
#include "sim/sim.h"

/* ---- the comparison -------------------------------------------------------------------------- */

static const char *const formats[] = {"md", "csv", "json", NULL};

enum { MAX_DEVICES = 8 };

/* Two figures of one measurement: rounded differently, or one the mean of a pair. */
static const double SAME_FIGURE = 0.02;

/* Device files, each read once. */
struct devices {
    const char *folder_of; /* a file: names are looked up beside it */
    struct tsr_kernel_store kernels;
    size_t n;
    struct {
        const char *name;
        struct tsr_gpu gpu;
    } items[MAX_DEVICES];
};

struct point {
    int line;
    char name[96];
    const char *device, *reason;
    double measured_s, predicted_s, error; /* error: of the prediction, with its sign */
    bool in_table;                         /* the tables have this kernel, and this figure of it */
};

struct points {
    size_t n, cap;
    struct point *items;
};

static tsr_status find_device(struct devices *devices, const char *name, const struct tsr_gpu **out)
{
    struct tsr_yaml_node at = {.file = devices->folder_of};
    char path[TSR_FILE_BYTES];
    for (size_t i = 0; i < devices->n; i++)
        if (!strcmp(devices->items[i].name, name)) {
            *out = &devices->items[i].gpu;
            return TSR_OK;
        }
    TSR_CHECK(devices->n < MAX_DEVICES);
    TSR_TRY(tsr_find_gpu(name, &at, devices->folder_of, path));
    TSR_TRY(tsr_gpu_load(path, tsr_cluster_folders(&(struct tsr_data_folders){.beside = ""}),
                         &devices->kernels, &devices->items[devices->n].gpu));
    /* tables are short runs */
    devices->items[devices->n].gpu.calibration = tsr_calibration_default();
    devices->items[devices->n].name = name;
    *out = &devices->items[devices->n++].gpu;
    return TSR_OK;
}

static tsr_status time_of(const struct tsr_gpu *gpu, const struct tsr_kernel_case *c, double *out)
{
    *out = 0.0;
    for (size_t i = 0; i < c->n_work; i++) {
        double seconds = 0.0;
        TSR_TRY(tsr_cost_kernel(gpu, &c->choice, &c->work[i], &seconds));
        *out += seconds;
    }
    return TSR_OK;
}

/* The time of a case; with `leave_out`, of tables that do not have its own points. A table may have
 * the same kernel from another measurement: then the case is none of its points. */
static tsr_status predict(const struct tsr_gpu *gpu, const struct tsr_kernel_case *c,
                          bool leave_out, struct point *point)
{
    struct tsr_kernels *tables = malloc(sizeof *tables);
    struct tsr_gpu without = *gpu;
    bool known = c->n_work > 0;
    if (!tables)
        return tsr_no_memory(NULL);
    *tables = *tsr_gpu_kernels(gpu);
    without.kernels = tables;
    for (size_t i = 0; i < c->n_work; i++)
        known = tsr_kernels_forget(tables, &c->choice, &c->work[i]) && known;
    tsr_status status = time_of(gpu, c, &point->predicted_s);
    point->in_table =
        known && c->measured_s > 0.0 && fabs(log(point->predicted_s / c->measured_s)) < SAME_FIGURE;
    if (status == TSR_OK && leave_out && point->in_table)
        status = time_of(&without, c, &point->predicted_s);
    free(tables);
    return status;
}

static tsr_status add(struct devices *devices, int line, const struct tsr_kernel_case *c,
                      bool leave_out, struct points *points)
{
    struct point point = {
        .line = line, .device = c->device, .reason = c->reason, .measured_s = c->measured_s};
    const struct tsr_gpu *gpu;
    memcpy(point.name, c->name, sizeof point.name);
    if (!c->reason) {
        TSR_TRY(find_device(devices, c->device, &gpu));
        TSR_TRY(predict(gpu, c, leave_out, &point));
        if (c->measured_s > 0.0)
            point.error = point.predicted_s / c->measured_s - 1.0;
    }
    return TSR_PUSH(points->items, points->n, points->cap, point) ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status gather(const struct tsr_csv *csv, bool leave_out, struct points *points)
{
    enum tsr_kernel_table table;
    struct devices *devices = calloc(1, sizeof *devices);
    if (!devices)
        return tsr_no_memory(NULL);
    tsr_status status;
    devices->folder_of = csv->path;
    TSR_GOTO(done, tsr_kernel_table_of(csv, &table));
    for (size_t i = 0; i < csv->n_rows; i++) {
        struct tsr_kernel_case cases[TSR_KERNEL_CASES];
        size_t n = 0;
        TSR_GOTO(done, tsr_kernel_cases(csv, table, &csv->rows[i], cases, &n));
        for (size_t k = 0; k < n; k++)
            TSR_GOTO(done, add(devices, csv->rows[i].line, &cases[k], leave_out, points));
    }

done:
    tsr_kernel_store_fini(&devices->kernels);
    free(devices);
    return status;
}

/* ---- summary --------------------------------------------------------------------------------- */

struct summary {
    size_t n, not_modelled, unmeasured;
    double median, p90, max, bias;
};

/* Of the points that are in the tables, or of those that are not. */
static tsr_status summarize(const struct points *points, bool in_table, struct summary *out)
{
    double *sizes = calloc(2 * points->n + 1, sizeof *sizes);
    double *signs = sizes + points->n;
    *out = (struct summary){0};
    if (!sizes)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->items[i];
        out->not_modelled += p->reason && !in_table;
        out->unmeasured += !p->reason && p->measured_s <= 0.0 && p->in_table == in_table;
        if (p->reason || p->measured_s <= 0.0 || p->in_table != in_table)
            continue;
        sizes[out->n] = fabs(p->error);
        signs[out->n++] = p->error;
    }
    tsr_sort_ascending(sizes, out->n);
    tsr_sort_ascending(signs, out->n);
    out->median = tsr_quantile(sizes, out->n, 0.5);
    out->p90 = tsr_quantile(sizes, out->n, 0.9);
    out->max = tsr_quantile(sizes, out->n, 1.0);
    out->bias = tsr_quantile(signs, out->n, 0.5);
    free(sizes);
    return TSR_OK;
}

static json_t *number_or_null(double value, bool known)
{
    return known && !isnan(value) ? json_real(value) : json_null();
}

static json_t *summary_json(const struct summary *s)
{
    bool any = s->n > 0;
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "points", (json_int_t)s->n,
                     "not_modelled", (json_int_t)s->not_modelled, "without_figure",
                     (json_int_t)s->unmeasured, "median", number_or_null(s->median, any), "p90",
                     number_or_null(s->p90, any), "max", number_or_null(s->max, any), "bias",
                     number_or_null(s->bias, any));
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_csv(const struct points *points)
{
    printf("line,kernel,device,status,predicted_us,measured_us,error,in_table\n");
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->items[i];
        bool known = !p->reason && p->measured_s > 0.0;
        printf("%d,\"%s\",%s,%s,", p->line, p->name, p->device ? p->device : "",
               p->reason ? "not_modelled" : "predicted");
        if (!p->reason)
            printf("%.6g", p->predicted_s * 1e6);
        printf(",");
        if (p->measured_s > 0.0)
            printf("%.6g", p->measured_s * 1e6);
        printf(",");
        if (known)
            printf("%.5f", p->error);
        printf(",%s\n", p->in_table ? "yes" : "no");
    }
}

static tsr_status print_json(const struct points *points, const struct summary s[2])
{
    json_t *rows = json_array();
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->items[i];
        bool measured = p->measured_s > 0.0;
        json_array_append_new(
            rows,
            json_pack("{s:i, s:s, s:o, s:s, s:o, s:o, s:o, s:b, s:o}", "line", p->line, "kernel",
                      p->name, "device", p->device ? json_string(p->device) : json_null(), "status",
                      p->reason ? "not_modelled" : "predicted", "predicted_us",
                      number_or_null(p->predicted_s * 1e6, !p->reason), "measured_us",
                      number_or_null(p->measured_s * 1e6, measured), "error",
                      number_or_null(p->error, !p->reason && measured), "in_table", p->in_table,
                      "reason", p->reason ? json_string(p->reason) : json_null()));
    }
    json_t *all = json_pack("{s:o, s:{s:o, s:o}}", "rows", rows, "summary", "in_table",
                            summary_json(&s[1]), "other", summary_json(&s[0]));
    char *text = json_dumps(all, JSON_INDENT(1));
    json_decref(all);
    if (!text)
        return tsr_no_memory(NULL);
    puts(text);
    free(text);
    return TSR_OK;
}

static void print_md(FILE *out, const struct points *points, const struct summary s[2],
                     bool leave_out)
{
    static const char *const names[2] = {"points that no table has", "points of the tables"};
    fprintf(out, "| line | kernel | device | predicted us | measured us | error |\n"
                 "|---:|---|---|---:|---:|---:|\n");
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->items[i];
        if (p->reason)
            fprintf(out, "| %d | %s | | not modelled: %s | | |\n", p->line, p->name, p->reason);
        else if (p->measured_s <= 0.0)
            fprintf(out, "| %d | %s | %s | %.4g | | |\n", p->line, p->name, p->device,
                    p->predicted_s * 1e6);
        else
            fprintf(out, "| %d | %s | %s | %.4g | %.4g | %+.1f %% |\n", p->line, p->name, p->device,
                    p->predicted_s * 1e6, p->measured_s * 1e6, p->error * 100.0);
    }
    fprintf(out, "\n");
    for (int i = 1; i >= 0; i--)
        if (s[i].n)
            fprintf(out,
                    "%s%s: %zu, error median %.1f %%, p90 %.1f %%, largest %.1f %%, median with "
                    "sign %+.1f %%\n",
                    names[i], i && leave_out ? ", each left out when it is predicted" : "", s[i].n,
                    s[i].median * 100.0, s[i].p90 * 100.0, s[i].max * 100.0, s[i].bias * 100.0);
    if (s[0].not_modelled)
        fprintf(out, "not modelled: %zu\n", s[0].not_modelled);
}

static tsr_status print(const struct tsr_args *args, const struct points *points)
{
    struct summary s[2];
    TSR_TRY(summarize(points, false, &s[0]));
    TSR_TRY(summarize(points, true, &s[1]));
    if (!strcmp(args->format, "json"))
        return print_json(points, s);
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    if (!strcmp(args->format, "csv"))
        print_csv(points);
    else
        print_md(page.out, points, s, args->leave_one_out);
    return tsr_page_end(&page, TSR_OK);
}

tsr_status tsr_cmd_kernels(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_csv csv;
    struct points points = {0};
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    TSR_TRY(tsr_csv_load(args->file, &csv));
    tsr_status status = gather(&csv, args->leave_one_out, &points);
    if (status == TSR_OK)
        status = print(args, &points);
    free(points.items);
    tsr_csv_fini(&csv);
    return status;
}
