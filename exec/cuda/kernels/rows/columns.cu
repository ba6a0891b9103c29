/* columns.cu: sums over rows (parts.h). A warp reads a row of a tile, a lane 16 bytes of bf16. */
#include "exec/cuda/kernels/team.h"

#include "exec/cuda/kernels/rows/parts.h"

/* Behind the last row of this chunk. */
TSR_DEVICE uint64_t column_chunk_end(const struct tsr_column_parts *k)
{
    uint64_t end = (tsr_block_y() + 1) * k->chunk;
    return end < k->shape.rows ? end : k->shape.rows;
}

#define TSR_REAL_F64 0
#include "exec/cuda/kernels/rows/columns_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/cuda/kernels/rows/columns_real.h"
#undef TSR_REAL_F64

TSR_TEAM_KERNEL(column_parts, struct tsr_column_parts)

/* ---- sums of whole packs of 16 bits, nothing scaled -------------------------------------------
 */
/* The gradients of biases: several rows are on their way at once, as few registers allow, since
 * nothing but memory is waited for. */

/* Rows of one warp from `row` on, a whole pack of 16 bits from `column` on. */
TSR_DEVICE void column_narrow(const struct tsr_column_parts *k, uint64_t row, uint64_t end,
                              uint64_t step, uint64_t column, float *plain)
{
    uint32_t came[TSR_AHEAD][4];
    float g[TSR_BLOCK];
    const unsigned char *from = k->g.data + 2 * column;
    TSR_NO_UNROLL
    for (; row < end; row += TSR_AHEAD * step) {
        TSR_UNROLL
        for (unsigned a = 0; a < TSR_AHEAD; a++)
            if (row + a * step < end)
                tsr_get_words(from + 2 * (row + a * step) * k->shape.columns, came[a]);
        TSR_UNROLL
        for (unsigned a = 0; a < TSR_AHEAD; a++) {
            if (row + a * step >= end)
                continue;
            tsr_narrow_open(came[a], k->g.dtype, g);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                plain[i] += g[i];
        }
    }
}

TSR_BLOCK_KERNEL(tsr_cuda_column_parts_narrow, struct tsr_column_parts)
{
    unsigned lanes = tsr_alone() ? 1 : TSR_WARP;
    for (unsigned lane = tsr_thread() % lanes; lane < TSR_WARP; lane += lanes) {
        float sum[TSR_BLOCK] = {0};
        uint64_t column = tsr_block_x() * TSR_COLUMNS_TILE + lane * TSR_BLOCK;
        bool there = column < k.shape.columns;
        if (there)
            column_narrow(&k, tsr_block_y() * k.chunk + tsr_thread() / lanes, column_chunk_end(&k),
                          tsr_threads() / lanes, column, sum);
        column_store_f32(&k, lane, column, there ? TSR_BLOCK : 0, sum, k.plain);
    }
}

TSR_BLOCK_KERNEL(tsr_cuda_column_ends_f32, struct tsr_column_ends)
{
    column_ends_f32(&k);
}

TSR_BLOCK_KERNEL(tsr_cuda_column_ends_f64, struct tsr_column_ends)
{
    column_ends_f64(&k);
}
