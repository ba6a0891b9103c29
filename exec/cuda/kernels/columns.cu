/* columns.cu: sums over rows (columns.h). A warp reads a row of a tile, a lane 16 bytes of bf16. */
#include "team.h"

#include "columns.h"

#define TSR_REAL_F64 0
#include "columns_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "columns_real.h"
#undef TSR_REAL_F64

TSR_TEAM_KERNEL(column_parts, struct tsr_column_parts)

TSR_LONG_KERNEL(tsr_cuda_column_ends_f32, struct tsr_column_ends)
{
    column_ends_f32(&k);
}

TSR_LONG_KERNEL(tsr_cuda_column_ends_f64, struct tsr_column_ends)
{
    column_ends_f64(&k);
}
