/* grid_embedding.h: rows of a table by their numbers, and their gradient. */
#ifndef TSR_EXEC_GRID_EMBEDDING_H
#define TSR_EXEC_GRID_EMBEDDING_H

#include "exec/kernels/grid/grid_copy.h"

struct tsr_embedding {
    struct tsr_elems ids, w, out;
    uint64_t first, rows, columns; /* of the table that this rank has */
};

/* Rows [first, first + rows) of the gradient. Tokens by row, each row's in their order:
 * order[start[row - first]] is the first of count[row - first]. */
struct tsr_embedding_grad {
    struct tsr_elems g, out;
    uint64_t first, rows, columns;
    const uint32_t *start, *count, *order;
};

/* The row of an id, or rows if this rank does not have it. */
TSR_ANYWHERE uint64_t tsr_embedding_row(int64_t id, uint64_t first, uint64_t rows)
{
    uint64_t row = (uint64_t)id - first;
    return id >= 0 && (uint64_t)id >= first && row < rows ? row : rows;
}

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_embedding_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_embedding_real.h"
#undef TSR_REAL_F64

#endif
