/* attention_backward.c: the gradients of attention, a block of queries at a time: weights again
 * from scores and lse; the gradients of a key/value head are summed over its query heads in order.
 */
#include <stdlib.h>

#include "exec/kernels/attention.h"
#include "exec/kernels/gemm.h"
#include "exec/kernels/rows.h"
#include "exec/kernels/table.h"

#define TSR_REAL_F64 0
#include "exec/kernels/attention_backward_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/attention_backward_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(attention_backward)
