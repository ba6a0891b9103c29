/* tokens.h: tokens sorted by the row of the table that they ask for, for the gradient of an
 * embedding. Counters are raised in any order; the order of tokens within a row is made afterwards,
 * so that the result does not depend on it.
 */
#ifndef TSR_CUDA_KERNELS_TOKENS_H
#define TSR_CUDA_KERNELS_TOKENS_H

#include "exec/kernels/grid/grid_embedding.h"

/* Of rows [begin, begin + rows) of the `all` that the rank has from id `first` on. */
struct tsr_tokens {
    struct tsr_elems ids;
    uint64_t first, all, begin, rows;
    uint32_t *total;         /* one: places given out */
    uint32_t *count, *start; /* of a row: its tokens, the first one's place */
    uint32_t *places;        /* in a token's row, as counted; then tokens in their order */
    uint32_t *tokens;        /* by row, in the order of places */
};

#endif
