/* norms.c: RMSNorm and LayerNorm, forward and backward, also of a sum that is made on the way. A
 * row at a time; its mean and its 1 / sqrt are those that are stored. Sums over rows are carried in
 * f64.
 */
#include <stdlib.h>

#include "call.h"
#include "rows.h"
#include "table.h"

#define TSR_REAL_F64 0
#include "norms_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "norms_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(norm)
TSR_KERNEL_OF_REALS(norm_backward)
TSR_KERNEL_OF_REALS(add_norm)
TSR_KERNEL_OF_REALS(add_norm_backward)
