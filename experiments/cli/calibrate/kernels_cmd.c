/* kernels_cmd.c: `tessera kernels`: measured kernels, rows of published tables, against the cost
 * model. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/csv.h"
#include "experiments/study/base/paths.h"
#include "experiments/study/validate/validate.h"
#include "sim/base/quantile.h"
#include "sim/sim.h"

/* ---- rows of tables -------------------------------------------------------------------------- */

/* Those of gemm.csv, flash_attention.csv, norms_h200.csv and cross_entropy.csv, and of any table
 * with their columns, as work for the cost model. */

enum tsr_kernel_table {
    TSR_KERNELS_MATMUL,
    TSR_KERNELS_ATTENTION,
    TSR_KERNELS_NORMS,
    TSR_KERNELS_LOSS
};

/* One measured time of a row, and what took it. */
struct tsr_kernel_case {
    char name[96];           /* "bf16 1024x4096x512" */
    const char *device;      /* NAME of gpu-NAME.json; NULL: no such file */
    const char *reason;      /* why it is not modelled; NULL: it is */
    double measured_s;       /* 0: the row has no figure */
    struct tsr_work work[2]; /* they run one after the other */
    size_t n_work;
    struct tsr_kernel_choice choice;
};

enum { TSR_KERNEL_CASES = 2 }; /* of one row at most */

/* The published sweeps of attention keep batch x length and heads x head size. */
static const double SWEEP_TOKENS = 16384.0, SWEEP_WIDTH = 2048.0;

/* Which table it is, by its columns. Errors: TSR_ECONFIG with what is allowed. */
static tsr_status tsr_kernel_table_of(const struct tsr_csv *csv, enum tsr_kernel_table *out)
{
    static const struct {
        const char *columns[4];
        enum tsr_kernel_table table;
    } kinds[] = {{{"m", "n", "k", "tflops"}, TSR_KERNELS_MATMUL},
                 {{"kernel", "pass", "head_dim", "seq_len"}, TSR_KERNELS_ATTENTION},
                 {{"backend", "rows_N", "cols_C", "fwd_GBps"}, TSR_KERNELS_NORMS},
                 {{"rows", "vocab", "fwd_ms", "full_ms"}, TSR_KERNELS_LOSS}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t have = 0;
        for (size_t c = 0; c < 4; c++)
            have += tsr_csv_column(csv, kinds[i].columns[c]) < csv->n_columns;
        *out = kinds[i].table;
        if (have == 4)
            return TSR_OK;
    }
    return tsr_fail(
        TSR_ECONFIG,
        "%s: line 1: columns of no known table of kernels; allowed: m, n, k, tflops; "
        "kernel, pass, head_dim, seq_len; backend, rows_N, cols_C, fwd_GBps; rows, vocab, "
        "fwd_ms, full_ms",
        csv->path);
}

/* The device file of a card as tables name it; the first word that fits. */
static void find_device_column(const char *gpu, struct tsr_kernel_case *out)
{
    static const struct {
        const char *word, *device;
    } cards[] = {{"GH200", NULL},      {"sm_90", "h100-sxm5-80g"}, {"H100", "h100-sxm5-80g"},
                 {"H200", "h200-sxm"}, {"A100", "a100-sxm4-80g"},  {"B200", "b200-sxm"}};
    out->reason = "no device file for this card";
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++)
        if (strstr(gpu, cards[i].word)) {
            out->device = cards[i].device;
            out->reason = cards[i].device ? NULL : out->reason;
            return;
        }
}

static tsr_status bad_cell(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                           const char *column, const char *allowed)
{
    return tsr_fail(TSR_ECONFIG, "%s: line %d: column %s: found \"%s\"; allowed: %s", csv->path,
                    row->line, column, tsr_csv_cell(csv, row, column), allowed);
}

/* A size from 1; an empty cell is `otherwise` (0: refused). */
static tsr_status read_size(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                            const char *column, double otherwise, uint64_t *out)
{
    double value = 0.0;
    bool found = false;
    TSR_TRY(tsr_csv_number(csv, row, column, &value, &found));
    if (!found)
        value = otherwise;
    if (!(value >= 1.0 && value <= 1e9))
        return bad_cell(csv, row, column, "a number from 1 to 1e9");
    *out = (uint64_t)value;
    return TSR_OK;
}

/* A rate; a cell that says "inf" or 0 has none. */
static tsr_status read_rate(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                            const char *column, double *out)
{
    bool found = false;
    *out = 0.0;
    if (!strcmp(tsr_csv_cell(csv, row, column), "inf"))
        return TSR_OK;
    TSR_TRY(tsr_csv_number(csv, row, column, out, &found));
    return *out >= 0.0 ? TSR_OK : bad_cell(csv, row, column, "a number from 0");
}

