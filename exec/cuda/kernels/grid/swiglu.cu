/* swiglu.cu: exec/kernels/grid/grid_swiglu.h on a GPU. */
#include "exec/cuda/kernels/code.h"

#include "exec/kernels/grid/grid_swiglu.h"

TSR_GRID_CODE(swiglu, tsr_grid_swiglu, struct tsr_swiglu)
TSR_GRID_CODE(swiglu_backward, tsr_grid_swiglu_backward, struct tsr_swiglu)
