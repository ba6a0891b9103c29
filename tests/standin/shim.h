/* shim.h: runs a kernel of exec/cuda/kernels (kernels/shim.h) on the host, here and now. Threads
 * that cooperate are fibers of one OS thread: at tsr_sync() another one goes on.
 */
#ifndef TSR_STANDIN_SHIM_H
#define TSR_STANDIN_SHIM_H

#include "exec/cuda/kernels/shim.h"

/* Blocks, and the threads of one, run in order of their number when seed is 0, else in an order
 * that follows from it. What is asked for ahead comes late when it is even (copies_ahead.h). */
void tsr_shim_run(const struct tsr_shim_kernel *kernel, unsigned blocks_x, unsigned blocks_y,
                  unsigned threads, size_t shared, const void *params, uint64_t seed);

#endif
