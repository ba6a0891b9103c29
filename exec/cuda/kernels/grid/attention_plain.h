/* attention_plain.h: attention by the GPU's own kernels, as the host launches them. */
#ifndef TSR_CUDA_KERNELS_ATTENTION_PLAIN_H
#define TSR_CUDA_KERNELS_ATTENTION_PLAIN_H

#include "exec/kernels/matrix/attention_operands.h"

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
