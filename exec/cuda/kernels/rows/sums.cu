/* sums.cu: sums of rows, and over all elements (parts.h). Sums of columns: columns.cu. */
#include "exec/cuda/kernels/team.h"

#include "exec/cuda/kernels/rows/parts.h"

#define TSR_REAL_F64 0
#include "exec/cuda/kernels/rows/sums_team_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/cuda/kernels/rows/sums_team_real.h"
#undef TSR_REAL_F64

TSR_GROWING_KERNEL(row_sums, struct tsr_row_sums)

TSR_BLOCK_KERNEL(tsr_cuda_fold_parts_f32, struct tsr_fold_parts)
{
    fold_parts_f32(&k);
}

TSR_BLOCK_KERNEL(tsr_cuda_fold_parts_f64, struct tsr_fold_parts)
{
    fold_parts_f64(&k);
}

/* The parts are in f64 anyway. */
TSR_BLOCK_KERNEL(tsr_cuda_fold_ends, struct tsr_fold_ends)
{
    uint32_t item = (uint32_t)tsr_block_x();
    double sum = 0;
    for (uint32_t i = k.first[item] + tsr_thread(); i < k.first[item + 1]; i += tsr_threads())
        sum += k.parts[i];
    sum = tsr_block_sum_f64(sum);
    sum = k.root ? sqrt(sum) * (double)k.scale[item] : sum / k.divisor;
    for (uint64_t i = tsr_thread(); i < k.out[item].n; i += tsr_threads())
        tsr_store_f64(&k.out[item], i, 1, &sum);
}

TSR_GRID_CODE(norm_power, tsr_norm_power, struct tsr_norm_powers)
