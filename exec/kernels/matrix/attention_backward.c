/* attention_backward.c: the gradients of attention, a block of queries at a time: weights again
 * from scores and lse; the gradients of a key/value head are summed over its query heads in order.
 */
#include <stdlib.h>

#include "exec/kernels/call/table.h"
#include "exec/kernels/matrix/attention.h"
#include "exec/kernels/matrix/gemm.h"
#include "exec/kernels/tensor/rows.h"

#define TSR_REAL_F64 0
#include "exec/kernels/matrix/attention_backward_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/matrix/attention_backward_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(attention_backward)
