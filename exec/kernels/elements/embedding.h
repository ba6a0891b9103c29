/* embedding.h: the gradient of an embedding: its operands, for the host and for the GPU, which sort
 * tokens by row in ways of their own.
 */
#ifndef TSR_EXEC_EMBEDDING_H
#define TSR_EXEC_EMBEDDING_H

#include "exec/kernels/call/call.h"
#include "exec/kernels/grid/grid_embedding.h"

/* Takes the operands of embedding_dense_backward: g, out, columns and all rows of e; the ids. The
 * row of an id is tsr_embedding_row() with args 0 and 1 of the call. */
tsr_status tsr__embedding_grad(const struct tsr_kernel_call *call, struct tsr_embedding_grad *e,
                               struct tsr_elems *ids) TSR_MUST_USE;

#endif
