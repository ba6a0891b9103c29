/* sums.c: sums and means of rows, of columns, of everything. */
#include <stdlib.h>

#include "call.h"
#include "rows.h"
#include "table.h"

#define TSR_REAL_F64 0
#include "sums_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "sums_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(row_sums)
TSR_KERNEL_OF_REALS(sum_rows)
TSR_KERNEL_OF_REALS(column_sums)
TSR_KERNEL_OF_REALS(mean_all)
TSR_KERNEL_OF_REALS(scale_weight_grad)
