/* softmax.cu: softmax and log-softmax of rows. The largest element and the sum of exponentials are
 * found in one pass; the second one goes backwards, from what was read last.
 */
#include "team.h"

#include "exec/kernels/softmax.h"

#define TSR_REAL_F64 0
#include "exponentials_real.h"
#include "softmax_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exponentials_real.h"
#include "softmax_real.h"
#undef TSR_REAL_F64

#define BOTH(name)                                             \
    TSR_LONG_KERNEL(tsr_cuda_##name##_f32, struct tsr_softmax) \
    {                                                          \
        name##_f32(&k);                                        \
    }                                                          \
    TSR_LONG_KERNEL(tsr_cuda_##name##_f64, struct tsr_softmax) \
    {                                                          \
        name##_f64(&k);                                        \
    }

BOTH(softmax)
BOTH(softmax_backward)
BOTH(log_softmax)
BOTH(log_softmax_backward)
BOTH(row_max)
BOTH(row_exp_sum)
BOTH(log_softmax_tp)
