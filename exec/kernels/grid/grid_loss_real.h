/* grid_loss_real.h: template of loss.h: what is computed alike on the host and in CUDA code. */
#include "exec/kernels/tensor/real.h"

/* Over rows. */
TSR_ANYWHERE void TSR_R(tsr_nll_gather)(const struct tsr_nll_gather *k, uint64_t begin,
                                        uint64_t step)
{
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        uint64_t column = tsr_label_column(tsr_elems_i64(&k->labels, row), k->first, columns);
        TSR_REAL value = column < columns ? TSR_R(tsr_load_one)(&k->p, row * columns + column) : 0;
        TSR_R(tsr_store)(&k->out, row, 1, &value);
    }
}

/* Over blocks of TSR_BLOCK elements. */
TSR_ANYWHERE void TSR_R(tsr_mse_backward)(const struct tsr_mse *k, uint64_t begin, uint64_t step)
{
    TSR_REAL x[TSR_BLOCK], target[TSR_BLOCK] = {0};
    TSR_REAL factor = 2 * TSR_R(tsr_load_one)(&k->g, 0) / (TSR_REAL)k->x.n;
    for (uint64_t at = begin * TSR_BLOCK; at < k->x.n; at += step * TSR_BLOCK) {
        uint64_t left = k->x.n - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        TSR_R(tsr_load)(&k->x, at, n, x);
        if (k->target.data)
            TSR_R(tsr_load)(&k->target, at, n, target);
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            x[i] = (x[i] - target[i]) * factor;
        TSR_R(tsr_store)(&k->out, at, n, x);
    }
}
