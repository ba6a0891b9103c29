/* copies.cu: copies of words, and tensors cut into pieces and joined. */
#include "exec/cuda/kernels/code.h"

#include "exec/kernels/grid/grid_copy.h"
#include "exec/kernels/grid/grid_list.h"
#include "exec/kernels/grid/grid_used_map.h"

TSR_LIST_CODE_OF_ONE(move, tsr_grid_move, struct tsr_list, TSR_CUDA_STAY)
TSR_LIST_CODE_OF_ONE(join_words, tsr_grid_join_words, struct tsr_pieces_list, TSR_CUDA_STAY)
TSR_LIST_CODE(cut_pieces, tsr_grid_cut_pieces, struct tsr_pieces_list, TSR_CUDA_STAY)
TSR_GRID_CODE_OF_ONE(used_map, tsr_grid_used_map, struct tsr_used_map)
