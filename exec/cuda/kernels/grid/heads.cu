/* heads.cu: rows of heads, and their rotation. */
#include "exec/cuda/kernels/code.h"

#include "exec/kernels/grid/grid_heads.h"
#include "exec/kernels/grid/grid_rotary.h"
#include "exec/kernels/grid/grid_rotary_table.h"

TSR_GRID_CODE(place, tsr_grid_place, struct tsr_placing)
TSR_GRID_CODE(head_sums, tsr_grid_head_sums, struct tsr_head_sums)
TSR_GRID_CODE(rotary, tsr_grid_rotary, struct tsr_rotaries)
TSR_GRID_CODE_OF_ONE(rotary_table, tsr_grid_rotary_table, struct tsr_rotary_table)
TSR_GRID_CODE_OF_ONE(conjugate, tsr_grid_conjugate, struct tsr_conjugate)
