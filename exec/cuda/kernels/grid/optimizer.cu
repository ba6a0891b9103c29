/* optimizer.cu: updates of lists of parameters; a file of its own, since compiling it takes almost
 * as long as all of elements.cu.
 */
#include "exec/cuda/kernels/code.h"

#include "exec/kernels/grid/grid_optimizer.h"

TSR_LIST_CODE(optimizer, tsr_grid_optimizer, struct tsr_optimizer, TSR_CUDA_STAY_WIDE)
TSR_LIST_CODE(optimizer_fused, tsr_grid_optimizer_fused, struct tsr_optimizer, TSR_CUDA_STAY_WIDE)