/* ---- matrix products ------------------------------------------------------------------------- */

static tsr_status matmul_case(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                              struct tsr_kernel_case *out)
{
    uint64_t m, n, k, batch;
    double tflops;
    const char *dtype = tsr_csv_cell(csv, row, "dtype");
    bool f32 = !strcmp(dtype, "f32");
    TSR_TRY(read_size(csv, row, "m", 0.0, &m));
    TSR_TRY(read_size(csv, row, "n", 0.0, &n));
    TSR_TRY(read_size(csv, row, "k", 0.0, &k));
    TSR_TRY(read_size(csv, row, "batch", 1.0, &batch));
    TSR_TRY(read_rate(csv, row, "tflops", &tflops));
    find_device_column(tsr_csv_cell(csv, row, "gpu"), out);
    bool f8 = !strcmp(dtype, "fp8");
    if (!f32 && !f8 && !strstr(dtype, "bf16"))
        out->reason = "products in this dtype have no kernel here";
    /* XLA computes f32 products in TF32 unless told otherwise; its rates are above the fp32 peak */
    out->choice.tf32 = f32;
    tsr_dtype type = f32 ? TSR_F32 : f8 ? TSR_F8 : TSR_BF16;
    uint64_t size = tsr_dtype_bytes(type);
    double flops = 2.0 * (double)m * (double)n * (double)k * (double)batch;
    out->work[0] = (struct tsr_work){.op = TSR_OP_GEMM,
                                     .dtype = (uint8_t)type,
                                     .name = "mm",
                                     .flops = flops,
                                     .bytes_read = size * batch * (m * k + k * n),
                                     .bytes_written = (f8 ? 2 : size) * batch * m * n,
                                     .dims = {m, n, k, batch}};
    out->n_work = 1;
    out->measured_s = tflops > 0.0 ? flops / (tflops * 1e12) : 0.0;
    snprintf(out->name, sizeof out->name, "%s %llux%llux%llu batch %llu", f32 ? "tf32" : dtype,
             (unsigned long long)m, (unsigned long long)n, (unsigned long long)k,
             (unsigned long long)batch);
    return TSR_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

static bool attention_kernel(const char *name, unsigned *out)
{
    static const struct {
        const char *begins;
        enum tsr_attention_kernel kernel;
    } kernels[] = {{"FlashAttention-1 Triton", TSR_ATTN_FLASH1_TRITON},
                   {"FlashAttention-1", TSR_ATTN_FLASH1},
                   {"FlashAttention-2", TSR_ATTN_FLASH2},
                   {"FlashAttention-3", TSR_ATTN_FLASH3},
                   {"cuDNN", TSR_ATTN_CUDNN},
                   {"PyTorch standard", TSR_ATTN_MATH}};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (!strncmp(name, kernels[i].begins, strlen(kernels[i].begins))) {
            *out = kernels[i].kernel;
            return true;
        }
    return false;
}

/* Forward, backward, or both, of `flops` in the forward. */
static void attention_work(struct tsr_kernel_case *out, const char *pass, bool causal,
                           const uint64_t dims[6])
{
    bool both = !strcmp(pass, "fwd+bwd"), backward = !strcmp(pass, "bwd");
    double flops = 4.0 * (double)dims[0] * (double)dims[1] * (double)dims[3] * (double)dims[4] *
                   (double)dims[5] * (causal ? 0.5 : 1.0);
    struct tsr_work work = {.op = TSR_OP_ATTENTION,
                            .dtype = TSR_BF16,
                            .causal = causal,
                            .name = "attention",
                            .flops = flops};
    memcpy(work.dims, dims, sizeof work.dims);
    if (!backward)
        out->work[out->n_work++] = work;
    work.op = TSR_OP_ATTENTION_BWD;
    work.flops = 2.5 * flops;
    if (backward || both)
        out->work[out->n_work++] = work;
}

static tsr_status attention_case(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                                 struct tsr_kernel_case *out)
{
    uint64_t batch, heads, kv_heads, head, seq;
    double tflops, flops = 0.0;
    const char *kernel = tsr_csv_cell(csv, row, "kernel"), *pass = tsr_csv_cell(csv, row, "pass");
    const char *note = tsr_csv_cell(csv, row, "note");
    bool causal = !strcmp(tsr_csv_cell(csv, row, "causal"), "yes");
    TSR_TRY(read_size(csv, row, "head_dim", 0.0, &head));
    TSR_TRY(read_size(csv, row, "seq_len", 0.0, &seq));
    TSR_TRY(read_size(csv, row, "batch", ceil(SWEEP_TOKENS / (double)seq), &batch));
    TSR_TRY(read_size(csv, row, "n_q_heads", ceil(SWEEP_WIDTH / (double)head), &heads));
    TSR_TRY(read_size(csv, row, "n_kv_heads", (double)heads, &kv_heads));
    TSR_TRY(read_rate(csv, row, "tflops", &tflops));
    if (strcmp(pass, "fwd") && strcmp(pass, "bwd") && strcmp(pass, "fwd+bwd"))
        return bad_cell(csv, row, "pass", "fwd, bwd or fwd+bwd");
    find_device_column(tsr_csv_cell(csv, row, "gpu"), out);
    if (!attention_kernel(kernel, &out->choice.attention))
        out->reason = "no such attention kernel here";
    if (!strcmp(tsr_csv_cell(csv, row, "dtype"), "fp8"))
        out->reason = "fp8 attention is not modelled";
    if (strstr(note, "sliding window") && !strstr(note, "sliding window none"))
        out->reason = "a sliding window is not modelled";
    attention_work(out, pass, causal, (uint64_t[6]){batch, heads, kv_heads, seq, seq, head});
    for (size_t i = 0; i < out->n_work; i++)
        flops += out->work[i].flops;
    out->measured_s = tflops > 0.0 ? flops / (tflops * 1e12) : 0.0;
    snprintf(out->name, sizeof out->name, "%.40s %s%s head %llu seq %llu", kernel, pass,
             causal ? " causal" : "", (unsigned long long)head, (unsigned long long)seq);
    return TSR_OK;
}

/* ---- norms ----------------------------------------------------------------------------------- */

static tsr_status norm_case(const struct tsr_csv *csv, const struct tsr_csv_row *row, bool backward,
                            struct tsr_kernel_case *out)
{
    uint64_t rows, columns;
    double gbps;
    const char *backend = tsr_csv_cell(csv, row, "backend");
    TSR_TRY(read_size(csv, row, "rows_N", 0.0, &rows));
    TSR_TRY(read_size(csv, row, "cols_C", 0.0, &columns));
    TSR_TRY(read_rate(csv, row, backward ? "bwd_GBps" : "fwd_GBps", &gbps));
    find_device_column(tsr_csv_cell(csv, row, "gpu"), out);
    if (!strcmp(backend, "pytorch"))
        out->choice.norm = TSR_NORMS_EAGER;
    else if (!strcmp(backend, "torch_compile"))
        out->choice.norm = TSR_NORMS_COMPILED;
    else if (!strcmp(backend, "cudnn"))
        out->choice.norm = TSR_NORMS_CUDNN;
    else
        out->reason = "no such backend here";
    uint64_t bytes = 2 * rows * columns;
    out->work[0] = (struct tsr_work){.op = backward ? TSR_OP_NORM_BWD : TSR_OP_NORM,
                                     .dtype = TSR_BF16,
                                     .name = "norm",
                                     .bytes_read = backward ? 2 * bytes : bytes,
                                     .bytes_written = bytes,
                                     .dims = {rows, columns}};
    out->n_work = 1;
    out->measured_s = gbps > 0.0 ? (backward ? 3.0 : 2.0) * (double)bytes / (gbps * 1e9) : 0.0;
    snprintf(out->name, sizeof out->name, "%s %s %s %llux%llu", backend,
             tsr_csv_cell(csv, row, "norm_type"), backward ? "bwd" : "fwd",
             (unsigned long long)rows, (unsigned long long)columns);
    return TSR_OK;
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* Cross entropy of eager PyTorch in fp32: log-softmax and nll_loss, or their gradients, with the
 * bytes of the engine's kernels. */
static tsr_status loss_case(const struct tsr_csv *csv, const struct tsr_csv_row *row, bool backward,
                            struct tsr_kernel_case *out)
{
    uint64_t rows, vocab;
    double forward_ms, full_ms;
    TSR_TRY(read_size(csv, row, "rows", 0.0, &rows));
    TSR_TRY(read_size(csv, row, "vocab", 0.0, &vocab));
    TSR_TRY(read_rate(csv, row, "fwd_ms", &forward_ms));
    TSR_TRY(read_rate(csv, row, "full_ms", &full_ms));
    find_device_column(tsr_csv_cell(csv, row, "gpu"), out);
    uint64_t bytes = 4 * rows * vocab;
    struct tsr_work work = {.op = TSR_OP_LOSS, .dtype = TSR_F32, .dims = {rows, vocab}};
    out->work[0] = out->work[1] = work;
    out->work[0].name = backward ? "nll_loss_backward" : "log_softmax";
    out->work[0].bytes_read = backward ? 0 : bytes;
    out->work[0].bytes_written = bytes;
    out->work[1].name = backward ? "log_softmax_backward" : "nll_loss";
    out->work[1].bytes_read = backward ? 2 * bytes : bytes;
    out->work[1].bytes_written = backward ? bytes : 0;
    out->n_work = 2;
    out->measured_s = (backward ? full_ms - forward_ms : forward_ms) * 1e-3;
    snprintf(out->name, sizeof out->name, "cross entropy %s %llux%llu", backward ? "bwd" : "fwd",
             (unsigned long long)rows, (unsigned long long)vocab);
    return TSR_OK;
}

/* Errors: TSR_ECONFIG with file, line and column. */
static tsr_status tsr_kernel_cases(const struct tsr_csv *csv, enum tsr_kernel_table table,
                                   const struct tsr_csv_row *row,
                                   struct tsr_kernel_case out[TSR_KERNEL_CASES], size_t *n)
{
    memset(out, 0, TSR_KERNEL_CASES * sizeof *out);
    *n = 1;
    if (table == TSR_KERNELS_MATMUL)
        return matmul_case(csv, row, out);
    if (table == TSR_KERNELS_ATTENTION)
        return attention_case(csv, row, out);
    *n = 2;
    tsr_status (*one)(const struct tsr_csv *, const struct tsr_csv_row *, bool,
                      struct tsr_kernel_case *) =
        table == TSR_KERNELS_NORMS ? norm_case : loss_case;
    TSR_TRY(one(csv, row, false, &out[0]));
    return one(csv, row, true, &out[1]);
}

/* ---- the comparison -------------------------------------------------------------------------- */

static const char *const formats[] = {"md", "csv", "json", NULL};

enum { MAX_DEVICES = 8 };

/* Two figures of one measurement: rounded differently, or one the mean of a pair. */
static const double SAME_FIGURE = 0.02;

/* Device files, each read once. */
struct devices {
    const char *folder_of; /* a file: names are looked up beside it */
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
    TSR_TRY(tsr_gpu_load(path, &devices->items[devices->n].gpu));
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
    struct tsr_gpu *without = malloc(sizeof *without);
    bool known = c->n_work > 0;
    if (!without)
        return tsr_no_memory(NULL);
    *without = *gpu;
    for (size_t i = 0; i < c->n_work; i++)
        known = tsr_kernels_forget(&without->kernels, &c->choice, &c->work[i]) && known;
    tsr_status status = time_of(gpu, c, &point->predicted_s);
    point->in_table =
        known && c->measured_s > 0.0 && fabs(log(point->predicted_s / c->measured_s)) < SAME_FIGURE;
    if (status == TSR_OK && leave_out && point->in_table)
        status = time_of(without, c, &point->predicted_s);
    free(without);
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

static void print_md(const struct points *points, const struct summary s[2], bool leave_out)
{
    static const char *const names[2] = {"points that no table has", "points of the tables"};
    printf("| line | kernel | device | predicted us | measured us | error |\n"
           "|---:|---|---|---:|---:|---:|\n");
    for (size_t i = 0; i < points->n; i++) {
        const struct point *p = &points->items[i];
        if (p->reason)
            printf("| %d | %s | | not modelled: %s | | |\n", p->line, p->name, p->reason);
        else if (p->measured_s <= 0.0)
            printf("| %d | %s | %s | %.4g | | |\n", p->line, p->name, p->device,
                   p->predicted_s * 1e6);
        else
            printf("| %d | %s | %s | %.4g | %.4g | %+.1f %% |\n", p->line, p->name, p->device,
                   p->predicted_s * 1e6, p->measured_s * 1e6, p->error * 100.0);
    }
    printf("\n");
    for (int i = 1; i >= 0; i--)
        if (s[i].n)
            printf("%s%s: %zu, error median %.1f %%, p90 %.1f %%, largest %.1f %%, median with "
                   "sign %+.1f %%\n",
                   names[i], i && leave_out ? ", each left out when it is predicted" : "", s[i].n,
                   s[i].median * 100.0, s[i].p90 * 100.0, s[i].max * 100.0, s[i].bias * 100.0);
    if (s[0].not_modelled)
        printf("not modelled: %zu\n", s[0].not_modelled);
}

static tsr_status print(const struct tsr_args *args, const struct points *points)
{
    struct summary s[2];
    TSR_TRY(summarize(points, false, &s[0]));
    TSR_TRY(summarize(points, true, &s[1]));
    if (!strcmp(args->format, "json"))
        return print_json(points, s);
    if (!strcmp(args->format, "csv"))
        print_csv(points);
    else
        print_md(points, s, args->leave_one_out);
    return TSR_OK;
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
