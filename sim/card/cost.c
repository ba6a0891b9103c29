/* cost.c: the kernel cost model. A matrix product, an attention kernel and a norm take what tables
 * of measured kernels say (cost_matmul.c; the last sections); every other kernel takes
 * max(arithmetic, memory) plus a start-up. Tables are short runs on a cool card: the calibrated
 * numbers of the GPU type bring them to what a training step sustains. */
#include "sim/card/cost.h"

#include <math.h>
#include <stddef.h>

/* ---- norms ----------------------------------------------------------------------------------- */

/* Layer norms and RMS norms by backend.
 *
 * On the measured card a norm takes start_s + bytes / bytes_per_s, times a factor that is exact at
 * measured shapes (rows, columns) and between them the mean of all, weighted by the inverse fourth
 * power of the distance in octaves. On another card the part of the time that its bytes take at
 * the best bandwidth goes with the bandwidths, the rest (arithmetic, latency) with multiprocessors
 * times clock. */

/* Share of nominal bandwidth of the best norm in the tables: 4,176 of 4,800 GB/s. */
static const double BEST_SHARE = 0.87;

static double log_ratio_at(const struct tsr_norm_table *t, const struct tsr_work *work)
{
    double sum = 0.0, weights = 0.0;
    if (!work->dims[0] || !work->dims[1])
        return 0.0;
    for (uint32_t i = 0; i < t->n; i++) {
        double rows = log2((double)work->dims[0] / (double)t->rows[i]);
        double columns = log2((double)work->dims[1] / (double)t->columns[i]);
        double distance = rows * rows + columns * columns;
        if (distance < 1e-12)
            return (double)t->log_ratio[i];
        sum += (double)t->log_ratio[i] / (distance * distance);
        weights += 1.0 / (distance * distance);
    }
    return weights > 0.0 ? sum / weights : 0.0;
}

/* Multiprocessors times clock, of the measured card over this one; 1 where that is unknown. */
static double slower_by(const struct tsr_gpu *gpu, const struct tsr_card *card)
{
    double here = gpu->sm_count * gpu->clock_hz, there = card->sm_count * card->clock_hz;
    return here > 0.0 && there > 0.0 ? there / here : 1.0;
}

static const struct tsr_norm_table *find_table(const struct tsr_kernels *k, uint8_t kernel,
                                               bool backward)
{
    for (uint32_t i = 0; i < k->n_norms; i++)
        if (k->norms[i].kernel == kernel && k->norms[i].backward == backward)
            return &k->norms[i];
    return NULL;
}

