/* initial.h: initial values of a piece of a parameter (exec/files/init.h says which), on the host
 * or on the device of a call.
 */
#ifndef TSR_EXEC_INITIAL_H
#define TSR_EXEC_INITIAL_H

#include "exec/base/source.h"
#include "exec/kernels/call/kernel.h"
#include "exec/kernels/grid/grid_initial.h"

/* What tsr_grid_initial() takes, for all of the piece, into `out`. Errors: TSR_EDEFECT when the box
 * is not inside the shape, or dtype or kind are none; TSR_EUNSUPPORTED for random integers. */
tsr_status tsr_initial_of(uint64_t seed, const struct tsr_piece *piece, void *out,
                          struct tsr_initial *k) TSR_MUST_USE;
/* Fours [begin, k->n), here and now. */
void tsr_initial_make(const struct tsr_initial *k, uint64_t begin);
/* The piece into the call's only operand, wherever it belongs. */
tsr_status tsr_initial_run(const struct tsr_kernel_call *call, uint64_t seed,
                           const struct tsr_piece *piece) TSR_MUST_USE;

#endif
