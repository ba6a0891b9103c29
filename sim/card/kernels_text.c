/* kernels_text.c: says where the kernel times of a card come from (tsr_kernel_sources). */
#include <math.h>
#include <stdio.h>

#include "sim/card/cost.h"

static const char *file_name(const struct tsr_gpu *gpu, uint8_t card)
{
    return gpu->kernels.files[card].name;
}

static const char *card_name(const struct tsr_gpu *gpu, uint8_t card)
{
    return gpu->kernels.files[card].card.name;
}

static void matmul_text(const struct tsr_gpu *gpu, char *out, size_t size)
{
    const struct tsr_kernels *k = &gpu->kernels;
    if (!k->n_matmul)
        snprintf(out, size, "matrix products: no table; model of tiles at the best published rate");
    else if (tsr__matmul_is_measured(gpu, &k->matmul[0]))
        snprintf(out, size, "matrix products: table %s, measured on %s%s",
                 file_name(gpu, k->matmul[0].card), card_name(gpu, k->matmul[0].card),
                 strcmp(gpu->name, card_name(gpu, k->matmul[0].card)) ? ", taken as it is" : "");
    else
        snprintf(out, size,
                 "matrix products: scaled; the model of tiles of table %s (%s) at the best "
                 "published rate of this card",
                 file_name(gpu, k->matmul[0].card), card_name(gpu, k->matmul[0].card));
}

/* Kernels of one file, "flash2, cudnn"; "" when an earlier file has them all. */
static void kernels_of(const struct tsr_gpu *gpu, uint8_t card, bool *seen, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < gpu->kernels.n_attention && used < size; i++) {
        const struct tsr_attention_curve *c = &gpu->kernels.attention[i];
        bool here = c->kernel != TSR_ATTN_FLASH3 || !strcmp(gpu->architecture, "Hopper");
        if (c->card != card || seen[c->kernel] || !here)
            continue;
        seen[c->kernel] = true;
        used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "",
                                 tsr_attention_kernel_name((enum tsr_attention_kernel)c->kernel));
    }
}

static void measured_text(const struct tsr_gpu *gpu, char *out, size_t size)
{
    const struct tsr_kernels *k = &gpu->kernels;
    snprintf(out, size,
             "by name: table %s, %u kernels in %u runs on %s%s; what follows is for others",
             file_name(gpu, k->measured[0].card), k->n_measured, k->n_runs,
             card_name(gpu, k->measured[0].card),
             strcmp(gpu->name, card_name(gpu, k->measured[0].card)) ? ", not used here" : "");
}

static void norm_text(const struct tsr_gpu *gpu, char *out, size_t size)
{
    const struct tsr_kernels *k = &gpu->kernels;
    if (!k->n_norms)
        snprintf(out, size, "norms: no table; a share of the nominal bandwidth");
    else
        snprintf(out, size, "norms: table %s, measured on %s%s", file_name(gpu, k->norms[0].card),
                 card_name(gpu, k->norms[0].card),
                 strcmp(gpu->name, card_name(gpu, k->norms[0].card))
                     ? ", scaled by bandwidth, multiprocessors and clock"
                     : "");
}

static const char *attention_scaling(const struct tsr_gpu *gpu, const struct tsr_card *from)
{
    double here = gpu->peak_flops[TSR_PEAK_BF16], there = from->peak_flops[TSR_PEAK_BF16];
    if (!strcmp(gpu->name, from->name))
        return "";
    return fabs(here - there) <= 1e-9 * there ? ", taken as it is"
                                              : ", scaled by the ratio of bf16 peaks";
}

size_t tsr_kernel_sources(const struct tsr_gpu *gpu, char (*out)[256], size_t n)
{
    bool seen[TSR_N_ATTENTION_KERNELS] = {false};
    char kernels[128];
    size_t used = 0;
    if (gpu->kernels.n_measured && used < n)
        measured_text(gpu, out[used++], sizeof *out);
    if (used < n)
        matmul_text(gpu, out[used++], sizeof *out);
    for (uint32_t card = 0; card < gpu->kernels.n_files; card++) {
        kernels_of(gpu, (uint8_t)card, seen, kernels, sizeof kernels);
        if (!*kernels || used >= n)
            continue;
        const struct tsr_card *from = &gpu->kernels.files[card].card;
        snprintf(out[used++], sizeof *out, "attention: table %s, measured on %s%s: %s",
                 gpu->kernels.files[card].name, from->name, attention_scaling(gpu, from), kernels);
    }
    if (!gpu->kernels.n_attention && used < n)
        snprintf(out[used++], sizeof *out, "attention: no table; share of the peak on an H100");
    if (used < n)
        norm_text(gpu, out[used++], sizeof *out);
    if (used < n)
        snprintf(out[used++], sizeof *out,
                 "eager losses: shares of the nominal bandwidth as on an A100 and an H100; other "
                 "kernels: assumed shares");
    return used;
}