/* A norm (forward or backward) that a table knows; false: none does. */
static bool tsr__cost_norm(const struct tsr_gpu *gpu, enum tsr_norm_kernel kernel,
                           const struct tsr_work *work, struct tsr__cost *out)
{
    bool fused = work->name && !strncmp(work->name, "fused", 5);
    if (kernel == TSR_NORMS_AUTO)
        kernel = fused || work->compiled ? TSR_NORMS_COMPILED : TSR_NORMS_EAGER;
    const struct tsr_norm_table *t =
        find_table(tsr_gpu_kernels(gpu), (uint8_t)kernel, work->op == TSR_OP_NORM_BWD);
    if (!t)
        return false;
    const struct tsr_card *card = &tsr_gpu_kernels(gpu)->files[t->card].card;
    double bytes = (double)work->bytes_read + (double)work->bytes_written;
    double stream_there = 1.0 / (card->memory_bw * BEST_SHARE);
    double stream_here = 1.0 / (gpu->memory_bw * BEST_SHARE);
    double rest = 1.0 / t->bytes_per_s - stream_there;
    double per_byte = stream_here + (rest > 0.0 ? rest * slower_by(gpu, card) : rest);
    double seconds = (t->start_s + bytes * per_byte) * exp(log_ratio_at(t, work));
    *out = tsr__cost_split(seconds, t->start_s, bytes / gpu->memory_bw);
    return true;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Rates of attention kernels, by kernel, direction, head size and length.
 *
 * Rates are those of kernels-*.json, interpolated by length; TFLOP/s with a
 * forward of 4*batch*heads*length^2*head size FLOP, half of it when causal, and a backward of 2.5
 * times that: the counts of tsr_work.flops. A kernel works on head sizes of 32, 64, 96, ... and
 * wastes what lies between; rates between 64 and 128 are interpolated. Measured lengths keep the
 * card full (32,768 elements of queries at a time); a launch with few blocks leaves
 * multiprocessors idle. */

/* Where a card has no table: causal FlashAttention-2 at 4,096 tokens on an H100, forward and
 * backward, over its peak. */
static const double PLAIN_FORWARD = 319.0 / 989.0, PLAIN_BACKWARD = 285.0 / 989.0;

/* Where a kernel does not tell its shape. */
static const double PLAIN_HEAD = 128.0;
static const uint64_t PLAIN_LENGTH = 4096;

/* Queries of one block of a kernel, and waves from which the last one no longer shows. */
static const double BLOCK = 128.0, MANY_WAVES = 7.0;

static const char *const names[TSR_N_ATTENTION_KERNELS] = {
    "auto", "flash1", "flash1_triton", "flash2", "flash3", "cudnn", "math"};

const char *tsr_attention_kernel_name(enum tsr_attention_kernel kernel)
{
    return kernel < TSR_N_ATTENTION_KERNELS ? names[kernel] : "?";
}

/* Overheads make the time per FLOP a + b/length: linear in 1/length between two measured lengths,
 * and beyond the ends by the last two. */
static double by_length(const struct tsr_attention_curve *c, uint64_t length)
{
    double x = (double)(length ? length : PLAIN_LENGTH);
    uint32_t i = 0;
    if (c->n == 1)
        return (double)c->flops[0];
    while (i + 2 < c->n && x >= (double)c->length[i + 1])
        i++;
    double low = 1.0 / (double)c->flops[i], high = 1.0 / (double)c->flops[i + 1];
    double from = 1.0 / (double)c->length[i], to = 1.0 / (double)c->length[i + 1];
    double inverse = low + (high - low) * (1.0 / x - from) / (to - from);
    double least = 0.5 * (low < high ? low : high); /* no end of a curve promises twice the rate */
    return 1.0 / (inverse > least ? inverse : least);
}

/* The curve of a kernel whose head size is nearest to `want` from below (or above); the first file
 * that has it wins. Full attention where there is no causal curve, and the other way round. */
static const struct tsr_attention_curve *find_curve(const struct tsr_kernels *k, uint8_t kernel,
                                                    bool backward, bool causal, double want,
                                                    bool above)
{
    const struct tsr_attention_curve *best = NULL;
    for (uint32_t i = 0; i < k->n_attention; i++) {
        const struct tsr_attention_curve *c = &k->attention[i];
        bool side = above ? c->head_size >= want : c->head_size <= want;
        if (c->kernel != kernel || c->backward != backward || c->causal != causal || !side)
            continue;
        if (!best || (above ? c->head_size < best->head_size : c->head_size > best->head_size))
            best = c;
    }
    return best;
}

/* Returns the rate of a curve on this card: that on the card of the curve, scaled by the ratio of
 * the peaks `peak` (bf16 or fp16; curves are of bf16, which fp16 equals). */
static double rate_of(const struct tsr_gpu *gpu, int peak, const struct tsr_attention_curve *c,
                      uint64_t length)
{
    const struct tsr_card *card = &tsr_gpu_kernels(gpu)->files[c->card].card;
    double rate = by_length(c, length);
    double here = gpu->peak_flops[peak], there = card->peak_flops[TSR_PEAK_BF16];
    return there > 0.0 ? rate * here / there : rate;
}

/* Between two head sizes; 0: no curve. */
static double rate_at(const struct tsr_gpu *gpu, int peak, uint8_t kernel, bool backward,
                      bool causal, double head, uint64_t length)
{
    const struct tsr_attention_curve *low =
        find_curve(tsr_gpu_kernels(gpu), kernel, backward, causal, head, false);
    const struct tsr_attention_curve *high =
        find_curve(tsr_gpu_kernels(gpu), kernel, backward, causal, head, true);
    if (!low && !high)
        return 0.0;
    if (!low) /* the same blocks with fewer columns */
        return rate_of(gpu, peak, high, length) * head / high->head_size;
    if (!high || high->head_size == low->head_size)
        return rate_of(gpu, peak, low, length);
    double part = log2(head / low->head_size) / log2((double)high->head_size / low->head_size);
    return exp((1.0 - part) * log(rate_of(gpu, peak, low, length)) +
               part * log(rate_of(gpu, peak, high, length)));
}

/* Kernels that exist for one architecture only are not scaled to another. */
static tsr_status check_kernel(const struct tsr_gpu *gpu, enum tsr_attention_kernel kernel)
{
    if (kernel != TSR_ATTN_FLASH3 || gpu->traits.has_flash3)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "attention_kernel: found flash3, allowed on %s (%s): auto, flash1, "
                    "flash1_triton, flash2, cudnn or math",
                    gpu->name, gpu->architecture);
}

