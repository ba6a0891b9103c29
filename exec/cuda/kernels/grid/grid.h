/* grid.h: what the kernels of this folder that the host has not and their launches agree on:
 * products, tokens by row, scalars of graphs, attention.
 */
#ifndef TSR_EXEC_GRID_H
#define TSR_EXEC_GRID_H

#include "engine/program/program.h"
#include "exec/kernels/grid/grid_embedding.h"
#include "exec/kernels/matrix/attention_operands.h"
#include "exec/kernels/tensor/tensor.h"

/* ---- products -------------------------------------------------------------------------------- */

/* Any product of matrices that this program knows, as the GPU's own kernel takes it: operands of
 * any types, in rows that may repeat. */

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

/* ---- tokens by row --------------------------------------------------------------------------- */

/* Tokens sorted by the row of the table that they ask for, for the gradient of an
 * embedding. Counters are raised in any order; the order of tokens within a row is made afterwards,
 * so that the result does not depend on it. */

/* Of rows [begin, begin + rows) of the `all` that the rank has from id `first` on. */
struct tsr_tokens {
    struct tsr_elems ids;
    uint64_t first, all, begin, rows;
    uint32_t *total;         /* one: places given out */
    uint32_t *count, *start; /* of a row: its tokens, the first one's place */
    uint32_t *places;        /* in a token's row, as counted; then tokens in their order */
    uint32_t *tokens;        /* by row, in the order of places */
};

/* ---- scalars --------------------------------------------------------------------------------- */

/* What changes from step to step, for graphs: values by value, and where they go. */

struct tsr_cuda_table {
    double *to; /* [TSR_N_SCALARS] */
    double values[TSR_N_SCALARS];
};

/* ---- attention ------------------------------------------------------------------------------- */

/* Attention by the GPU's own kernels, as the host launches them. */

/* A block works on tiles of `side` rows of a head: a multiple of 4, at most 32. */
struct tsr_plain_attention {
    struct tsr_attention_operands a;
    unsigned side;
};

/* What is behind the queries in the rows of lse. */
struct tsr_attention_padding {
    struct tsr_elems lse;
    uint64_t heads, queries, row;
};

enum { TSR_ATTENTION_MAX_SIDE = 32, TSR_ATTENTION_MIN_SIDE = 4 };

/* Elements of shared memory: six tiles of rows, two of scores, three numbers a row. */
TSR_ANYWHERE uint64_t tsr_attention_shared(uint64_t side, uint64_t dim)
{
    return side * (6 * (dim + 1) + 2 * (side + 1) + 3);
}

TSR_ANYWHERE uint64_t tsr_attention_tiles(uint64_t n, unsigned side)
{
    return (n + side - 1) / side;
}

#endif
