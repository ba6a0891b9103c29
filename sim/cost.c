/* cost.c: the kernel cost model. A kernel takes max(arithmetic, memory) plus a start-up; rates come
 * from the device file times an efficiency of the table below. Nothing is fitted to end-to-end
 * runs. */
#include "cost.h"

#include <stddef.h>

/* How a kind of kernel uses the card. */
struct kind_row {
    double memory;  /* share of nominal memory bandwidth */
    double start_s; /* start-up and tail, seconds */
};

/* Sources. N: published norms_h200.csv (NVIDIA/cudnn-frontend, commit 3929da2e), eager PyTorch
 * rows: median of achieved over 4.8 TB/s with 2 us start-up taken off. G: published gemm.csv
 * (sm_90 table of XLA's cost model): least squares over its 375 bf16 rows, median error 5 %.
 * A: assumption, between the best streaming kernel of norms_h200.csv (0.79 to 0.87 of nominal) and
 * eager reductions; to be calibrated on a card. Start-up other than G: N, 8192 x 128 takes 3 us of
 * which 1 us is traffic. */
static const struct kind_row kinds[TSR_N_OP_KINDS] = {
    [TSR_OP_GEMM] = {0.91, 5.1e-6},          /* G */
    [TSR_OP_ATTENTION] = {0.80, 5.0e-6},     /* A */
    [TSR_OP_ATTENTION_BWD] = {0.80, 5.0e-6}, /* A */
    [TSR_OP_NORM] = {0.62, 2.0e-6},          /* N */
    [TSR_OP_NORM_BWD] = {0.33, 2.0e-6},      /* N */
    [TSR_OP_SOFTMAX] = {0.75, 2.0e-6},       /* A */
    [TSR_OP_POINTWISE] = {0.85, 2.0e-6},     /* A */
    [TSR_OP_REDUCTION] = {0.75, 2.0e-6},     /* A */
    [TSR_OP_EMBEDDING] = {0.75, 2.0e-6},     /* A */
    [TSR_OP_EMBEDDING_BWD] = {0.40, 4.0e-6}, /* A: sorts indices, then sums rows */
    [TSR_OP_LOSS] = {0.75, 2.0e-6},          /* A */
    [TSR_OP_CHUNK_CAT] = {0.75, 2.0e-6},     /* A */
    [TSR_OP_SPLIT_COPY] = {0.75, 2.0e-6},    /* A */
    [TSR_OP_OPTIMIZER] = {0.80, 2.0e-6},     /* A */
    [TSR_OP_USER] = {0.75, 2.0e-6},          /* A */
};

/* Device copies and fills (assumption A). */
static const struct kind_row copy_row = {0.85, 2.0e-6};

/* Share of the dense peak that a large matrix product reaches where the device file has no
 * measured value. Source: achievable over peak of the five cards that have one, 0.73 to 0.87. */
static const double MATMUL_SHARE = 0.80;
/* Arithmetic outside matrix products runs on the fp32 units, at about half of their peak
 * (assumption; memory decides these kernels). */
static const double VECTOR_SHARE = 0.50;
/* fp32 attention has no FlashAttention kernel: share of the fp32 peak (assumption). */
static const double FP32_ATTENTION_SHARE = 0.40;
/* One host thread streaming through memory, bytes/s (assumption). */
static const double HOST_BYTES_PER_S = 20e9;

/* A tile of the output and the share of the rate that a tile of this size reaches when its wave is
 * full. Source G. */
struct tile {
    uint32_t m, n;
    double share;
};
static const struct tile tiles[] = {
    {128, 256, 1.00}, {256, 128, 1.00}, {128, 128, 0.90}, {64, 256, 0.90},
    {256, 64, 0.90},  {64, 128, 0.95},  {128, 64, 0.95},  {64, 64, 0.60},
};
/* Prologue and epilogue of a tile, as columns of k. Source G. */
static const double TILE_EXTRA_K = 113.0;

static tsr_status unknown(const struct tsr_gpu *gpu, const char *key, const struct tsr_work *work)
{
    return tsr_fail(TSR_ECONFIG,
                    "%s: key \"%s\": found null (unknown), allowed a number: kernel %s needs it",
                    gpu->path, key, work && work->name ? work->name : "copy");
}

static double memory_rate(const struct tsr_gpu *gpu, const struct kind_row *row)
{
    return gpu->memory_bw * row->memory * gpu->calibration.value[TSR_CAL_MEMORY_SUSTAINED];
}

tsr_status tsr__cost_memory(const struct tsr_gpu *gpu, double bytes, struct tsr__cost *out)
{
    if (gpu->memory_bw <= 0.0)
        return unknown(gpu, "memory.bandwidth_bytes_per_s", NULL);
    out->body_s = bytes / memory_rate(gpu, &copy_row);
    out->start_s = copy_row.start_s;
    return TSR_OK;
}

double tsr__cost_host(double bytes)
{
    return bytes / HOST_BYTES_PER_S;
}

