/* product.h: any product of matrices that this program knows, as the GPU's own kernel takes it:
 * operands of any types, in rows that may repeat.
 */
#ifndef TSR_CUDA_KERNELS_PRODUCT_H
#define TSR_CUDA_KERNELS_PRODUCT_H

#include "exec/kernels/tensor/tensor.h"

/* Matrices of a tensor. Element (r, c), as it is stored, of matrix (o, i) is element
 * o outer + i inner + r row + c of `elems`. */
struct tsr_factor {
    struct tsr_elems elems;
    uint64_t row, outer, inner;
    bool transposed; /* it is stored as the transpose of what is multiplied */
};

/* out (m, n) = alpha a (m, k) b (k, n) [+ bias] [+ out], for each of n_outer n_inner matrices. */
struct tsr_plain_product {
    uint64_t m, n, k, n_outer, n_inner;
    double alpha;
    bool add; /* to what is in out */
    struct tsr_factor a, b, out;
    struct tsr_elems bias; /* n; data NULL: none */
};

/* A block computes a tile of TSR_PRODUCT_SIDE rows and columns, from slices of TSR_PRODUCT_DEPTH
 * of k. Blocks of TSR_CUDA_THREADS threads. */
enum { TSR_PRODUCT_SIDE = 64, TSR_PRODUCT_DEPTH = 16 };

#endif
