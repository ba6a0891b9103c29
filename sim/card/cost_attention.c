/* cost_attention.c: rates of attention kernels, by kernel, direction, head size and length.
 *
 * Rates are those of kernels-*.json, interpolated by length; TFLOP/s with a
 * forward of 4*batch*heads*length^2*head size FLOP, half of it when causal, and a backward of 2.5
 * times that: the counts of tsr_work.flops. A kernel works on head sizes of 32, 64, 96, ... and
 * wastes what lies between; rates between 64 and 128 are interpolated. Measured lengths keep the
 * card full (32,768 elements of queries at a time); a launch with few blocks leaves
 * multiprocessors idle.
 */
#include <math.h>

#include "sim/card/cost.h"

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

/* A rate on the card of its curve, brought to this card by the ratio of the peaks. */
static double rate_of(const struct tsr_gpu *gpu, const struct tsr_attention_curve *c,
                      uint64_t length)
{
    const struct tsr_card *card = &gpu->kernels.files[c->card].card;
    double rate = by_length(c, length);
    double here = gpu->peak_flops[TSR_PEAK_BF16], there = card->peak_flops[TSR_PEAK_BF16];
    return there > 0.0 ? rate * here / there : rate;
}

/* Between two head sizes; 0: no curve. */
static double rate_at(const struct tsr_gpu *gpu, uint8_t kernel, bool backward, bool causal,
                      double head, uint64_t length)
{
    const struct tsr_attention_curve *low =
        find_curve(&gpu->kernels, kernel, backward, causal, head, false);
    const struct tsr_attention_curve *high =
        find_curve(&gpu->kernels, kernel, backward, causal, head, true);
    if (!low && !high)
        return 0.0;
    if (!low) /* the same blocks with fewer columns */
        return rate_of(gpu, high, length) * head / high->head_size;
    if (!high || high->head_size == low->head_size)
        return rate_of(gpu, low, length);
    double part = log2(head / low->head_size) / log2((double)high->head_size / low->head_size);
    return exp((1.0 - part) * log(rate_of(gpu, low, length)) +
               part * log(rate_of(gpu, high, length)));
}

/* Kernels that exist for one architecture only are not scaled to another. */
static tsr_status check_kernel(const struct tsr_gpu *gpu, enum tsr_attention_kernel kernel)
{
    if (kernel != TSR_ATTN_FLASH3 || !strcmp(gpu->architecture, "Hopper"))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "attention_kernel: found flash3, allowed on %s (%s): auto, flash1, "
                    "flash1_triton, flash2, cudnn or math",
                    gpu->name, gpu->architecture);
}

/* The rate for any masking. Where only the other masking was measured, the ratio of the two is
 * flash2's. */
static double any_rate(const struct tsr_gpu *gpu, uint8_t kernel, bool backward, bool causal,
                       double head, uint64_t length)
{
    double rate = rate_at(gpu, kernel, backward, causal, head, length);
    if (rate > 0.0)
        return rate;
    double here = rate_at(gpu, TSR_ATTN_FLASH2, backward, causal, head, length);
    double there = rate_at(gpu, TSR_ATTN_FLASH2, backward, !causal, head, length);
    rate = rate_at(gpu, kernel, backward, !causal, head, length);
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

/* The kernel that the program names. The memory-efficient one (xformers, Cutlass) has no table: it
 * is as fast as FlashAttention-1 in the FlashAttention-2 paper, which finds both half as fast as
 * its own (arXiv 2307.08691, section 4.1). */
static uint8_t own_kernel(const struct tsr_work *work)
{
    bool efficient = work->name && !strncmp(work->name, "efficient", 9);
    return efficient ? TSR_ATTN_FLASH1 : TSR_ATTN_FLASH2;
}

tsr_status tsr__cost_attention(const struct tsr_gpu *gpu, enum tsr_attention_kernel kernel,
                               const struct tsr_work *work, double *seconds)
{
    bool backward = work->op == TSR_OP_ATTENTION_BWD;
    double head = work->dims[5] ? (double)work->dims[5] : PLAIN_HEAD,
           padded = ceil(head / 32.0) * 32.0;
    TSR_TRY(check_kernel(gpu, kernel));
    uint8_t want = kernel == TSR_ATTN_AUTO ? own_kernel(work) : (uint8_t)kernel;
    double rate = any_rate(gpu, want, backward, work->causal, padded, work->dims[4]);
    if (rate <= 0.0 && gpu->kernels.n_attention)
        return tsr_fail(TSR_ECONFIG,
                        "attention_kernel: found %s, allowed: a kernel that a table "
                        "of %s has",
                        names[want], gpu->path);
    if (rate <= 0.0)
        rate = gpu->peak_flops[TSR_PEAK_BF16] * (backward ? PLAIN_BACKWARD : PLAIN_FORWARD);
    *seconds = work->flops / rate * padded / head * idle_factor(gpu, work);
    return TSR_OK;
}