/* The rate for any masking. Where only the other masking was measured, the ratio of the two is
 * flash2's. */
static double any_rate(const struct tsr_gpu *gpu, int peak, uint8_t kernel, bool backward,
                       bool causal, double head, uint64_t length)
{
    double rate = rate_at(gpu, peak, kernel, backward, causal, head, length);
    if (rate > 0.0)
        return rate;
    double here = rate_at(gpu, peak, TSR_ATTN_FLASH2, backward, causal, head, length);
    double there = rate_at(gpu, peak, TSR_ATTN_FLASH2, backward, !causal, head, length);
    rate = rate_at(gpu, peak, kernel, backward, !causal, head, length);
    return there > 0.0 ? rate * here / there : 0.0;
}

/* 1 when the card is full; more when a launch has few blocks. */
static double idle_factor(const struct tsr_gpu *gpu, const struct tsr_work *work)
{
    double blocks = (double)(work->dims[0] ? work->dims[0] : 1) *
                    (double)(work->dims[1] ? work->dims[1] : 1) *
                    ceil((double)(work->dims[3] ? work->dims[3] : 1) / BLOCK);
    double waves = gpu->sm_count ? blocks / gpu->sm_count : MANY_WAVES;
    if (waves >= MANY_WAVES)
        return 1.0;
    if (waves < 1.0)
        return 1.0 / waves;
    return 1.0 + (ceil(waves) - waves) / waves * (1.0 - waves / MANY_WAVES);
}

/* The kernel that the program names: flash, cuDNN's or efficient. The memory-efficient one
 * (xformers, Cutlass) has no table: it is as fast as FlashAttention-1 in the FlashAttention-2
 * paper, which finds both half as fast as its own (arXiv 2307.08691, section 4.1). */
static uint8_t own_kernel(const struct tsr_work *work)
{
    if (work->name && !strncmp(work->name, "efficient", 9))
        return TSR_ATTN_FLASH1;
    return work->name && !strncmp(work->name, "cudnn", 5) ? TSR_ATTN_CUDNN : TSR_ATTN_FLASH2;
}

