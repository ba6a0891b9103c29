/* elements.cu: functions of elements, one tensor or a list of them in a launch. */
#include "exec/cuda/kernels/code.h"

#include "exec/kernels/grid/grid_list.h"

TSR_LIST_CODE(elementwise, tsr_grid_elementwise, struct tsr_elementwise, TSR_CUDA_STAY)
TSR_GRID_CODE(rare, tsr_grid_rare, struct tsr_elementwise)
TSR_LIST_CODE(list, tsr_grid_list, struct tsr_list, TSR_CUDA_STAY)
