/* softmax.h: what softmax and log-softmax of rows take, also where a vocabulary is cut over ranks.
 */
#ifndef TSR_EXEC_SOFTMAX_H
#define TSR_EXEC_SOFTMAX_H

#include "exec/kernels/tensor/rows.h"

/* Not all codes have all of it: y is of backward kernels, max and sum have one element a row. */
struct tsr_softmax {
    struct tsr_rows shape;
    bool causal; /* row r sees columns [0, r mod columns] */
    struct tsr_elems x, y, max, sum, out;
};

/* How many columns of a row count. */
TSR_ANYWHERE uint64_t tsr_softmax_seen(const struct tsr_softmax *k, uint64_t row)
{
    return k->causal ? row % k->shape.columns + 1 : k->shape.columns;
}

#endif
