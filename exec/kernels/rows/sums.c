/* sums.c: sums and means of rows, of columns, of everything. */
#include "exec/kernels/rows/sums.h"

#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"

#define TSR_REAL_F64 0
#include "exec/kernels/rows/sums_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/rows/sums_real.h"
#undef TSR_REAL_F64

TSR_CODE(row_sums, row_sums, struct tsr_row_sums);
TSR_CODE(column_sums, column_sums, struct tsr_column_sums);
TSR_CODE(fold, fold, struct tsr_fold);

/* `sum` and `mean`, by name. */
tsr_status tsr__row_sums(const struct tsr_kernel_call *call)
{
    struct tsr_row_sums k = {.shape = {.rows = call->work->dims[0], .columns = call->work->dims[1]},
                             .divisor = 1};
    if (strcmp(call->work->name, "mean") == 0)
        k.divisor = (double)k.shape.columns;
    uint64_t n = tsr__product3(k.shape.rows, k.shape.columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k.x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, k.shape.rows, &k.out));
    return tsr__run(call, &code_row_sums, &k, k.shape.rows);
}

tsr_status tsr__sum_rows(const struct tsr_kernel_call *call)
{
    struct tsr_column_sums k = {.out = {.data = NULL}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.out));
    if (k.out.n ? k.x.n % k.out.n != 0 : k.x.n != 0)
        return tsr__defect(call, "slot 0: %llu elements are no rows of %llu",
                           (unsigned long long)k.x.n, (unsigned long long)k.out.n);
    k.shape.rows = k.out.n ? k.x.n / k.out.n : 0;
    k.shape.columns = k.out.n;
    return tsr__run(call, &code_column_sums, &k, k.shape.columns);
}

tsr_status tsr__column_sums(const struct tsr_kernel_call *call)
{
    struct tsr_column_sums k = {
        .shape = {.rows = call->work->dims[0], .columns = call->work->dims[1]}};
    uint64_t n = tsr__product3(k.shape.rows, k.shape.columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k.x));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, k.shape.columns, &k.out));
    return tsr__run(call, &code_column_sums, &k, k.shape.columns);
}

/* ---- of everything --------------------------------------------------------------------------- */

tsr_status tsr__mean_all(const struct tsr_kernel_call *call)
{
    struct tsr_fold k = {.op = TSR_FOLD_SUM};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.a));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, 1, &k.out));
    k.divisor = (double)k.a.n;
    return tsr__run(call, &code_fold, &k, k.a.n);
}

tsr_status tsr__scale_weight_grad(const struct tsr_kernel_call *call)
{
    struct tsr_fold k = {.op = TSR_FOLD_PRODUCTS};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.a));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.a.n, &k.b));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.out));
    k.divisor = (double)k.out.n;
    return tsr__run(call, &code_fold, &k, k.a.n);
}

tsr_status tsr__mse(const struct tsr_kernel_call *call)
{
    struct tsr_fold k = {.op = TSR_FOLD_SQUARES};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.a));
    if (strcmp(call->work->name, "mse_target") == 0)
        TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.a.n, &k.b));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, 1, &k.out));
    k.divisor = (double)k.a.n;
    return tsr__run(call, &code_fold, &k, k.a.n);
}
