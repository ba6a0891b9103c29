/* needs.c: finds what a strategy needs beyond PyTorch's wrappers on eager modules (needs.h). */
#include "experiments/study/config/needs.h"

#include <stdio.h>

const char *const tsr_words_need[] = {
    [TSR_NEED_API] = "api",
    [TSR_NEED_COMPILE] = "compile",
    [TSR_NEED_FUSED] = "fused",
    [TSR_NEED_TP] = "tp",
    [TSR_NEED_LOSS_CHUNKS] = "loss.chunks",
    [TSR_NEED_LOSS_KERNEL] = "loss.kernel",
    [TSR_NEED_FP8] = "fp8",
    [TSR_NEED_OPTIMIZER] = "optimizer",
    [TSR_NEED_OPTIONS] = "options",
    [TSR_N_NEEDS] = NULL,
};

unsigned tsr_needs_of(const struct tsr_settings *s)
{
    bool composers = s->variant == TSR_ADAMW_DECOUPLED || s->variant == TSR_ADAMW_DECOUPLED_READ;
    const bool has[TSR_N_NEEDS] = {
        [TSR_NEED_COMPILE] = s->dialect == TSR_DIALECT_COMPILE,
        [TSR_NEED_FUSED] = s->dialect == TSR_DIALECT_FUSED,
        [TSR_NEED_TP] = s->tp > 1,
        [TSR_NEED_LOSS_CHUNKS] = s->loss_chunks > 1,
        [TSR_NEED_LOSS_KERNEL] = s->loss_kernel != TSR_LOSS_EAGER,
        [TSR_NEED_FP8] = s->linear != TSR_LINEAR_PLAIN,
        [TSR_NEED_OPTIMIZER] = s->optimizer == TSR_OPTIM_ADAMW && composers,
        [TSR_NEED_OPTIONS] =
            s->mirror || s->direct_gather || s->folded_scale || s->two_level_gather,
    };
    unsigned out = 0;
    for (unsigned i = 0; i < TSR_N_NEEDS; i++)
        out |= (unsigned)has[i] << i;
    return out;
}

unsigned tsr_needs_beyond(const struct tsr_settings *s, const struct tsr_settings *base)
{
    unsigned api = s->api != base->api ? 1u << TSR_NEED_API : 0;
    return (tsr_needs_of(s) & ~tsr_needs_of(base)) | api;
}

void tsr_needs_words(unsigned needs, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (unsigned i = 0; i < TSR_N_NEEDS && used < size; i++)
        if (needs >> i & 1)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "",
                                     tsr_words_need[i]);
}
