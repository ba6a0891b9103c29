/* scalars.cu: writes the table of enum tsr_scalar. */
#include "exec/cuda/kernels/code.h"

#include "exec/cuda/kernels/grid/scalars.h"

TSR_GRID_KERNEL(tsr_cuda_scalars_write, struct tsr_cuda_table)
{
    for (uint64_t i = tsr_begin(); i < TSR_N_SCALARS; i += tsr_step())
        k.to[i] = k.values[i];
}
