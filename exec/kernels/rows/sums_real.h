/* sums_real.h: template of sums.c. */
#include "exec/kernels/tensor/real.h"

static void TSR_R(row_sums)(const struct tsr_row_sums *k, uint64_t begin, uint64_t step)
{
    uint64_t columns = k->shape.columns;
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        double sum = TSR_R(tsr_row_sum)(&k->x, row * columns, columns);
        TSR_REAL value = (TSR_REAL)(sum / k->divisor);
        TSR_R(tsr_store)(&k->out, row, 1, &value);
    }
}

/* Columns [at, at + n). */
static void TSR_R(add_rows)(const struct tsr_column_sums *k, uint64_t at, unsigned n)
{
    double sum[TSR_BLOCK] = {0};
    TSR_REAL part[TSR_BLOCK];
    for (uint64_t row = 0; row < k->shape.rows; row++) {
        TSR_R(tsr_load)(&k->x, row * k->shape.columns + at, n, part);
        for (unsigned i = 0; i < n; i++)
            sum[i] += (double)part[i];
    }
    for (unsigned i = 0; i < n; i++)
        part[i] = (TSR_REAL)sum[i];
    TSR_R(tsr_store)(&k->out, at, n, part);
}

static void TSR_R(column_sums)(const struct tsr_column_sums *k, uint64_t begin, uint64_t step)
{
    uint64_t columns = k->shape.columns;
    for (uint64_t at = begin * TSR_BLOCK; at < columns; at += step * TSR_BLOCK)
        TSR_R(add_rows)(k, at, (unsigned)tsr_min_u64(columns - at, TSR_BLOCK));
}

static double TSR_R(squares_of_difference)(const struct tsr_fold *k)
{
    struct TSR_R(tsr_sum) sum = {{0}};
    TSR_REAL a[TSR_BLOCK], b[TSR_BLOCK];
    TSR_EACH_BLOCK(at, n, 0, k->a.n)
    {
        TSR_R(tsr_load)(&k->a, at, n, a);
        TSR_R(tsr_load)(&k->b, at, n, b);
        for (unsigned i = 0; i < n; i++)
            a[i] -= b[i];
        TSR_R(tsr_sum_add_product)(&sum, a, a, (unsigned)n);
    }
    return TSR_R(tsr_sum_total)(&sum);
}

static double TSR_R(fold_all)(const struct tsr_fold *k)
{
    if (k->op == TSR_FOLD_SUM)
        return TSR_R(tsr_row_sum)(&k->a, 0, k->a.n);
    if (k->op == TSR_FOLD_PRODUCTS)
        return TSR_R(tsr_row_dot)(&k->a, &k->b, 0, k->a.n);
    return k->b.data ? TSR_R(squares_of_difference)(k)
                     : TSR_R(tsr_row_squares)(&k->a, 0, k->a.n, 0);
}

/* All of it in one call. */
static void TSR_R(fold)(const struct tsr_fold *k, uint64_t begin, uint64_t step)
{
    (void)begin;
    (void)step;
    TSR_R(tsr_store_same)(&k->out, 0, k->out.n, (TSR_REAL)(TSR_R(fold_all)(k) / k->divisor));
}
