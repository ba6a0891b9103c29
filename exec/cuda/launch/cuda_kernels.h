/* cuda_kernels.h: kernels of engine/ops/KERNELS.md that are the GPU's own: they do more than to
 * launch code that the host has, too.
 */
#ifndef TSR_CUDA_KERNELS_H
#define TSR_CUDA_KERNELS_H

#include "exec/cuda/gpu/gpu.h"

/* launch_copies.c: bytes, as many as both have, within the GPU or from and to the host. Rows of one
 * width may lie apart. */
tsr_status tsr__cuda_copy(const struct tsr_kernel_call *call);

/* launch_blas.c */
tsr_status tsr__cuda_mm(const struct tsr_kernel_call *call); /* and its gradients */
tsr_status tsr__cuda_bmm(const struct tsr_kernel_call *call);
/* launch_attention.c */
tsr_status tsr__cuda_attention(const struct tsr_kernel_call *call);
tsr_status tsr__cuda_attention_backward(const struct tsr_kernel_call *call);

/* launch_copies.c */
tsr_status tsr__cuda_embedding_grad(const struct tsr_kernel_call *call);

#endif
