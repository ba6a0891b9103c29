/* cost_matmul.c: matrix products: a model of tiles and waves, corrected by measured shapes.
 *
 * Model: the output is cut into tiles; every multiprocessor works on one at a time, so time goes in
 * whole waves, and a tile costs its k columns plus a prologue and an epilogue. The best of a few
 * tile sizes counts. What was measured is the model times a factor; between measured shapes the
 * factor is interpolated in the logarithms of m, n, k and batch. Beyond the largest it fades, to
 * half per octave: the waves of a large product hardly matter, and its rate is the model's. On a
 * card that was not measured the model alone speaks, with that card's multiprocessors, rate and
 * bandwidth; the prologue is a latency, so it weighs less on a slower card.
 */
#include "sim/card/cost.h"

#include <math.h>

/* Constants where a card has no table: those of kernels-sm90.json for bf16. */
static const struct tsr_tile_model plain_model = {
    .start_s = 5.2e-6,
    .extra_k = 138.0,
    .peak_share = 0.868,
    .memory_share = 0.92,
    .n_tiles = 5,
    .tiles =
        {{128, 256, 0.644}, {128, 128, 0.977}, {64, 256, 0.375}, {64, 128, 0.824}, {64, 64, 0.732}},
};
/* Rate of one multiprocessor that plain_model.extra_k belongs to: an H100's, 0.868 of 989e12 / 132.
 */
static const double PLAIN_SM_RATE = 6.5e12;
/* Share of the peak that large products reach outside of tensor cores (assumption). */
static const double VECTOR_SHARE = 0.80;

/* What of a card the model needs. */
struct machine {
    double rate;     /* FLOP/s of a large product */
    double sms;      /* 0: unknown, no waves */
    double extra_k;  /* of a tile on this card */
    double memory_s; /* seconds that memory alone takes */
};

static double flops_of(const uint64_t *dims)
{
    return 2.0 * (double)dims[0] * (double)dims[1] * (double)dims[2] *
           (dims[3] ? (double)dims[3] : 1.0);
}

static double whole_waves(const uint64_t *dims, double tile_m, double tile_n, double sms)
{
    double batch = dims[3] ? (double)dims[3] : 1.0;
    double n = ceil((double)dims[0] / tile_m) * ceil((double)dims[1] / tile_n) * batch;
    return ceil(n / sms);
}

static double tile_seconds(const struct tsr_tile_model *model, const struct machine *at,
                           const uint64_t *dims, uint32_t tile, bool turned)
{
    double m = turned ? model->tiles[tile].n : model->tiles[tile].m;
    double n = turned ? model->tiles[tile].m : model->tiles[tile].n;
    double work = 2.0 * m * n * ((double)dims[2] + at->extra_k) * at->sms;
    return whole_waves(dims, m, n, at->sms) * work / (at->rate * model->tiles[tile].share);
}

/* Without start-up. */
static double model_seconds(const struct tsr_tile_model *model, const struct machine *at,
                            const uint64_t *dims)
{
    double batch = dims[3] ? (double)dims[3] : 1.0;
    double best = 2.0 * (double)dims[0] * (double)dims[1] * ((double)dims[2] + at->extra_k) *
                  batch / at->rate;
    for (uint32_t i = 0; i < model->n_tiles && at->sms > 0.0; i++) {
        double straight = tile_seconds(model, at, dims, i, false);
        double turned = tile_seconds(model, at, dims, i, true);
        double least = straight < turned ? straight : turned;
        best = i == 0 || least < best ? least : best;
    }
    return best > at->memory_s ? best : at->memory_s;
}

/* ---- the measured grid ------------------------------------------------------------------- */

static size_t grid_index(const struct tsr_matmul_table *t, const uint32_t at[4])
{
    return ((at[0] * t->n[1] + at[1]) * t->n[2] + at[2]) * t->n[3] + at[3];
}

static struct machine reference_machine(const struct tsr_matmul_table *t,
                                        const struct tsr_card *card, double bytes)
{
    return (struct machine){.rate = card->peak_flops[t->peak] * t->model.peak_share,
                            .sms = card->sm_count,
                            .extra_k = t->model.extra_k,
                            .memory_s = bytes / (card->memory_bw * t->model.memory_share)};
}

double tsr__matmul_reference_seconds(const struct tsr_matmul_table *t, const struct tsr_card *card,
                                     const uint64_t dims[4])
{
    double m = (double)dims[0], n = (double)dims[1], k = (double)dims[2], b = (double)dims[3];
    double size = t->peak == TSR_PEAK_TF32 ? 4.0 : 2.0;
    struct machine at = reference_machine(t, card, size * b * (m * k + k * n + m * n));
    return model_seconds(&t->model, &at, dims) + t->model.start_s;
}

