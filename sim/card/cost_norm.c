/* cost_norm.c: layer norms and RMS norms by backend.
 *
 * On the measured card a norm takes start_s + bytes / bytes_per_s, times a factor that is exact at
 * measured shapes (rows, columns) and between them the mean of all, weighted by the inverse fourth
 * power of the distance in octaves. On another card the part of the time that its bytes take at
 * the best bandwidth goes with the bandwidths, the rest (arithmetic, latency) with multiprocessors
 * times clock.
 */
#include <math.h>

#include "sim/card/cost.h"

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

bool tsr__cost_norm(const struct tsr_gpu *gpu, enum tsr_norm_kernel kernel,
                    const struct tsr_work *work, struct tsr__cost *out)
{
    bool fused = work->name && !strncmp(work->name, "fused", 5);
    if (kernel == TSR_NORMS_AUTO)
        kernel = fused || work->compiled ? TSR_NORMS_COMPILED : TSR_NORMS_EAGER;
    const struct tsr_norm_table *t =
        find_table(&gpu->kernels, (uint8_t)kernel, work->op == TSR_OP_NORM_BWD);
    if (!t)
        return false;
    const struct tsr_card *card = &gpu->kernels.files[t->card].card;
    double bytes = (double)work->bytes_read + (double)work->bytes_written;
    double stream_there = 1.0 / (card->memory_bw * BEST_SHARE);
    double stream_here = 1.0 / (gpu->memory_bw * BEST_SHARE);
    double rest = 1.0 / t->bytes_per_s - stream_there;
    double per_byte = stream_here + (rest > 0.0 ? rest * slower_by(gpu, card) : rest);
    double seconds = (t->start_s + bytes * per_byte) * exp(log_ratio_at(t, work));
    *out = tsr__cost_split(seconds, t->start_s, bytes / gpu->memory_bw);
    return true;
}
