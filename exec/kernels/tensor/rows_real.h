/* rows_real.h: template of rows.h. */
#include "exec/kernels/tensor/real.h"

/* -infinity of no elements; a NaN if there is one. */
TSR_ANYWHERE TSR_REAL TSR_R(tsr_row_max)(const struct tsr_elems *x, uint64_t first,
                                         uint64_t columns)
{
    TSR_REAL max = -(TSR_REAL)INFINITY, part[TSR_BLOCK];
    bool nan = false;
    TSR_EACH_BLOCK(at, n, first, columns)
    {
        TSR_R(tsr_load)(x, at, n, part);
        for (unsigned i = 0; i < n; i++) {
            max = part[i] > max ? part[i] : max;
            nan |= part[i] != part[i];
        }
    }
    return nan ? (TSR_REAL)NAN : max;
}

/* Sum of exp(x - max); masked elements, which are -infinity, count as 0 also if all are. */
TSR_ANYWHERE double TSR_R(tsr_row_exp_sum)(const struct tsr_elems *x, uint64_t first,
                                           uint64_t columns, TSR_REAL max)
{
    struct TSR_R(tsr_sum) sum = {{0}};
    TSR_REAL part[TSR_BLOCK];
    if (max == -(TSR_REAL)INFINITY)
        return 0;
    TSR_EACH_BLOCK(at, n, first, columns)
    {
        TSR_R(tsr_load)(x, at, n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] = TSR_R(tsr_exp)(part[i] - max);
        TSR_R(tsr_sum_add)(&sum, part, (unsigned)n);
    }
    return TSR_R(tsr_sum_total)(&sum);
}

TSR_ANYWHERE double TSR_R(tsr_row_sum)(const struct tsr_elems *x, uint64_t first, uint64_t columns)
{
    struct TSR_R(tsr_sum) sum = {{0}};
    TSR_REAL part[TSR_BLOCK];
    TSR_EACH_BLOCK(at, n, first, columns)
    {
        TSR_R(tsr_load)(x, at, n, part);
        TSR_R(tsr_sum_add)(&sum, part, (unsigned)n);
    }
    return TSR_R(tsr_sum_total)(&sum);
}

/* Sum of the products of the same elements. */
TSR_ANYWHERE double TSR_R(tsr_row_dot)(const struct tsr_elems *x, const struct tsr_elems *y,
                                       uint64_t first, uint64_t columns)
{
    struct TSR_R(tsr_sum) sum = {{0}};
    TSR_REAL a[TSR_BLOCK], b[TSR_BLOCK];
    TSR_EACH_BLOCK(at, n, first, columns)
    {
        TSR_R(tsr_load)(x, at, n, a);
        TSR_R(tsr_load)(y, at, n, b);
        TSR_R(tsr_sum_add_product)(&sum, a, b, (unsigned)n);
    }
    return TSR_R(tsr_sum_total)(&sum);
}

/* Sum of (x - center)^2. */
TSR_ANYWHERE double TSR_R(tsr_row_squares)(const struct tsr_elems *x, uint64_t first,
                                           uint64_t columns, TSR_REAL center)
{
    struct TSR_R(tsr_sum) sum = {{0}};
    TSR_REAL part[TSR_BLOCK];
    TSR_EACH_BLOCK(at, n, first, columns)
    {
        TSR_R(tsr_load)(x, at, n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] -= center;
        TSR_R(tsr_sum_add_product)(&sum, part, part, (unsigned)n);
    }
    return TSR_R(tsr_sum_total)(&sum);
}
