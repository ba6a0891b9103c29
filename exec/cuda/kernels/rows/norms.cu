/* norms.cu: RMSNorm and LayerNorm, forward and backward. A row is read once; while its statistics
 * are made it stays in shared memory. Sums over rows: parts.h.
 */
#include "exec/cuda/kernels/team.h"

#include "exec/kernels/rows/norms.h"

#define TSR_REAL_F64 0
#include "exec/cuda/kernels/rows/norms_team_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/cuda/kernels/rows/norms_team_real.h"
#undef TSR_REAL_F64

TSR_TEAM_KERNEL(norm, struct tsr_norm)
TSR_TEAM_KERNEL(norm_backward, struct tsr_norm)
