/* softmax_real.h: template of softmax.c. */
#include "real.h"

/* Rows of x (slot 0), of y (slot 1; NULL: none) and of the output. */
struct TSR_R(rows) {
    uint64_t rows, columns;
    struct tsr_elems x, y, out;
};

static tsr_status TSR_R(take_rows)(const struct tsr_kernel_call *call, bool two, unsigned out,
                                   struct TSR_R(rows) * k)
{
    k->rows = call->work->dims[0];
    k->columns = call->work->dims[1];
    uint64_t n = tsr__product3(k->rows, k->columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k->x));
    if (two)
        TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, n, &k->y));
    return tsr__out(call, out, TSR_OPERAND_FLOAT, n, &k->out);
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* The first `seen` columns count; the rest gets 0, and so does a row of which nothing counts. */
static void TSR_R(softmax_row)(const struct TSR_R(rows) * k, uint64_t first, uint64_t seen)
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
    TSR_R(tsr_store_same)(&k->out, first + seen, k->columns - seen, 0);
}

static tsr_status TSR_R(softmax)(const struct tsr_kernel_call *call)
{
    struct TSR_R(rows) k;
    bool causal = tsr__arg(call, 0) != 0;
    TSR_TRY(TSR_R(take_rows)(call, false, 1, &k));
    for (uint64_t row = 0; row < k.rows && k.columns; row++)
        TSR_R(softmax_row)(&k, row * k.columns, causal ? row % k.columns + 1 : k.columns);
    return TSR_OK;
}

static tsr_status TSR_R(softmax_backward)(const struct tsr_kernel_call *call)
{
    struct TSR_R(rows) k;
    TSR_REAL g[TSR_BLOCK], p[TSR_BLOCK];
    TSR_TRY(TSR_R(take_rows)(call, true, 2, &k));
    for (uint64_t row = 0; row < k.rows; row++) {
        uint64_t first = row * k.columns;
        TSR_REAL sum = (TSR_REAL)TSR_R(tsr_row_dot)(&k.x, &k.y, first, k.columns);
        TSR_EACH_BLOCK(at, n, first, k.columns)
        {
            TSR_R(tsr_load)(&k.x, at, n, g);
            TSR_R(tsr_load)(&k.y, at, n, p);
            for (unsigned i = 0; i < n; i++)
                g[i] = p[i] * (g[i] - sum);
            TSR_R(tsr_store)(&k.out, at, n, g);
        }
    }
    return TSR_OK;
}

/* ---- log-softmax ----------------------------------------------------------------------------- */

/* out = x - max - log_sum, which is more exact than subtracting their sum. */
static void TSR_R(log_softmax_row)(const struct TSR_R(rows) * k, uint64_t first, TSR_REAL max,
                                   TSR_REAL log_sum)
{
    TSR_REAL part[TSR_BLOCK];
    TSR_EACH_BLOCK(at, n, first, k->columns)
    {
        TSR_R(tsr_load)(&k->x, at, n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] = part[i] - max - log_sum;
        TSR_R(tsr_store)(&k->out, at, n, part);
    }
}

static tsr_status TSR_R(log_softmax)(const struct tsr_kernel_call *call)
{
    struct TSR_R(rows) k;
    TSR_TRY(TSR_R(take_rows)(call, false, 1, &k));
    for (uint64_t row = 0; row < k.rows; row++) {
        uint64_t first = row * k.columns;
        TSR_REAL max = TSR_R(tsr_row_max)(&k.x, first, k.columns);
        double sum = TSR_R(tsr_row_exp_sum)(&k.x, first, k.columns, max);
        TSR_R(log_softmax_row)(&k, first, max, (TSR_REAL)log(sum));
    }
    return TSR_OK;
}

static tsr_status TSR_R(log_softmax_backward)(const struct tsr_kernel_call *call)
{
    struct TSR_R(rows) k;
    TSR_REAL g[TSR_BLOCK], y[TSR_BLOCK];
    TSR_TRY(TSR_R(take_rows)(call, true, 2, &k));
    for (uint64_t row = 0; row < k.rows; row++) {
        uint64_t first = row * k.columns;
        TSR_REAL sum = (TSR_REAL)TSR_R(tsr_row_sum)(&k.x, first, k.columns);
        TSR_EACH_BLOCK(at, n, first, k.columns)
        {
            TSR_R(tsr_load)(&k.x, at, n, g);
            TSR_R(tsr_load)(&k.y, at, n, y);
            for (unsigned i = 0; i < n; i++)
                g[i] -= TSR_R(tsr_exp)(y[i]) * sum;
            TSR_R(tsr_store)(&k.out, at, n, g);
        }
    }
    return TSR_OK;
}

/* ---- a vocabulary that is cut ---------------------------------------------------------------- */

static tsr_status TSR_R(row_max)(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, out;
    uint64_t rows = call->work->dims[0], columns = call->work->dims[1];
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, tsr__product3(rows, columns, 1), &x));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, rows, &out));
    for (uint64_t row = 0; row < rows; row++) {
        TSR_REAL max = TSR_R(tsr_row_max)(&x, row * columns, columns);
        TSR_R(tsr_store)(&out, row, 1, &max);
    }
    return TSR_OK;
}

static tsr_status TSR_R(row_exp_sum)(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, max, out;
    uint64_t rows = call->work->dims[0], columns = call->work->dims[1];
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, tsr__product3(rows, columns, 1), &x));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, rows, &max));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, rows, &out));
    for (uint64_t row = 0; row < rows; row++) {
        TSR_REAL sum = (TSR_REAL)TSR_R(tsr_row_exp_sum)(&x, row * columns, columns,
                                                        TSR_R(tsr_load_one)(&max, row));
        TSR_R(tsr_store)(&out, row, 1, &sum);
    }
    return TSR_OK;
}

static tsr_status TSR_R(log_softmax_tp)(const struct tsr_kernel_call *call)
{
    struct TSR_R(rows) k;
    struct tsr_elems max, sum;
    TSR_TRY(TSR_R(take_rows)(call, false, 3, &k));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.rows, &max));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k.rows, &sum));
    for (uint64_t row = 0; row < k.rows; row++)
        TSR_R(log_softmax_row)
    (&k, row * k.columns, TSR_R(tsr_load_one)(&max, row),
     TSR_M(log)(TSR_R(tsr_load_one)(&sum, row)));
    return TSR_OK;
}
