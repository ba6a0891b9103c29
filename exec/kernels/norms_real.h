/* norms_real.h: template of norms.c. */
#include "real.h"

/* Operands of a norm; data NULL: absent. A LayerNorm has b and mean. */
struct TSR_R(norm) {
    bool centered; /* LayerNorm */
    uint64_t rows, columns;
    double eps;
    struct tsr_elems x, w, b, y, mean, rstd;
    struct tsr_elems g, gx, gw, gb;
    struct tsr_elems a, delta; /* x = a + delta is written first */
    struct tsr_elems gh;       /* added to gx */
    double *sum_w, *sum_b;     /* columns each, or NULL */
};

static void TSR_R(statistics)(const struct TSR_R(norm) * k, uint64_t row, TSR_REAL *mean,
                              TSR_REAL *rstd)
{
    uint64_t first = row * k->columns;
    double n = (double)k->columns;
    *mean = k->centered ? (TSR_REAL)(TSR_R(tsr_row_sum)(&k->x, first, k->columns) / n) : 0;
    double variance = TSR_R(tsr_row_squares)(&k->x, first, k->columns, *mean) / n;
    *rstd = (TSR_REAL)(1 / sqrt(variance + k->eps));
}

static void TSR_R(norm_row)(const struct TSR_R(norm) * k, uint64_t row)
{
    TSR_REAL mean, rstd, x[TSR_BLOCK], w[TSR_BLOCK], b[TSR_BLOCK];
    uint64_t first = row * k->columns;
    TSR_R(statistics)(k, row, &mean, &rstd);
    TSR_EACH_BLOCK(at, n, first, k->columns)
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

static bool TSR_R(is_centered)(const struct tsr_kernel_call *call)
{
    return strstr(call->work->name, "layer_norm") != NULL;
}

static tsr_status TSR_R(norm)(const struct tsr_kernel_call *call)
{
    struct TSR_R(norm) k = {.centered = TSR_R(is_centered)(call),
                            .rows = call->work->dims[0],
                            .columns = call->work->dims[1],
                            .eps = call->work->constants[0]};
    uint64_t n = tsr__product3(k.rows, k.columns, 1);
    unsigned rstd = k.centered ? 5 : 4;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k.x));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.columns, &k.w));
    if (k.centered)
        TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k.columns, &k.b));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, n, &k.y));
    if (k.centered && tsr_slot(call, 4))
        TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, k.rows, &k.mean));
    if (tsr_slot(call, rstd))
        TSR_TRY(tsr__out(call, rstd, TSR_OPERAND_FLOAT, k.rows, &k.rstd));
    for (uint64_t row = 0; row < k.rows; row++)
        TSR_R(norm_row)(&k, row);
    return TSR_OK;
}

/* x is what the sum is when it has been rounded. */
static void TSR_R(sum_row)(const struct TSR_R(norm) * k, uint64_t row)
{
    TSR_REAL a[TSR_BLOCK], delta[TSR_BLOCK];
    uint64_t first = row * k->columns;
    TSR_EACH_BLOCK(at, n, first, k->columns)
    {
        TSR_R(tsr_load)(&k->a, at, n, a);
        TSR_R(tsr_load)(&k->delta, at, n, delta);
        for (unsigned i = 0; i < n; i++)
            a[i] += delta[i];
        TSR_R(tsr_store)(&k->x, at, n, a);
    }
}

static tsr_status TSR_R(add_norm)(const struct tsr_kernel_call *call)
{
    struct TSR_R(norm) k = {.centered = TSR_R(is_centered)(call),
                            .rows = call->work->dims[0],
                            .columns = call->work->dims[1],
                            .eps = call->work->constants[0]};
    uint64_t n = tsr__product3(k.rows, k.columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k.a));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, n, &k.delta));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k.columns, &k.w));
    if (k.centered)
        TSR_TRY(tsr__in(call, 3, TSR_OPERAND_FLOAT, k.columns, &k.b));
    TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, n, &k.x));
    TSR_TRY(tsr__out(call, 5, TSR_OPERAND_FLOAT, n, &k.y));
    if (k.centered && tsr_slot(call, 6))
        TSR_TRY(tsr__out(call, 6, TSR_OPERAND_FLOAT, k.rows, &k.mean));
    if (tsr_slot(call, 7))
        TSR_TRY(tsr__out(call, 7, TSR_OPERAND_FLOAT, k.rows, &k.rstd));
    for (uint64_t row = 0; row < k.rows; row++) {
        TSR_R(sum_row)(&k, row);
        TSR_R(norm_row)(&k, row);
    }
    return TSR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Block [at, at + n) of a row: u = the normalized x, v = g w; the sums of columns. */
static void TSR_R(backward_block)(const struct TSR_R(norm) * k, uint64_t at, uint64_t first,
                                  unsigned n, const TSR_REAL of_row[2], TSR_REAL *u, TSR_REAL *v)
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