static bool same_axes(const struct tsr_matmul_table *t)
{
    return t->n[0] == t->n[1] && !memcmp(t->axis[0], t->axis[1], t->n[0] * sizeof *t->axis[0]);
}

/* Mean of the measured neighbours of a grid point; 0 if it has none. */
static double neighbours(const struct tsr_matmul_table *t, const uint32_t at[4])
{
    double sum = 0.0, weight = 0.0;
    for (int axis = 0; axis < 4; axis++) {
        double here = 0.0;
        int found = 0;
        for (int step = -1; step <= 1; step += 2) {
            uint32_t next[4] = {at[0], at[1], at[2], at[3]};
            next[axis] = step < 0 ? at[axis] - 1 : at[axis] + 1; /* -1 wraps: beyond the axis */
            if (next[axis] >= t->n[axis] || !t->measured[grid_index(t, next)])
                continue;
            here += (double)t->log_ratio[grid_index(t, next)];
            found++;
        }
        /* Two neighbours are an interpolation, one is an extrapolation. */
        sum += found == 2 ? here : 0.5 * here;
        weight += found == 2 ? 2.0 : 0.5 * found;
    }
    uint32_t turned[4] = {at[1], at[0], at[2], at[3]}; /* the product of the transposed */
    if (at[0] != at[1] && same_axes(t) && t->measured[grid_index(t, turned)]) {
        sum += 2.0 * (double)t->log_ratio[grid_index(t, turned)];
        weight += 2.0;
    }
    return weight > 0.0 ? sum / weight : 0.0;
}

void tsr_matmul_fill(struct tsr_matmul_table *t)
{
    uint32_t at[4];
    for (at[0] = 0; at[0] < t->n[0]; at[0]++)
        for (at[1] = 0; at[1] < t->n[1]; at[1]++)
            for (at[2] = 0; at[2] < t->n[2]; at[2]++)
                for (at[3] = 0; at[3] < t->n[3]; at[3]++)
                    if (!t->measured[grid_index(t, at)])
                        t->log_ratio[grid_index(t, at)] = (float)neighbours(t, at);
}

/* Position of `value` on an axis, in grid steps, at most the last. */
static double place(const struct tsr_matmul_table *t, int axis, uint64_t value)
{
    const float *x = t->axis[axis];
    uint32_t last = t->n[axis] - 1, i = 0;
    if (value <= (uint64_t)x[0])
        return 0.0;
    while (i < last && (double)value >= (double)x[i + 1])
        i++;
    if (i == last)
        return last;
    return i + log2((double)value / (double)x[i]) / log2((double)x[i + 1] / (double)x[i]);
}

static double log_ratio_at(const struct tsr_matmul_table *t, const uint64_t dims[4])
{
    uint32_t low[4];
    double part[4], sum = 0.0, beyond = 0.0; /* octaves */
    for (int axis = 0; axis < 4; axis++) {
        double last = (double)t->axis[axis][t->n[axis] - 1];
        beyond += (double)dims[axis] > last ? log2((double)dims[axis] / last) : 0.0;
        double x = place(t, axis, dims[axis] ? dims[axis] : 1);
        low[axis] = (uint32_t)x;
        part[axis] = x - low[axis];
    }
    for (unsigned corner = 0; corner < 16; corner++) {
        uint32_t at[4];
        double weight = 1.0;
        for (int axis = 0; axis < 4; axis++) {
            bool high = corner >> axis & 1;
            at[axis] = low[axis] + high;
            weight *= high ? part[axis] : 1.0 - part[axis];
        }
        if (weight > 0.0)
            sum += weight * (double)t->log_ratio[grid_index(t, at)];
    }
    return sum * exp2(-beyond);
}

/* ---- a card ------------------------------------------------------------------------------ */

/* The table for products against a peak: fp16 and fp8 follow bf16's. */
static const struct tsr_matmul_table *find_table(const struct tsr_kernels *k, int peak)
{
    int want = peak == TSR_PEAK_TF32 ? TSR_PEAK_TF32 : TSR_PEAK_BF16;
    for (uint32_t i = 0; i < k->n_matmul; i++)
        if (k->matmul[i].peak == want)
            return &k->matmul[i];
    return NULL;
}