tsr_status tsr__cost_attention(const struct tsr_gpu *gpu, enum tsr_attention_kernel kernel,
                               int peak, const struct tsr_work *work, double *seconds)
{
    bool backward = work->op == TSR_OP_ATTENTION_BWD;
    double head = work->dims[5] ? (double)work->dims[5] : PLAIN_HEAD,
           padded = ceil(head / 32.0) * 32.0;
    TSR_TRY(check_kernel(gpu, kernel));
    uint8_t want = kernel == TSR_ATTN_AUTO ? own_kernel(work) : (uint8_t)kernel;
    double rate = any_rate(gpu, peak, want, backward, work->causal, padded, work->dims[4]);
    if (rate <= 0.0 && tsr_gpu_kernels(gpu)->n_attention)
        return tsr_fail(TSR_ECONFIG,
                        "attention_kernel: found %s, allowed: a kernel that a table "
                        "of %s has",
                        names[want], gpu->path);
    if (rate <= 0.0)
        rate = gpu->peak_flops[peak] * (backward ? PLAIN_BACKWARD : PLAIN_FORWARD);
    *seconds = work->flops / rate * padded / head * idle_factor(gpu, work);
    return TSR_OK;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* How a kind of kernel uses the card. */
struct kind_row {
    double memory;  /* share of nominal memory bandwidth */
    double start_s; /* start-up and tail, seconds */
};

/* Sources. N: norms_h200.csv (NVIDIA/cudnn-frontend, commit 3929da2e), eager PyTorch rows: median
 * of achieved over 4.8 TB/s with 2 us start-up taken off; for cards without a table of norms.
 * A: assumption, between the best streaming kernel of norms_h200.csv (0.79 to 0.87 of nominal) and
 * eager reductions; to be calibrated on a card. Start-up: N, 8192 x 128 takes 3 us of which 1 us is
 * traffic. Matrix products: cost_matmul.c. */
static const struct kind_row kinds[TSR_N_OP_KINDS] = {
    [TSR_OP_GEMM] = {0.91, 5.3e-6},          [TSR_OP_ATTENTION] = {0.80, 5.0e-6}, /* A */
    [TSR_OP_ATTENTION_BWD] = {0.80, 5.0e-6},                                      /* A */
    [TSR_OP_NORM] = {0.62, 2.0e-6},                                               /* N */
    [TSR_OP_NORM_BWD] = {0.33, 2.0e-6},                                           /* N */
    [TSR_OP_SOFTMAX] = {0.75, 2.0e-6},                                            /* A */
    [TSR_OP_POINTWISE] = {0.85, 2.0e-6},                                          /* A */
    [TSR_OP_REDUCTION] = {0.75, 2.0e-6},                                          /* A */
    [TSR_OP_EMBEDDING] = {0.75, 2.0e-6},                                          /* A */
    [TSR_OP_EMBEDDING_BWD] = {0.40, 4.0e-6}, /* A: sorts indices, then sums rows */
    [TSR_OP_LOSS] = {0.75, 2.0e-6},          /* A */
    [TSR_OP_CHUNK_CAT] = {0.75, 2.0e-6},     /* A */
    [TSR_OP_SPLIT_COPY] = {0.75, 2.0e-6},    /* A */
    [TSR_OP_OPTIMIZER] = {0.80, 2.0e-6},     /* A */
    [TSR_OP_USER] = {0.75, 2.0e-6},          /* A */
    [TSR_OP_GENERIC] = {0.75, 2.0e-6},       /* A */
};

/* The loss of eager PyTorch: its log-softmax reads a long row three times. cross_entropy.csv
 * (linkedin/Liger-Kernel), A100 and H100, vocabularies from 32,768: bytes of the program's kernels
 * over time is 0.59 to 0.66 of nominal forward, 0.41 to 0.46 backward. */
static const struct kind_row eager_loss = {0.62, 2.0e-6}, eager_loss_backward = {0.44, 2.0e-6};

/* Device copies and fills (assumption A). */
static const struct kind_row copy_row = {0.85, 2.0e-6};

/* Arithmetic outside matrix products runs on the fp32 units, at about half of their peak
 * (assumption; memory decides these kernels). */
static const double VECTOR_SHARE = 0.50;
/* fp32 attention has no FlashAttention kernel: share of the fp32 peak (assumption). */
static const double FP32_ATTENTION_SHARE = 0.40;
/* One host thread streaming through memory, bytes/s (assumption). */
static const double HOST_BYTES_PER_S = 20e9;

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

/* Three segments of 1 GiB on an RTX 3070 (intel/llvm#8971, nsys): cudaMalloc 808 us, cudaFree
 * 2,086 us in the median (0.8 to 2.8 ms), less 100 us for the call. Other cards: assumed alike. */
static const double MALLOC_S_PER_GIB = 0.71e-3, FREE_S_PER_GIB = 1.99e-3;

double tsr__cost_segment(bool release, double bytes)
{
    return bytes / 1073741824.0 * (release ? FREE_S_PER_GIB : MALLOC_S_PER_GIB);
}

/* Peaks by the dtype of the arithmetic, with their keys in a device file. */
static const struct peak_row {
    uint8_t dtype;
    bool tf32;
    int peak; /* enum tsr_peak */
    const char *key;
} peak_rows[] = {
    {TSR_BF16, false, TSR_PEAK_BF16, "peak_dense_flop_per_s.bf16"},
    {TSR_F8, false, TSR_PEAK_FP8, "peak_dense_flop_per_s.fp8"},
    {TSR_F16, false, TSR_PEAK_FP16, "peak_dense_flop_per_s.fp16"},
    {TSR_F32, false, TSR_PEAK_FP32, "peak_dense_flop_per_s.fp32"},
    {TSR_F32, true, TSR_PEAK_TF32, "peak_dense_flop_per_s.tf32"},
    {TSR_F64, false, TSR_PEAK_FP64, "peak_dense_flop_per_s.fp64"},
};

static bool is_attention(const struct tsr_work *work)
{
    return work->op == TSR_OP_ATTENTION || work->op == TSR_OP_ATTENTION_BWD;
}

/* Returns the peak that the products of a kernel count against; NULL: none for its dtype. fp32
 * means fp32: PyTorch leaves tf32 off unless it is told otherwise, and attention has no kernel for
 * it. */
static const struct peak_row *peak_row(const struct tsr_kernel_choice *choice,
                                       const struct tsr_work *work)
{
    bool tf32 = choice->tf32 && work->dtype == TSR_F32 && !is_attention(work);
    for (size_t i = 0; i < sizeof peak_rows / sizeof peak_rows[0]; i++)
        if (peak_rows[i].dtype == work->dtype && peak_rows[i].tf32 == tf32)
            return &peak_rows[i];
    return NULL;
}

double tsr_work_peak(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                     const struct tsr_work *work)
{
    const struct peak_row *row = peak_row(choice, work);
    return row ? gpu->peak_flops[row->peak] : 0.0;
}

static tsr_status matmul_peak(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                              const struct tsr_work *work, int *peak)
{
    const struct peak_row *row = peak_row(choice, work);
    if (!row)
        return tsr_fail(TSR_EUNSUPPORTED, "kernel %s: no rate for arithmetic in %s",
                        work->name ? work->name : "?", tsr_dtype_name((tsr_dtype)work->dtype));
    *peak = row->peak;
    return gpu->peak_flops[row->peak] > 0.0 ? TSR_OK : unknown(gpu, row->key, work);
}

static tsr_status matmul(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                         const struct tsr_work *work, double bytes, struct tsr__cost *out)
{
    int peak;
    TSR_TRY(matmul_peak(gpu, choice, work, &peak));
    *out = tsr__cost_matmul(gpu, peak, work->dims, bytes);
    out->body_s /= gpu->calibration.value[TSR_CAL_MATMUL_SUSTAINED];
    return TSR_OK;
}

/* Arithmetic of attention without start-up, which measured rates include. */
static tsr_status attention_seconds(const struct tsr_gpu *gpu,
                                    const struct tsr_kernel_choice *choice,
                                    const struct tsr_work *work, double *out)
{
    int peak;
    TSR_TRY(matmul_peak(gpu, choice, work, &peak));
    if (work->dtype == TSR_BF16 || work->dtype == TSR_F16)
        TSR_TRY(tsr__cost_attention(gpu, (enum tsr_attention_kernel)choice->attention, peak, work,
                                    out));
    else
        *out = work->flops / (gpu->peak_flops[peak] * FP32_ATTENTION_SHARE);
    double start_s = kinds[work->op].start_s, least_s = work->flops / gpu->peak_flops[peak];
    bool triton = choice->attention == TSR_ATTN_FLASH1_TRITON;
    *out = tsr__cost_split(*out, start_s, least_s).body_s /
           gpu->calibration.value[triton ? TSR_CAL_TRITON_SUSTAINED : TSR_CAL_ATTENTION_SUSTAINED];
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

/* Share of the tensor cores' peak where no sweep of the card has a best product: that of an H100
 * (794.5 of 989 TFLOP/s, gpu-h100-sxm5-80g.json). */
static const double BEST_PRODUCT_SHARE = 0.80;

/* An operation that is described by its FLOP counts against the best matrix products of its dtype:
 * who gives figures of arithmetic on the fp32 units gives more of them. */
static tsr_status generic_seconds(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                                  const struct tsr_work *work, double *out)
{
    int peak;
    double bf16 = gpu->peak_flops[TSR_PEAK_BF16], share = BEST_PRODUCT_SHARE;
    TSR_TRY(matmul_peak(gpu, choice, work, &peak));
    if (gpu->achievable_bf16 > 0.0 && bf16 > 0.0)
        share = gpu->achievable_bf16 / bf16;
    *out = work->flops /
           (gpu->peak_flops[peak] * share * gpu->calibration.value[TSR_CAL_MATMUL_SUSTAINED]);
    return TSR_OK;
}

static const struct kind_row *row_of(const struct tsr_work *work)
{
    const char *name = work->name ? work->name : "";
    bool eager = !strncmp(name, "log_softmax", 11) || !strncmp(name, "nll_", 4);
    if (work->op != TSR_OP_LOSS || !eager || work->compiled)
        return &kinds[work->op];
    return strstr(name, "backward") ? &eager_loss_backward : &eager_loss;
}

/* Elements per multiprocessor and clock of an eager kernel with a broadcast operand, which PyTorch
 * does not vectorize. From an RMSNorm of PyTorch operations on 2,048 x 32,768 in bf16 on an A100
 * (linkedin/Liger-Kernel, rmsnorm-fwd-speed-benchmark.csv: 1.9 ms): what its other kernels leave
 * for its two products. The same on an H100 NVL (1.22 ms) would be 0.77. */
static const double BROADCAST_PER_CLOCK = 0.92;

/* A product or sum of two tensors that reads little more than it writes repeats one of them; other
 * kernels say it by their names. */
static bool broadcasts(const struct tsr_work *work)
{
    const char *name = work->name ? work->name : "", *said = strstr(name, "_broadcast");
    bool two =
        !strcmp(name, "mul") || !strcmp(name, "add") || (said && !strcmp(said, "_broadcast"));
    return two && !work->compiled && (double)work->bytes_read < 1.5 * (double)work->bytes_written;
}

/* Seconds of a kernel that memory decides, without start-up. */
static double stream_seconds(const struct tsr_gpu *gpu, const struct tsr_work *work, double bytes)
{
    double seconds = bytes / memory_rate(gpu, row_of(work));
    double clocks = gpu->sm_count * gpu->clock_hz;
    if (work->op != TSR_OP_POINTWISE || !broadcasts(work) || clocks <= 0.0)
        return seconds;
    double slow = (double)work->dims[0] * (double)work->dims[1] / (clocks * BROADCAST_PER_CLOCK);
    return slow > seconds ? slow : seconds;
}

static bool is_norm(const struct tsr_work *work)
{
    return work->op == TSR_OP_NORM || work->op == TSR_OP_NORM_BWD;
}

static tsr_status kernel_cost(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                              const struct tsr_work *work, struct tsr__cost *out)
{
    double arithmetic = 0.0, memory = 0.0;
    double bytes = (double)work->bytes_read + (double)work->bytes_written;
    TSR_CHECK(work->op < TSR_N_OP_KINDS);
    if (tsr__cost_measured(gpu, work, out))
        return TSR_OK;
    if (bytes > 0.0 && gpu->memory_bw <= 0.0)
        return unknown(gpu, "memory.bandwidth_bytes_per_s", work);
    if (work->flops > 0.0 && work->op == TSR_OP_GEMM)
        return matmul(gpu, choice, work, bytes, out);
    if (is_norm(work) && bytes > 0.0 &&
        tsr__cost_norm(gpu, (enum tsr_norm_kernel)choice->norm, work, out)) {
        out->body_s /= gpu->calibration.value[TSR_CAL_MEMORY_SUSTAINED];
        TSR_TRY(vector_seconds(gpu, work, &arithmetic));
        out->body_s = out->body_s > arithmetic ? out->body_s : arithmetic;
        return TSR_OK;
    }
    if (work->flops > 0.0 && is_attention(work))
        TSR_TRY(attention_seconds(gpu, choice, work, &arithmetic));
    else if (work->flops > 0.0 && work->op == TSR_OP_GENERIC)
        TSR_TRY(generic_seconds(gpu, choice, work, &arithmetic));
    else if (work->flops > 0.0)
        TSR_TRY(vector_seconds(gpu, work, &arithmetic));
    if (bytes > 0.0)
        memory = stream_seconds(gpu, work, bytes);
    out->body_s = arithmetic > memory ? arithmetic : memory;
    out->start_s = row_of(work)->start_s;
    return TSR_OK;
}

tsr_status tsr__cost_kernel(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                            const struct tsr_work *work, struct tsr__cost *out)
{
    TSR_TRY(kernel_cost(gpu, choice, work, out));
    if (isfinite(out->body_s) && isfinite(out->start_s))
        return TSR_OK;
    /* The replay would never end. */
    return tsr_fail(TSR_ECONFIG,
                    "%s: kernel %s in %s has no finite time: the file, or a kernel table that it "
                    "names, leaves out a figure that it needs",
                    gpu->path, work->name ? work->name : "?",
                    tsr_dtype_name((tsr_dtype)work->dtype));
}

tsr_status tsr_cost_kernel(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                           const struct tsr_work *work, double *seconds)
{
    struct tsr__cost cost;
    *seconds = 0.0;
    TSR_TRY(tsr__cost_kernel(gpu, choice, work, &cost));
    *seconds = cost.body_s + cost.start_s;
    return TSR_OK;
}
