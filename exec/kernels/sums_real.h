/* sums_real.h: template of sums.c. */
#include "real.h"

/* `sum` and `mean`, by name. */
static tsr_status TSR_R(row_sums)(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, out;
    uint64_t rows = call->work->dims[0], columns = call->work->dims[1];
    double factor = strcmp(call->work->name, "mean") == 0 ? (double)columns : 1;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, tsr__product3(rows, columns, 1), &x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, rows, &out));
    for (uint64_t row = 0; row < rows; row++) {
        TSR_REAL value = (TSR_REAL)(TSR_R(tsr_row_sum)(&x, row * columns, columns) / factor);
        TSR_R(tsr_store)(&out, row, 1, &value);
    }
    return TSR_OK;
}

/* The sum of `rows` rows of x, columns [at, at + n). */
static void TSR_R(add_rows)(const struct tsr_elems *x, uint64_t rows, uint64_t columns, uint64_t at,
                            unsigned n, const struct tsr_elems *out)
{
    double sum[TSR_BLOCK] = {0};
    TSR_REAL part[TSR_BLOCK];
    for (uint64_t row = 0; row < rows; row++) {
        TSR_R(tsr_load)(x, row * columns + at, n, part);
        for (unsigned i = 0; i < n; i++)
            sum[i] += (double)part[i];
    }
    for (unsigned i = 0; i < n; i++)
        part[i] = (TSR_REAL)sum[i];
    TSR_R(tsr_store)(out, at, n, part);
}

static tsr_status TSR_R(sum_rows)(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, out;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &out));
    if (out.n ? x.n % out.n != 0 : x.n != 0)
        return tsr__defect(call, "slot 0: %llu elements are no rows of %llu",
                           (unsigned long long)x.n, (unsigned long long)out.n);
    TSR_EACH_BLOCK(at, n, 0, out.n)
    TSR_R(add_rows)(&x, x.n / out.n, out.n, at, (unsigned)n, &out);
    return TSR_OK;
}

static tsr_status TSR_R(column_sums)(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, out;
    uint64_t rows = call->work->dims[0], columns = call->work->dims[1];
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, tsr__product3(rows, columns, 1), &x));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, columns, &out));
    TSR_EACH_BLOCK(at, n, 0, columns)
    TSR_R(add_rows)(&x, rows, columns, at, (unsigned)n, &out);
    return TSR_OK;
}

static tsr_status TSR_R(mean_all)(const struct tsr_kernel_call *call)
{
    struct tsr_elems w, out;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &w));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, 1, &out));
    TSR_REAL mean = (TSR_REAL)(TSR_R(tsr_row_sum)(&w, 0, w.n) / (double)w.n);
    TSR_R(tsr_store)(&out, 0, 1, &mean);
    return TSR_OK;
}

static tsr_status TSR_R(scale_weight_grad)(const struct tsr_kernel_call *call)
{
    struct tsr_elems g, x, out;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &g));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, g.n, &x));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &out));
    TSR_REAL each = (TSR_REAL)(TSR_R(tsr_row_dot)(&g, &x, 0, g.n) / (double)out.n);
    TSR_R(tsr_store_same)(&out, 0, out.n, each);
    return TSR_OK;
}