bool tsr__matmul_is_measured(const struct tsr_gpu *gpu, const struct tsr_matmul_table *t)
{
    const struct tsr_card *card = &tsr_gpu_kernels(gpu)->files[t->card].card;
    return !strcmp(card->architecture, gpu->architecture) &&
           (!gpu->sm_count || card->sm_count == gpu->sm_count);
}

/* What is known of one product on one card. */
struct setting {
    const struct tsr_matmul_table *table; /* NULL: none */
    const struct tsr_tile_model *model;
    bool measured; /* the table's factors hold */
    double sms;
    double sm_rate; /* FLOP/s of a multiprocessor that the model's extra_k belongs to */
};

static struct setting setting_of(const struct tsr_gpu *gpu, int peak)
{
    const struct tsr_matmul_table *t = find_table(tsr_gpu_kernels(gpu), peak);
    struct setting out = {.table = t, .model = &plain_model, .sm_rate = PLAIN_SM_RATE};
    out.sms = gpu->sm_count;
    if (!t)
        return out;
    const struct tsr_card *card = &tsr_gpu_kernels(gpu)->files[t->card].card;
    bool same_kind = peak == t->peak || (peak == TSR_PEAK_FP16 && t->peak == TSR_PEAK_BF16);
    bool same_card = tsr__matmul_is_measured(gpu, t);
    out.model = &t->model;
    out.measured = same_card && same_kind;
    out.sm_rate = card->peak_flops[t->peak] * t->model.peak_share / card->sm_count;
    if (same_card)
        out.sms = card->sm_count;
    return out;
}

/* Rate of an endless product. */
static double large_rate(const struct tsr_gpu *gpu, const struct setting *of, int peak)
{
    double here = gpu->peak_flops[peak];
    double known = peak == TSR_PEAK_FP8 ? gpu->large_fp8 : gpu->large_bf16;
    bool half = peak == TSR_PEAK_BF16 || peak == TSR_PEAK_FP16;
    if (of->measured)
        return here * of->model->peak_share;
    if ((half || peak == TSR_PEAK_FP8) && known > 0.0)
        return known < here ? known : here;
    /* nothing published: bf16's share for tensor cores, the model's for plain fp32 */
    bool vector = peak == TSR_PEAK_FP32 || peak == TSR_PEAK_FP64;
    return here * (vector ? VECTOR_SHARE : of->model->peak_share);
}

/* With start-up, by the model alone, at `rate` for an endless product. */
static double seconds_at(const struct tsr_gpu *gpu, const struct setting *of, double rate,
                         const uint64_t dims[4], double bytes)
{
    struct machine at = {.rate = rate,
                         .sms = of->sms,
                         .extra_k = of->model->extra_k,
                         .memory_s = bytes / (gpu->memory_bw * of->model->memory_share)};
    if (of->sms > 0.0)
        at.extra_k *= rate / of->sms / of->sm_rate;
    return model_seconds(of->model, &at, dims) + of->model->start_s;
}

double tsr__matmul_large_rate(const struct tsr_gpu *gpu, int peak, const uint64_t dims[4],
                              double achieved)
{
    struct setting of = setting_of(gpu, peak);
    double flops = flops_of(dims);
    double low = achieved, high = 2.0 * achieved;
    for (int i = 0; i < 60; i++) {
        double middle = 0.5 * (low + high);
        bool slower = seconds_at(gpu, &of, middle, dims, 0.0) > flops / achieved;
        *(slower ? &low : &high) = middle;
    }
    return low;
}

/* No shape beats the best that a sweep over shapes has found, however large it is: then power
 * decides, which the model does not know. */
static double best_rate(const struct tsr_gpu *gpu, const struct setting *of, int peak)
{
    bool half = peak == TSR_PEAK_BF16 || peak == TSR_PEAK_FP16;
    double best = half ? gpu->achievable_bf16 : peak == TSR_PEAK_FP8 ? gpu->achievable_fp8 : 0.0;
    if (of->measured && best < of->table->best_flops)
        best = of->table->best_flops;
    return best > 0.0 ? best : gpu->peak_flops[peak];
}

struct tsr__cost tsr__cost_matmul(const struct tsr_gpu *gpu, int peak, const uint64_t dims[4],
                                  double bytes)
{
    struct setting of = setting_of(gpu, peak);
    double seconds = seconds_at(gpu, &of, large_rate(gpu, &of, peak), dims, bytes);
    if (of.measured)
        seconds *= exp(log_ratio_at(of.table, dims));
    double least = flops_of(dims) / best_rate(gpu, &of, peak);
    if (seconds < least)
        seconds = least;
    return tsr__cost_split(seconds, of.model->start_s, bytes / gpu->memory_bw);
}