static void TSR_R(add_to_columns)(const struct TSR_R(norm) * k, uint64_t row)
{
    TSR_REAL x[TSR_BLOCK], g[TSR_BLOCK];
    TSR_REAL mean = k->centered ? TSR_R(tsr_load_one)(&k->mean, row) : 0;
    TSR_REAL rstd = TSR_R(tsr_load_one)(&k->rstd, row);
    uint64_t first = row * k->columns;
    TSR_EACH_BLOCK(at, n, first, k->columns)
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
static void TSR_R(input_row)(const struct TSR_R(norm) * k, uint64_t row)
{
    TSR_REAL u[TSR_BLOCK], v[TSR_BLOCK], of_row[2] = {0, TSR_R(tsr_load_one)(&k->rstd, row)};
    struct TSR_R(tsr_sum) sum = {{0}}, product = {{0}};
    uint64_t first = row * k->columns;
    if (k->centered)
        of_row[0] = TSR_R(tsr_load_one)(&k->mean, row);
    TSR_EACH_BLOCK(at, n, first, k->columns)
    {
        TSR_R(backward_block)(k, at, first, (unsigned)n, of_row, u, v);
        TSR_R(tsr_sum_add)(&sum, v, (unsigned)n);
        TSR_R(tsr_sum_add_product)(&product, u, v, (unsigned)n);
    }
    double columns = (double)k->columns;
    TSR_REAL mean_v = k->centered ? (TSR_REAL)(TSR_R(tsr_sum_total)(&sum) / columns) : 0;
    TSR_REAL mean_uv = (TSR_REAL)(TSR_R(tsr_sum_total)(&product) / columns);
    TSR_EACH_BLOCK(at, n, first, k->columns)
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

static tsr_status TSR_R(backward_operands)(const struct tsr_kernel_call *call,
                                           struct TSR_R(norm) * k)
{
    uint64_t n = tsr__product3(k->rows, k->columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k->g));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, n, &k->x));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k->columns, &k->w));
    if (tsr_slot(call, 3))
        TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, n, &k->gx));
    if (tsr_slot(call, 4))
        TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, k->columns, &k->gw));
    if (k->centered && tsr_slot(call, 5))
        TSR_TRY(tsr__out(call, 5, TSR_OPERAND_FLOAT, k->columns, &k->gb));
    if (k->centered)
        TSR_TRY(tsr__in(call, 6, TSR_OPERAND_FLOAT, k->rows, &k->mean));
    return tsr__in(call, k->centered ? 7 : 6, TSR_OPERAND_FLOAT, k->rows, &k->rstd);
}

static void TSR_R(store_columns)(const struct tsr_elems *out, const double *sum)
{
    for (uint64_t i = 0; sum && i < out->n; i++) {
        TSR_REAL value = (TSR_REAL)sum[i];
        TSR_R(tsr_store)(out, i, 1, &value);
    }
}

static tsr_status TSR_R(run_backward)(const struct tsr_kernel_call *call, struct TSR_R(norm) * k)
{
    double *sums = calloc(2 * k->columns + 1, sizeof *sums);
    if (!sums)
        return tsr__no_memory(call);
    k->sum_w = k->gw.data ? sums : NULL;
    k->sum_b = k->gb.data ? sums + k->columns : NULL;
    for (uint64_t row = 0; row < k->rows; row++) {
        if (k->sum_w || k->sum_b)
            TSR_R(add_to_columns)(k, row);
        if (k->gx.data) /* last: it may be g's place, or gh's */
            TSR_R(input_row)(k, row);
    }
    TSR_R(store_columns)(&k->gw, k->sum_w);
    TSR_R(store_columns)(&k->gb, k->sum_b);
    free(sums);
    return TSR_OK;
}

static tsr_status TSR_R(norm_backward)(const struct tsr_kernel_call *call)
{
    struct TSR_R(norm) k = {.centered = TSR_R(is_centered)(call),
                            .rows = call->work->dims[0],
                            .columns = call->work->dims[1]};
    TSR_TRY(TSR_R(backward_operands)(call, &k));
    return TSR_R(run_backward)(call, &k);
}

static tsr_status TSR_R(add_norm_backward)(const struct tsr_kernel_call *call)
{
    struct TSR_R(norm) k = {.centered = TSR_R(is_centered)(call),
                            .rows = call->work->dims[0],
                            .columns = call->work->dims[1]};
    uint64_t n = tsr__product3(k.rows, k.columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k.g));
    if (tsr_slot(call, 1))
        TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, n, &k.gh));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, n, &k.x));
    TSR_TRY(tsr__in(call, 3, TSR_OPERAND_FLOAT, k.columns, &k.w));
    if (tsr_slot(call, 4))
        TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, n, &k.gx));
    if (tsr_slot(call, 5))
        TSR_TRY(tsr__out(call, 5, TSR_OPERAND_FLOAT, k.columns, &k.gw));
    if (k.centered && tsr_slot(call, 6))
        TSR_TRY(tsr__out(call, 6, TSR_OPERAND_FLOAT, k.columns, &k.gb));
    if (k.centered)
        TSR_TRY(tsr__in(call, 7, TSR_OPERAND_FLOAT, k.rows, &k.mean));
    TSR_TRY(tsr__in(call, 8, TSR_OPERAND_FLOAT, k.rows, &k.rstd));
    return TSR_R(run_backward)(call, &k);
}
