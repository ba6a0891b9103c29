/* softmax.c: softmax and log-softmax of rows, and their parts where a vocabulary is cut over ranks.
 */
#include "call.h"
#include "rows.h"
#include "table.h"

#define TSR_REAL_F64 0
#include "softmax_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "softmax_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(softmax)
TSR_KERNEL_OF_REALS(softmax_backward)
TSR_KERNEL_OF_REALS(log_softmax)
TSR_KERNEL_OF_REALS(log_softmax_backward)
TSR_KERNEL_OF_REALS(row_max)
TSR_KERNEL_OF_REALS(row_exp_sum)
TSR_KERNEL_OF_REALS(log_softmax_tp)
