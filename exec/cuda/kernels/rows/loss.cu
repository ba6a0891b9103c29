/* loss.cu: the losses. A label that is no column makes the loss a NaN. */
#include "exec/cuda/kernels/team.h"

#include "exec/kernels/rows/loss.h"

#define TSR_REAL_F64 0
#include "exec/cuda/kernels/rows/exponentials_real.h"
#include "exec/cuda/kernels/rows/loss_team_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/cuda/kernels/rows/exponentials_real.h"
#include "exec/cuda/kernels/rows/loss_team_real.h"
#undef TSR_REAL_F64

#define BOTH(name, type)                         \
    TSR_LONG_KERNEL(tsr_cuda_##name##_f32, type) \
    {                                            \
        name##_f32(&k);                          \
    }                                            \
    TSR_LONG_KERNEL(tsr_cuda_##name##_f64, type) \
    {                                            \
        name##_f64(&k);                          \
    }

BOTH(nll, struct tsr_nll)
TSR_GROWING_KERNEL(nll_backward, struct tsr_cross_entropy)
TSR_GROWING_KERNEL(log_p_backward, struct tsr_cross_entropy)
TSR_GROWING_KERNEL(cross_entropy_rows, struct tsr_cross_entropy)
BOTH(cross_entropy_loss, struct tsr_cross_entropy)
TSR_GRID_CODE(nll_gather, tsr_nll_gather, struct tsr_nll_gather)
TSR_GRID_CODE(mse_backward, tsr_mse_backward, struct tsr_mse)
