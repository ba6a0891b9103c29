/* kernel_cases.c: reads rows of the four tables: which kernel a row is about, its work and its
 * time. */
#include "experiments/cli/calibrate/kernel_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The published sweeps of attention keep batch x length and heads x head size. */
static const double SWEEP_TOKENS = 16384.0, SWEEP_WIDTH = 2048.0;

tsr_status tsr_kernel_table_of(const struct tsr_csv *csv, enum tsr_kernel_table *out)
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

tsr_status tsr_kernel_cases(const struct tsr_csv *csv, enum tsr_kernel_table table,
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
