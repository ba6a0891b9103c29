/* softmax_real.h: template of softmax.c. */
#include "exec/kernels/tensor/real.h"

/* ---- softmax --------------------------------------------------------------------------------- */

/* The first `seen` columns count; the rest gets 0, and so does a row of which nothing counts. */
static void TSR_R(softmax_row)(const struct tsr_softmax *k, uint64_t first, uint64_t seen)
{
    TSR_REAL part[TSR_BLOCK], max = TSR_R(tsr_row_max)(&k->x, first, seen);
    double sum = TSR_R(tsr_row_exp_sum)(&k->x, first, seen, max);
    TSR_REAL factor = (TSR_REAL)(1 / sum);
    if (sum == 0)
        seen = 0;
    TSR_EACH_BLOCK(at, n, first, seen)
    {
        TSR_R(tsr_load)(&k->x, at, n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] = TSR_R(tsr_exp)(part[i] - max) * factor;
        TSR_R(tsr_store)(&k->out, at, n, part);
    }
    TSR_R(tsr_store_same)(&k->out, first + seen, k->shape.columns - seen, 0);
}

static void TSR_R(softmax)(const struct tsr_softmax *k, uint64_t begin, uint64_t step)
{
    for (uint64_t row = begin; row < k->shape.rows && k->shape.columns; row += step)
        TSR_R(softmax_row)(k, row * k->shape.columns, tsr_softmax_seen(k, row));
}

static void TSR_R(softmax_backward)(const struct tsr_softmax *k, uint64_t begin, uint64_t step)
{
    TSR_REAL g[TSR_BLOCK], p[TSR_BLOCK];
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        TSR_REAL sum = (TSR_REAL)TSR_R(tsr_row_dot)(&k->x, &k->y, row * columns, columns);
        TSR_EACH_BLOCK(at, n, row * columns, columns)
        {
            TSR_R(tsr_load)(&k->x, at, n, g);
            TSR_R(tsr_load)(&k->y, at, n, p);
            for (unsigned i = 0; i < n; i++)
                g[i] = p[i] * (g[i] - sum);
            TSR_R(tsr_store)(&k->out, at, n, g);
        }
    }
}

/* ---- log-softmax ----------------------------------------------------------------------------- */

/* out = x - max - log_sum, which is more exact than subtracting their sum. */
static void TSR_R(log_softmax_row)(const struct tsr_softmax *k, uint64_t row, TSR_REAL max,
                                   TSR_REAL log_sum)
{
    TSR_REAL part[TSR_BLOCK];
    TSR_EACH_BLOCK(at, n, row * k->shape.columns, k->shape.columns)
    {
        TSR_R(tsr_load)(&k->x, at, n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] = part[i] - max - log_sum;
        TSR_R(tsr_store)(&k->out, at, n, part);
    }
}

static void TSR_R(log_softmax)(const struct tsr_softmax *k, uint64_t begin, uint64_t step)
{
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        TSR_REAL max = TSR_R(tsr_row_max)(&k->x, row * columns, columns);
        double sum = TSR_R(tsr_row_exp_sum)(&k->x, row * columns, columns, max);
        TSR_R(log_softmax_row)(k, row, max, (TSR_REAL)log(sum));
    }
}

static void TSR_R(log_softmax_backward)(const struct tsr_softmax *k, uint64_t begin, uint64_t step)
{
    TSR_REAL g[TSR_BLOCK], y[TSR_BLOCK];
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        TSR_REAL sum = (TSR_REAL)TSR_R(tsr_row_sum)(&k->x, row * columns, columns);
        TSR_EACH_BLOCK(at, n, row * columns, columns)
        {
            TSR_R(tsr_load)(&k->x, at, n, g);
            TSR_R(tsr_load)(&k->y, at, n, y);
            for (unsigned i = 0; i < n; i++)
                g[i] -= TSR_R(tsr_exp)(y[i]) * sum;
            TSR_R(tsr_store)(&k->out, at, n, g);
        }
    }
}

/* ---- a vocabulary that is cut ---------------------------------------------------------------- */

static void TSR_R(row_max)(const struct tsr_softmax *k, uint64_t begin, uint64_t step)
{
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        TSR_REAL max = TSR_R(tsr_row_max)(&k->x, row * columns, columns);
        TSR_R(tsr_store)(&k->out, row, 1, &max);
    }
}

static void TSR_R(row_exp_sum)(const struct tsr_softmax *k, uint64_t begin, uint64_t step)
{
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        TSR_REAL max = TSR_R(tsr_load_one)(&k->max, row);
        TSR_REAL sum = (TSR_REAL)TSR_R(tsr_row_exp_sum)(&k->x, row * columns, columns, max);
        TSR_R(tsr_store)(&k->out, row, 1, &sum);
    }
}

static void TSR_R(log_softmax_tp)(const struct tsr_softmax *k, uint64_t begin, uint64_t step)
{
    for (uint64_t row = begin; row < k->shape.rows; row += step)
        TSR_R(log_softmax_row)
    (k, row, TSR_R(tsr_load_one)(&k->max, row), TSR_M(log)(TSR_R(tsr_load_one)(&k->sum, row)));
}
