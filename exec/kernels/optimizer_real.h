/* optimizer_real.h: template of optimizer.c. */
#include "real.h"

static void TSR_R(update)(const double *s, const struct tsr_optimizer_work *w, uint64_t numel)
{
    double step = s[TSR_SCALAR_STEP], lr = s[TSR_SCALAR_LR];
    double beta1 = s[TSR_SCALAR_BETA1], beta2 = s[TSR_SCALAR_BETA2];
    struct TSR_R(tsr_optimizer_numbers)
        k = {.adamw = {.decay = (TSR_REAL)(1 - lr * s[TSR_SCALAR_WEIGHT_DECAY]),
                       .lerp = (TSR_REAL)(1 - beta1),
                       .beta2 = (TSR_REAL)beta2,
                       .rest = (TSR_REAL)(1 - beta2),
                       .root = (TSR_REAL)sqrt(1 - pow(beta2, step)),
                       .eps = (TSR_REAL)s[TSR_SCALAR_EPS],
                       .size = (TSR_REAL)(lr / (1 - pow(beta1, step)))},
             .lr = (TSR_REAL)lr,
             .weight_decay = (TSR_REAL)s[TSR_SCALAR_WEIGHT_DECAY],
             .momentum = (TSR_REAL)s[TSR_SCALAR_MOMENTUM]};
    TSR_R(tsr_grid_optimizer)(w, &k, numel, 0, 1);
}
