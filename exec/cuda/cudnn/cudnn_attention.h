/* cudnn_attention.h: scaled dot-product attention by cuDNN. C in front; behind it
 * cudnn/attention.cpp, the one C++ file of the tree, or cudnn/none.c where it is not built. What
 * cuDNN does not take is done by plain kernels (kernels/attention.cu).
 */
#ifndef TSR_EXEC_CUDNN_ATTENTION_H
#define TSR_EXEC_CUDNN_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Plans of one device, each made once; any thread may use it. */
struct tsr_cuda_attention;
struct tsr_attention_plan;

/* Texts of failures are cut to this. */
enum { TSR_ATTENTION_TEXT = 256 };

/* Tensors of heads: element (b, t, h, i) of one with n tokens in a sequence lies at
 * (b n + t) row + h head + i, in elements. */
enum tsr_attention_tensor {
    TSR_ATTENTION_Q,
    TSR_ATTENTION_K,
    TSR_ATTENTION_V,
    TSR_ATTENTION_OUT,
    TSR_ATTENTION_G, /* backward from here */
    TSR_ATTENTION_GQ,
    TSR_ATTENTION_GK,
    TSR_ATTENTION_GV,
    TSR_ATTENTION_TENSORS
};

/* A problem. Numbers only: shapes are compared as they are. */
struct tsr_cudnn_shape {
    uint64_t batch, heads, kv_heads, queries, keys, d;
    uint64_t row[TSR_ATTENTION_TENSORS], head[TSR_ATTENTION_TENSORS];
    uint64_t lse_row; /* lse: (batch, head, query) of f32, rows of queries this far apart */
    uint64_t half;    /* 1: F16, 0: BF16 */
    uint64_t causal, backward, deterministic;
    double scale;
};

struct tsr_attention_pointers {
    void *tensor[TSR_ATTENTION_TENSORS];
    float *lse;
};

/* Nonzero: cuDNN cannot be used (`why`), and the plain kernels do all; TSR_ATTENTION_NOT_BUILT:
 * since the program was built without it. architecture: 80, 90, ... */
enum { TSR_ATTENTION_NOT_BUILT = 2 };
int tsr_attention_create(int architecture, struct tsr_cuda_attention **out,
                         char why[TSR_ATTENTION_TEXT]);
void tsr_attention_destroy(struct tsr_cuda_attention *attention); /* NULL is fine */
/* cuDNN's plan for the shape and the workspace that it needs; NULL: it has none. The first call of
 * a shape takes a while; it does not wait for the device. */
const struct tsr_attention_plan *tsr_attention_prepare(struct tsr_cuda_attention *attention,
                                                       const struct tsr_cudnn_shape *shape,
                                                       uint64_t *bytes);
/* Nonzero: failed. */
int tsr_attention_run(struct tsr_cuda_attention *attention, const struct tsr_attention_plan *plan,
                      const struct tsr_attention_pointers *at, void *workspace, cudaStream_t stream,
                      char why[TSR_ATTENTION_TEXT]);
/* There is no memory for the workspace of a plan: the plain kernels do it. For the note. */
void tsr_attention_lacks(struct tsr_cuda_attention *attention,
                         const struct tsr_attention_plan *plan, uint64_t bytes);
/* "" or one line: the first shape that cuDNN has no plan or no memory for, and why. */
void tsr_attention_note(struct tsr_cuda_attention *attention, char note[TSR_ATTENTION_TEXT]);
/* Nonzero: cuDNN does not take the shape on a GPU of this architecture. Needs no GPU. */
int tsr_attention_validate(int architecture, const struct tsr_cudnn_shape *shape,
                           char why[TSR_ATTENTION_TEXT]);

#ifdef __cplusplus
}
#endif

#endif
