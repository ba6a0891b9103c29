/* cuda_launch.h: kernels that are more than one launch of a code by its name, or that are launched
 * in another shape: what launch_codes.c calls for them. `params` is the structure of the code, see
 * the header of its name in exec/kernels.
 */
#ifndef TSR_EXEC_CUDA_LAUNCH_H
#define TSR_EXEC_CUDA_LAUNCH_H

#include "exec/cuda/gpu/gpu.h"
#include "exec/kernels/tensor/tensor.h"

struct tsr_column_parts; /* kernels/rows/parts.h */

/* Memory of the stream until the kernel's next launch; TSR_EOOM: the stream has less. */
tsr_status tsr_cuda_scratch(const struct tsr_kernel_call *call, uint64_t bytes,
                            void **out) TSR_MUST_USE;

/* The forms of a TSR_TEAM_KERNEL (kernels/team.h). */
struct tsr_cuda_forms {
    tsr_cuda_kernel f32, torn, f64;
};
#define TSR_FORMS(name)                                                      \
    {                                                                        \
        tsr_cuda_##name##_f32, tsr_cuda_##name##_torn, tsr_cuda_##name##_f64 \
    }

/* A row for a team of threads; params begin with struct tsr_rows. kept: reals of every element that
 * stay in shared memory; grows: long rows have more threads. */
tsr_status tsr_cuda_launch_rows(const struct tsr_kernel_call *call,
                                const struct tsr_cuda_forms *forms, bool wide, unsigned kept,
                                bool grows, const void *params) TSR_MUST_USE;

typedef tsr_status (*tsr_cuda_launcher)(const struct tsr_kernel_call *call, bool wide,
                                        const void *params, uint64_t n);
#define TSR_DECLARE_LAUNCHER(name)                                                                \
    tsr_status tsr_cuda_##name(const struct tsr_kernel_call *call, bool wide, const void *params, \
                               uint64_t n)
TSR_DECLARE_LAUNCHER(column_sums);
TSR_DECLARE_LAUNCHER(cross_entropy);
TSR_DECLARE_LAUNCHER(fold);
TSR_DECLARE_LAUNCHER(nll);
TSR_DECLARE_LAUNCHER(norm_backward);
TSR_DECLARE_LAUNCHER(norms);

/* ---- the GPU's own kernels ------------------------------------------------------------------- */

/* Kernels of engine/ops/KERNELS.md that are the GPU's own: they do more than to
 * launch code that the host has, too. */

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
