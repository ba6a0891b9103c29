/* parts.h: sums in two steps, in an order that follows from the shape alone: parts of a chunk each,
 * then the sum of the parts.
 */
#ifndef TSR_CUDA_KERNELS_PARTS_H
#define TSR_CUDA_KERNELS_PARTS_H

#include "exec/kernels/rows/sums.h"

/* ---- over rows: chunks of rows --------------------------------------------------------------- */

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

/* ---- over all elements of tensors ------------------------------------------------------------ */

/* A block has a chunk. */
struct tsr_fold_parts {
    uint8_t op; /* enum tsr_fold_op */
    uint32_t n;
    uint64_t chunk;                /* elements of one, a multiple of TSR_BLOCK */
    uint32_t first[TSR_NORMS + 1]; /* chunk of every tensor; behind it, of the end */
    struct tsr_elems a[TSR_NORMS];
    struct tsr_elems b; /* of the only tensor; data NULL: none */
    double *parts;      /* of every chunk */
};

/* A block has a tensor: all of its out becomes the sum / divisor, or the sum's root times scale. */
struct tsr_fold_ends {
    bool root;
    double divisor;
    float scale[TSR_NORMS];
    uint32_t first[TSR_NORMS + 1];
    struct tsr_elems out[TSR_NORMS];
    const double *parts;
};

#endif
