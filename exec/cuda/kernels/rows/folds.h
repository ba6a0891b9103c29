/* folds.h: sums over all elements of tensors in two steps: parts of a chunk each, then their sum.
 * Chunks follow from the numbers of elements alone.
 */
#ifndef TSR_CUDA_KERNELS_FOLDS_H
#define TSR_CUDA_KERNELS_FOLDS_H

#include "exec/kernels/rows/sums.h"

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
