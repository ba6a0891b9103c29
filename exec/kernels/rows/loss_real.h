/* loss_real.h: template of loss.c. */
#include "exec/kernels/tensor/real.h"

static void TSR_R(store_one)(const struct tsr_elems *out, double value)
{
    TSR_REAL x = (TSR_REAL)value;
    TSR_R(tsr_store)(out, 0, 1, &x);
}

/* Sum of -p[label]; the label is the column, or the only one. */
static double TSR_R(nll_sum)(const struct tsr_nll *k)
{
    double sum = 0;
    for (uint64_t row = 0; row < k->labels.n; row++) {
        int64_t label = tsr_elems_i64(&k->labels, row);
        uint64_t column = k->gathered ? 0 : (uint64_t)label;
        if (label >= 0)
            sum -= (double)TSR_R(tsr_load_one)(&k->p, row * k->columns + column);
    }
    return sum;
}

/* All of it in one call. */
static void TSR_R(nll)(const struct tsr_nll *k, uint64_t begin, uint64_t step)
{
    double n =
        k->count.data ? (double)TSR_R(tsr_load_one)(&k->count, 0) : (double)counted(&k->labels);
    (void)begin;
    (void)step;
    if (k->loss.data)
        TSR_R(store_one)(&k->loss, TSR_R(nll_sum)(k) / n);
    if (k->weight.data)
        TSR_R(store_one)(&k->weight, n);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* g / count. */
static TSR_REAL TSR_R(factor)(const struct tsr_cross_entropy *k)
{
    TSR_REAL g = k->g.data ? TSR_R(tsr_load_one)(&k->g, 0) : 1;
    return g / TSR_R(tsr_load_one)(&k->count, 0);
}

static void TSR_R(nll_backward)(const struct tsr_cross_entropy *k, uint64_t begin, uint64_t step)
{
    TSR_REAL each = -TSR_R(factor)(k);
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        uint64_t column = tsr_label_column(tsr_elems_i64(&k->labels, row), 0, columns);
        TSR_R(tsr_store_same)(&k->out, row * columns, columns, 0);
        if (column < columns)
            TSR_R(tsr_store)(&k->out, row * columns + column, 1, &each);
    }
}

/* (exp(x - max - log_sum) - onehot) factor. */
static void TSR_R(cross_entropy_row)(const struct tsr_cross_entropy *k, uint64_t row,
                                     TSR_REAL factor, TSR_REAL max, TSR_REAL log_sum)
{
    TSR_REAL part[TSR_BLOCK];
    uint64_t columns = k->shape.columns, first = row * columns;
    uint64_t label = tsr_label_column(tsr_elems_i64(&k->labels, row), k->first, columns);
    TSR_EACH_BLOCK(at, n, first, columns)
    {
        TSR_R(tsr_load)(&k->x, at, n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] = TSR_R(tsr_cross_entropy_slope)(part[i] - max - log_sum,
                                                     at - first + i == label, factor);
        TSR_R(tsr_store)(&k->out, at, n, part);
    }
}

static void TSR_R(log_p_backward)(const struct tsr_cross_entropy *k, uint64_t begin, uint64_t step)
{
    TSR_REAL factor = TSR_R(factor)(k);
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        if (tsr_elems_i64(&k->labels, row) < 0)
            TSR_R(tsr_store_same)(&k->out, row * columns, columns, 0);
        else
            TSR_R(cross_entropy_row)(k, row, factor, 0, 0);
    }
}

/* ---- straight from logits -------------------------------------------------------------------- */

/* -log-probability of the label of a row that has one; the gradient, which may be x. */
static double TSR_R(logits_row)(const struct tsr_cross_entropy *k, uint64_t row, TSR_REAL factor)
{
    uint64_t columns = k->shape.columns, first = row * columns;
    uint64_t label = (uint64_t)tsr_elems_i64(&k->labels, row);
    TSR_REAL max = TSR_R(tsr_row_max)(&k->x, first, columns);
    TSR_REAL log_sum = (TSR_REAL)log(TSR_R(tsr_row_exp_sum)(&k->x, first, columns, max));
    TSR_REAL log_p = TSR_R(tsr_load_one)(&k->x, first + label) - max - log_sum;
    if (k->out.data)
        TSR_R(cross_entropy_row)(k, row, factor, max, log_sum);
    return -(double)log_p;
}

/* All of it in one call. */
static void TSR_R(cross_entropy)(const struct tsr_cross_entropy *k, uint64_t begin, uint64_t step)
{
    double sum = 0, n = (double)TSR_R(tsr_load_one)(&k->count, 0);
    TSR_REAL factor = TSR_R(factor)(k);
    uint64_t columns = k->shape.columns;
    (void)begin;
    (void)step;
    for (uint64_t row = 0; row < k->shape.rows; row++) {
        if (tsr_elems_i64(&k->labels, row) >= 0)
            sum += TSR_R(logits_row)(k, row, factor);
        else if (k->out.data)
            TSR_R(tsr_store_same)(&k->out, row * columns, columns, 0);
    }
    TSR_R(store_one)(&k->loss, sum / n);
}
