/* norms_real.h: template of norms.c. */
#include "exec/kernels/tensor/real.h"

static void TSR_R(statistics)(const struct tsr_norm *k, uint64_t row, TSR_REAL *mean,
                              TSR_REAL *rstd)
{
    uint64_t columns = k->shape.columns, first = row * columns;
    double n = (double)columns;
    *mean = k->centered ? (TSR_REAL)(TSR_R(tsr_row_sum)(&k->x, first, columns) / n) : 0;
    double variance = TSR_R(tsr_row_squares)(&k->x, first, columns, *mean) / n;
    *rstd = (TSR_REAL)(1 / sqrt(variance + k->eps));
}

/* x is what the sum is when it has been rounded. */
static void TSR_R(sum_row)(const struct tsr_norm *k, uint64_t row)
{
    TSR_REAL a[TSR_BLOCK], delta[TSR_BLOCK];
    uint64_t first = row * k->shape.columns;
    TSR_EACH_BLOCK(at, n, first, k->shape.columns)
    {
        TSR_R(tsr_load)(&k->a, at, n, a);
        TSR_R(tsr_load)(&k->delta, at, n, delta);
        for (unsigned i = 0; i < n; i++)
            a[i] += delta[i];
        TSR_R(tsr_store)(&k->x, at, n, a);
    }
}

static void TSR_R(norm_row)(const struct tsr_norm *k, uint64_t row)
{
    TSR_REAL mean, rstd, x[TSR_BLOCK], w[TSR_BLOCK], b[TSR_BLOCK];
    uint64_t first = row * k->shape.columns;
    TSR_R(statistics)(k, row, &mean, &rstd);
    TSR_EACH_BLOCK(at, n, first, k->shape.columns)
    {
        TSR_R(tsr_load)(&k->x, at, n, x);
        TSR_R(tsr_load)(&k->w, at - first, n, w);
        if (k->centered)
            TSR_R(tsr_load)(&k->b, at - first, n, b);
        for (unsigned i = 0; i < n; i++)
            x[i] = (x[i] - mean) * rstd * w[i] + (k->centered ? b[i] : 0);
        TSR_R(tsr_store)(&k->y, at, n, x);
    }
    if (k->mean.data)
        TSR_R(tsr_store)(&k->mean, row, 1, &mean);
    if (k->rstd.data)
        TSR_R(tsr_store)(&k->rstd, row, 1, &rstd);
}

static void TSR_R(norm_rows)(const struct tsr_norm *k, uint64_t begin, uint64_t step)
{
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        if (k->a.data)
            TSR_R(sum_row)(k, row);
        TSR_R(norm_row)(k, row);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Block [at, at + n) of a row: u = the normalized x, v = g w; the sums of columns. */
static void TSR_R(backward_block)(const struct tsr_norm *k, uint64_t at, uint64_t first, unsigned n,
                                  const TSR_REAL of_row[2], TSR_REAL *u, TSR_REAL *v)
{
    TSR_REAL w[TSR_BLOCK];
    TSR_R(tsr_load)(&k->x, at, n, u);
    TSR_R(tsr_load)(&k->g, at, n, v);
    TSR_R(tsr_load)(&k->w, at - first, n, w);
    for (unsigned i = 0; i < n; i++) {
        u[i] = (u[i] - of_row[0]) * of_row[1];
        v[i] *= w[i];
    }
}

static void TSR_R(add_to_columns)(const struct tsr_norm *k, uint64_t row)
{
    TSR_REAL x[TSR_BLOCK], g[TSR_BLOCK];
    TSR_REAL mean = k->centered ? TSR_R(tsr_load_one)(&k->mean, row) : 0;
    TSR_REAL rstd = TSR_R(tsr_load_one)(&k->rstd, row);
    uint64_t first = row * k->shape.columns;
    TSR_EACH_BLOCK(at, n, first, k->shape.columns)
    {
        TSR_R(tsr_load)(&k->x, at, n, x);
        TSR_R(tsr_load)(&k->g, at, n, g);
        for (unsigned i = 0; i < n && k->sum_w; i++)
            k->sum_w[at - first + i] += (double)(g[i] * ((x[i] - mean) * rstd));
        for (unsigned i = 0; i < n && k->sum_b; i++)
            k->sum_b[at - first + i] += (double)g[i];
    }
}

/* gx = rstd (v - mean(v) - u mean(u v)) + gh; RMSNorm without the first mean. */
static void TSR_R(input_row)(const struct tsr_norm *k, uint64_t row)
{
    TSR_REAL u[TSR_BLOCK], v[TSR_BLOCK], of_row[2] = {0, TSR_R(tsr_load_one)(&k->rstd, row)};
    struct TSR_R(tsr_sum) sum = {{0}}, product = {{0}};
    uint64_t first = row * k->shape.columns;
    if (k->centered)
        of_row[0] = TSR_R(tsr_load_one)(&k->mean, row);
    TSR_EACH_BLOCK(at, n, first, k->shape.columns)
    {
        TSR_R(backward_block)(k, at, first, (unsigned)n, of_row, u, v);
        TSR_R(tsr_sum_add)(&sum, v, (unsigned)n);
        TSR_R(tsr_sum_add_product)(&product, u, v, (unsigned)n);
    }
    double columns = (double)k->shape.columns;
    TSR_REAL mean_v = k->centered ? (TSR_REAL)(TSR_R(tsr_sum_total)(&sum) / columns) : 0;
    TSR_REAL mean_uv = (TSR_REAL)(TSR_R(tsr_sum_total)(&product) / columns);
    TSR_EACH_BLOCK(at, n, first, k->shape.columns)
    {
        TSR_R(backward_block)(k, at, first, (unsigned)n, of_row, u, v);
        for (unsigned i = 0; i < n; i++)
            v[i] = of_row[1] * (v[i] - mean_v - u[i] * mean_uv);
        if (k->gh.data)
            TSR_R(tsr_load)(&k->gh, at, n, u);
        for (unsigned i = 0; i < n && k->gh.data; i++)
            v[i] += u[i];
        TSR_R(tsr_store)(&k->gx, at, n, v);
    }
}

static void TSR_R(store_columns)(const struct tsr_elems *out, const double *sum)
{
    for (uint64_t i = 0; sum && i < out->n; i++) {
        TSR_REAL value = (TSR_REAL)sum[i];
        TSR_R(tsr_store)(out, i, 1, &value);
    }
}

/* Sums over rows: all of them from one call. */
static void TSR_R(norm_backward_rows)(const struct tsr_norm *k, uint64_t begin, uint64_t step)
{
    for (uint64_t row = begin; row < k->shape.rows; row += step) {
        if (k->sum_w || k->sum_b)
            TSR_R(add_to_columns)(k, row);
        if (k->gx.data) /* last: it may be g's place, or gh's */
            TSR_R(input_row)(k, row);
    }
    TSR_R(store_columns)(&k->gw, k->sum_w);
    TSR_R(store_columns)(&k->gb, k->sum_b);
}
