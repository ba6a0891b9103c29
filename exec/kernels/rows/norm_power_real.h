/* norm_power_real.h: template of sums.h. */
#include "exec/kernels/tensor/real.h"

TSR_ANYWHERE void TSR_R(tsr_norm_power)(const struct tsr_norm_powers *k, uint64_t begin,
                                        uint64_t step)
{
    for (uint64_t i = begin; i < k->n; i += step) {
        double norm = (double)TSR_R(tsr_load_one)(&k->x, k->first + i);
        TSR_REAL power = (TSR_REAL)(norm * norm / (double)k->divisor[i]);
        TSR_R(tsr_store)(&k->out, k->first + i, 1, &power);
    }
}
