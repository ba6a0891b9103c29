/* elements.cu: kernels that go over elements, but for the optimizer: functions of elements, copies,
 * heads, and what changes from step to step.
 */
#include "exec/cuda/kernels/code.h"

#include "exec/cuda/kernels/grid/grid.h"
#include "exec/kernels/grid/grid_copy.h"
#include "exec/kernels/grid/grid_elementwise.h"
#include "exec/kernels/grid/grid_initial.h"
#include "exec/kernels/grid/grid_rotary.h"

/* One tensor or a list of them in a launch. */
TSR_LIST_CODE(elementwise, tsr_grid_elementwise, struct tsr_elementwise, TSR_CUDA_STAY)
TSR_GRID_CODE(rare, tsr_grid_rare, struct tsr_elementwise)
TSR_LIST_CODE(list, tsr_grid_list, struct tsr_list, TSR_CUDA_STAY)

/* Copies of words, and tensors cut into pieces and joined. */
TSR_LIST_CODE_OF_ONE(move, tsr_grid_move, struct tsr_list, TSR_CUDA_STAY)
TSR_LIST_CODE_OF_ONE(join_words, tsr_grid_join_words, struct tsr_pieces_list, TSR_CUDA_STAY)
TSR_LIST_CODE(cut_pieces, tsr_grid_cut_pieces, struct tsr_pieces_list, TSR_CUDA_STAY)
TSR_GRID_CODE_OF_ONE(used_map, tsr_grid_used_map, struct tsr_used_map)

/* Rows of heads, and their rotation. */
TSR_GRID_CODE(place, tsr_grid_place, struct tsr_placing)
TSR_GRID_CODE(head_sums, tsr_grid_head_sums, struct tsr_head_sums)
TSR_GRID_CODE(rotary, tsr_grid_rotary, struct tsr_rotaries)
TSR_GRID_CODE_OF_ONE(rotary_table, tsr_grid_rotary_table, struct tsr_rotary_table)
TSR_GRID_CODE_OF_ONE(conjugate, tsr_grid_conjugate, struct tsr_conjugate)

/* silu(gate) * up and its gradients. */
TSR_GRID_CODE(swiglu, tsr_grid_swiglu, struct tsr_swiglu)
TSR_GRID_CODE(swiglu_backward, tsr_grid_swiglu_backward, struct tsr_swiglu)

/* Initial values of parameters. */
TSR_GRID_CODE_OF_ONE(initial, tsr_grid_initial, struct tsr_initial)

/* Writes the table of enum tsr_scalar, for graphs. */
TSR_GRID_KERNEL(tsr_cuda_scalars_write, struct tsr_cuda_table)
{
    for (uint64_t i = tsr_begin(); i < TSR_N_SCALARS; i += tsr_step())
        k.to[i] = k.values[i];
}