/* Dense peak for matrix products of `dtype`. fp32 means fp32: PyTorch leaves tf32 off. */
static tsr_status matmul_peak(const struct tsr_gpu *gpu, const struct tsr_work *work, double *peak)
{
    static const struct {
        uint8_t dtype;
        int peak;
        const char *key;
    } rows[] = {
        {TSR_BF16, TSR_PEAK_BF16, "peak_dense_flop_per_s.bf16"},
        {TSR_F16, TSR_PEAK_FP16, "peak_dense_flop_per_s.fp16"},
        {TSR_F32, TSR_PEAK_FP32, "peak_dense_flop_per_s.fp32"},
        {TSR_F64, TSR_PEAK_FP64, "peak_dense_flop_per_s.fp64"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].dtype != work->dtype)
            continue;
        *peak = gpu->peak_flops[rows[i].peak];
        return *peak > 0.0 ? TSR_OK : unknown(gpu, rows[i].key, work);
    }
    return tsr_fail(TSR_EUNSUPPORTED, "kernel %s: no rate for arithmetic in %s",
                    work->name ? work->name : "?", tsr_dtype_name((tsr_dtype)work->dtype));
}

/* Achieved over dense peak of a large matrix product. */
static double matmul_share(const struct tsr_gpu *gpu, uint8_t dtype)
{
    double peak = gpu->peak_flops[TSR_PEAK_BF16];
    bool tensor = dtype == TSR_BF16 || dtype == TSR_F16;
    return tensor && gpu->achievable_bf16 > 0.0 && peak > 0.0 ? gpu->achievable_bf16 / peak
                                                              : MATMUL_SHARE;
}

/* Time of the best tiling over the time at full rate: whole waves of tiles on the SMs. */
static double wave_factor(const struct tsr_gpu *gpu, const uint64_t *dims)
{
    double m = (double)dims[0], n = (double)dims[1], k = (double)dims[2];
    uint64_t batch = dims[3] ? dims[3] : 1;
    double best = 0.0;
    if (!gpu->sm_count || !dims[0] || !dims[1] || !dims[2])
        return 1.0;
    double ideal = m * n * k * (double)batch / gpu->sm_count;
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        double n_tiles = (double)tsr_ceil_div(dims[0], tiles[i].m) *
                         (double)tsr_ceil_div(dims[1], tiles[i].n) * (double)batch;
        double waves = n_tiles / gpu->sm_count;
        double whole = (double)(uint64_t)waves;
        waves = whole < waves ? whole + 1.0 : whole;
        double time = waves * tiles[i].m * tiles[i].n * (k + TILE_EXTRA_K) / tiles[i].share;
        if (best <= 0.0 || time < best)
            best = time;
    }
    return best > ideal ? best / ideal : 1.0;
}

static tsr_status gemm_seconds(const struct tsr_gpu *gpu, const struct tsr_work *work, double *out)
{
    double peak;
    TSR_TRY(matmul_peak(gpu, work, &peak));
    *out = work->flops / (peak * matmul_share(gpu, work->dtype)) * wave_factor(gpu, work->dims) /
           gpu->calibration.value[TSR_CAL_MATMUL_SUSTAINED];
    return TSR_OK;
}

static tsr_status attention_seconds(const struct tsr_gpu *gpu, const struct tsr_work *work,
                                    double *out)
{
    double peak;
    TSR_TRY(matmul_peak(gpu, work, &peak));
    bool half = work->dtype == TSR_BF16 || work->dtype == TSR_F16;
    double share = half ? tsr__attention_share(gpu->architecture, work->op == TSR_OP_ATTENTION_BWD,
                                               work->causal, work->dims[5], work->dims[4])
                        : FP32_ATTENTION_SHARE;
    *out = work->flops / (peak * share * gpu->calibration.value[TSR_CAL_ATTENTION_SUSTAINED]);
    return TSR_OK;
}

static tsr_status vector_seconds(const struct tsr_gpu *gpu, const struct tsr_work *work,
                                 double *out)
{
    double peak = gpu->peak_flops[TSR_PEAK_FP32];
    if (peak <= 0.0)
        return unknown(gpu, "peak_dense_flop_per_s.fp32", work);
    *out = work->flops / (peak * VECTOR_SHARE);
    return TSR_OK;
}

tsr_status tsr__cost_kernel(const struct tsr_gpu *gpu, const struct tsr_work *work,
                            struct tsr__cost *out)
{
    double arithmetic = 0.0, memory = 0.0;
    double bytes = (double)work->bytes_read + (double)work->bytes_written;
    TSR_CHECK(work->op < TSR_N_OP_KINDS);
    const struct kind_row *row = &kinds[work->op];
    if (work->flops > 0.0 && work->op == TSR_OP_GEMM)
        TSR_TRY(gemm_seconds(gpu, work, &arithmetic));
    else if (work->flops > 0.0 &&
             (work->op == TSR_OP_ATTENTION || work->op == TSR_OP_ATTENTION_BWD))
        TSR_TRY(attention_seconds(gpu, work, &arithmetic));
    else if (work->flops > 0.0)
        TSR_TRY(vector_seconds(gpu, work, &arithmetic));
    if (bytes > 0.0 && gpu->memory_bw <= 0.0)
        return unknown(gpu, "memory.bandwidth_bytes_per_s", work);
    if (bytes > 0.0)
        memory = bytes / memory_rate(gpu, row);
    out->body_s = arithmetic > memory ? arithmetic : memory;
    out->start_s = row->start_s;
    return TSR_OK;
}

tsr_status tsr_cost_kernel(const struct tsr_gpu *gpu, const struct tsr_work *work, double *seconds)
{
    struct tsr__cost cost;
    *seconds = 0.0;
    TSR_TRY(tsr__cost_kernel(gpu, work, &cost));
    *seconds = cost.body_s + cost.start_s;
    return TSR_OK;
}
