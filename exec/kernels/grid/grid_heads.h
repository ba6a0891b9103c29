/* grid_heads.h: rows of one length that become rows of another, and sums of heads: a head of a
 * token is a row.
 */
#ifndef TSR_KERNELS_GRID_HEADS_H
#define TSR_KERNELS_GRID_HEADS_H

#include "exec/kernels/grid/grid_copy.h"

/* Row r of `to`, of `rows`, gets [0, keep) of row r / times of `from` at `offset`; `zeros`: and
 * zeros elsewhere, else the rest of it is left alone. */
struct tsr_placing {
    struct tsr_elems from, to;
    uint64_t rows, from_row, to_row, keep, offset, times;
    bool zeros;
};

/* out, rows of d: the sum of `times` rows of g each. */
struct tsr_head_sums {
    struct tsr_elems g, out;
    uint64_t d, times;
};

/* Blocks that make up what is written of a row. */
TSR_ANYWHERE uint64_t tsr_placing_blocks(const struct tsr_placing *k)
{
    return tsr_grid_blocks(k->zeros ? k->to_row : k->keep);
}

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_heads_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_heads_real.h"
#undef TSR_REAL_F64

#endif
