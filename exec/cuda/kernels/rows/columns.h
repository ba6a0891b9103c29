/* columns.h: sums over rows in two steps, in an order that follows from the shape alone: parts of a
 * chunk of rows each, then the sum of the parts.
 */
#ifndef TSR_CUDA_KERNELS_COLUMNS_H
#define TSR_CUDA_KERNELS_COLUMNS_H

#include "exec/kernels/tensor/rows.h"

enum { TSR_COLUMNS_TILE = 256, TSR_COLUMNS_END_TILE = 32 };

/* Blocks: along x tiles of columns, along y chunks. */
struct tsr_column_parts {
    struct tsr_rows shape;
    uint64_t chunk; /* rows of one */
    struct tsr_elems g;
    struct tsr_elems x, mean, rstd; /* for scaled; mean.data NULL: 0 */
    void *plain, *scaled;           /* parts of sum(g) and of sum(g (x - mean) rstd), in the type of
                                       the arithmetic: columns of every chunk; NULL: not wanted */
};

/* Blocks: along x tiles, along y the two of them. */
struct tsr_column_ends {
    uint64_t chunks, columns;
    struct tsr_elems out[2];
    const void *parts[2];
};

#endif
