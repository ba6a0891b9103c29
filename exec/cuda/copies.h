/* copies.h: kernels of engine/KERNELS.md that only move bytes, within the GPU or from and to the
 * host.
 */
#ifndef TSR_CUDA_COPIES_H
#define TSR_CUDA_COPIES_H

#include "exec/kernel.h"

/* d2h_*, h2d_*, device_copy, load_shard, save_shard, pad_shard, post_forward_slice,
 * reduce_scatter_copy: bytes, as many as both have. Rows of an equal width may lie apart. */
tsr_status tsr_cuda_copy_bytes(const struct tsr_kernel_call *call);

#endif
