/* softmax.cu: softmax and log-softmax of rows. The largest element and the sum of exponentials are
 * found in one pass; the second one goes backwards, from what was read last.
 */
#include "exec/cuda/kernels/team.h"

#include "exec/kernels/rows/softmax.h"

#define TSR_REAL_F64 0
#include "exec/cuda/kernels/rows/exponentials_real.h"
#include "exec/cuda/kernels/rows/softmax_team_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/cuda/kernels/rows/exponentials_real.h"
#include "exec/cuda/kernels/rows/softmax_team_real.h"
#undef TSR_REAL_F64

TSR_GROWING_KERNEL(softmax, struct tsr_softmax)
TSR_GROWING_KERNEL(softmax_backward, struct tsr_softmax)
TSR_GROWING_KERNEL(log_softmax, struct tsr_softmax)
TSR_GROWING_KERNEL(log_softmax_backward, struct tsr_softmax)
TSR_GROWING_KERNEL(row_max, struct tsr_softmax)
TSR_GROWING_KERNEL(row_exp_sum, struct tsr_softmax)
TSR_GROWING_KERNEL(log_softmax_tp, struct tsr_softmax)
