/* rows.h: what softmax, cross entropy and norms compute of a row of a tensor, block by block, so
 * that a row may be of any length and a result may take the place of its argument.
 */
#ifndef TSR_EXEC_ROWS_H
#define TSR_EXEC_ROWS_H

#include "exec/kernels/tensor/tensor.h"

/* Rows that lie one behind the other. The parameters of code that works row by row begin with it.
 */
struct tsr_rows {
    uint64_t rows, columns;
};

/* For every block of n elements from `at` on in a row of `columns` that begins at `first`. */
#define TSR_EACH_BLOCK(at, n, first, columns)                     \
    for (uint64_t at = (first), n, tsr_end = (first) + (columns); \
         at < tsr_end && (n = tsr_end - at < TSR_BLOCK ? tsr_end - at : TSR_BLOCK, true); at += n)

#define TSR_REAL_F64 0
#include "exec/kernels/tensor/rows_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/tensor/rows_real.h"
#undef TSR_REAL_F64

#endif
