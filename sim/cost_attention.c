/* cost_attention.c: what FlashAttention-2 reaches, by architecture, head size and sequence length.
 *
 * Source: experiments/clusters has no attention figures; these are the labels of the published
 * charts in Dao-AILab/flash-attention at commit 0251105a: assets/flash2_h100_fwd_bwd_benchmark.png
 * and flash2_a100_..., and the FlashAttention-2 series of the FlashAttention-3 charts (forward and
 * backward apart, H100). TFLOP/s with a forward of 4*batch*heads*length^2*head size FLOP, half of
 * it when causal, and a backward of 2.5 times that: the counts of tsr_work.flops.
 */
#include <math.h>
#include <string.h>

#include "cost.h"

enum { N_LENGTHS = 6 }; /* 512, 1024, ... 16384 tokens */

struct row {
    bool backward, causal;
    uint16_t head_size;
    float tflops[N_LENGTHS];
};

/* H100 SXM5 80 GB. Causal backward is solved from forward and forward+backward:
 * 3.5/both = 1/forward + 2.5/backward. */
static const struct row hopper[] = {
    {false, true, 64, {180, 229, 262, 284, 295, 299}},
    {false, true, 128, {191, 260, 298, 319, 333, 335}},
    {false, false, 64, {282, 306, 318, 321, 322, 324}},
    {false, false, 128, {309, 350, 362, 368, 370, 370}},
    {true, true, 64, {130, 180, 222, 248, 265, 278}},
    {true, true, 128, {154, 209, 254, 285, 299, 325}},
    {true, false, 64, {198, 238, 264, 279, 287, 291}},
    {true, false, 128, {214, 260, 291, 310, 318, 322}},
};

/* A100 SXM4 80 GB: only forward+backward is published; both passes take that rate, so their sum is
 * right. The full-attention labels at 1024 (64) and 512, 1024 (128) are missing: interpolated with
 * the shape of the H100 series. */
static const struct row ampere[] = {
    {false, true, 64, {88, 119, 140, 156, 165, 171}},
    {false, true, 128, {99, 133, 155, 173, 182, 189}},
    {false, false, 64, {132, 152, 162, 171, 175, 176}},
    {false, false, 128, {145, 172, 187, 196, 201, 203}},
    {true, true, 64, {88, 119, 140, 156, 165, 171}},
    {true, true, 128, {99, 133, 155, 173, 182, 189}},
    {true, false, 64, {132, 152, 162, 171, 175, 176}},
    {true, false, 128, {145, 172, 187, 196, 201, 203}},
};

static const double HOPPER_PEAK_TFLOPS = 989.0, AMPERE_PEAK_TFLOPS = 312.0;

static double by_length(const struct row *row, uint64_t length)
{
    double at = log2(length ? (double)length : 1.0) - 9.0; /* 512 tokens = 0 */
    if (at <= 0.0)
        return (double)row->tflops[0];
    if (at >= N_LENGTHS - 1)
        return (double)row->tflops[N_LENGTHS - 1];
    int i = (int)at;
    double part = at - i;
    return (1.0 - part) * (double)row->tflops[i] + part * (double)row->tflops[i + 1];
}

/* Ada runs the code path of Ampere. Blackwell has no published figure for this kernel: it takes
 * Hopper's share of the peak (assumption). */
double tsr__attention_share(const char *architecture, bool backward, bool causal,
                            uint64_t head_size, uint64_t length)
{
    bool old = !strncmp(architecture, "Ampere", 6) || !strncmp(architecture, "Ada", 3);
    const struct row *rows = old ? ampere : hopper;
    size_t n = sizeof hopper / sizeof hopper[0];
    uint16_t want = head_size < 96 ? 64 : 128;
    for (size_t i = 0; i < n; i++)
        if (rows[i].backward == backward && rows[i].causal == causal && rows[i].head_size == want)
            return by_length(&rows[i], length) / (old ? AMPERE_PEAK_TFLOPS : HOPPER_PEAK_TFLOPS);
    return 0.0; /* the tables hold every combination */
}
