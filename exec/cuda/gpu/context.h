/* context.h: what a kernel of the GPU needs beside its operands: where it is launched, and the
 * libraries that it may call. call->context of every call on a CUDA device points to one.
 */
#ifndef TSR_CUDA_CONTEXT_H
#define TSR_CUDA_CONTEXT_H

#include <cuda_runtime_api.h>

#include "exec/kernels/call/kernel.h"

struct tsr_blas;           /* blas.h */
struct tsr_cuda_attention; /* attention.h */

struct tsr_cuda_context {
    cudaStream_t stream;
    uint16_t index;          /* of the stream in the program */
    int n_sms, architecture; /* multiprocessors that may be used; 80, 90, ... */
    uint64_t shared;         /* of a block, tsr_cuda_gpu.shared; 0: what all GPUs have */
    bool deterministic;      /* no result depends on the order of arrival */
    struct tsr_blas *blas;
    struct tsr_cuda_attention *attention;
    /* Memory of the stream for the time of one call: libraries' workspace, partial sums. */
    void *scratch;
    uint64_t scratch_bytes;
    /* More of it: between calls, and not while the stream is captured. What was scratch before
     * stays memory until the stream ends, since graphs may use it. NULL: there is no more. */
    tsr_status (*grow)(void *owner, uint16_t index, uint64_t bytes);
    void *owner; /* of grow() */
    /* The table of enum tsr_scalar in device memory, for launches that are captured in a graph and
     * run again with other values; NULL: call->scalars are the values. */
    const double *scalars;
};

static inline const struct tsr_cuda_context *tsr_cuda_context(const struct tsr_kernel_call *call)
{
    return (const struct tsr_cuda_context *)call->context;
}

/* A __global__ function of exec/cuda/kernels, which takes one structure by value. Its type there is
 * another: only its address counts. */
typedef void (*tsr_cuda_kernel)(void);

struct tsr_cuda_grid {
    unsigned blocks, threads; /* along x */
    unsigned rows;            /* blocks along y; 0: 1 */
    size_t shared;            /* dynamic shared memory, bytes */
};

/* Dynamic shared memory that a block may have on the GPU of the call, beside TSR_CUDA_OWN_SHARED
 * bytes that its kernel has anyway. */
enum { TSR_CUDA_OWN_SHARED = 4 << 10 };
uint64_t tsr_cuda_most_shared(const struct tsr_kernel_call *call);

/* Launches on the stream of the call. params: the kernel's structure; copied. TSR_EBACKEND: CUDA
 * says no; the text has the kernel's name in engine/ops/KERNELS.md. */
tsr_status tsr_cuda_launch(const struct tsr_kernel_call *call, tsr_cuda_kernel kernel,
                           struct tsr_cuda_grid grid, const void *params) TSR_MUST_USE;

/* tsr_launch_fn: runs code that the host has, too, as the GPU's kernel of that name
 * (launch_codes.c). */
tsr_status tsr_cuda_launch_code(const struct tsr_kernel_call *call, const struct tsr_code *code,
                                bool wide, const void *params, uint64_t n);

/* The kernel of engine/ops/KERNELS.md by name; NULL: the GPU does not have it. It is the host's
 * function if all that this does is tsr__run(); else one of the GPU's own (cuda_kernels.c). */
tsr_kernel_fn tsr_cuda_kernel_of(const char *name);
tsr_status tsr_cuda_fill(const struct tsr_kernel_call *call);

/* TSR_EBACKEND with what CUDA says of `error` and what was tried; TSR_EOOM for out of memory. */
tsr_status tsr_cuda_error(cudaError_t error, const char *tried) TSR_MUST_USE;
#define TSR_CUDA(tried, call)                                \
    do {                                                     \
        cudaError_t tsr_cuda_result = (call);                \
        if (tsr_cuda_result != cudaSuccess)                  \
            return tsr_cuda_error(tsr_cuda_result, (tried)); \
    } while (0)

#endif
