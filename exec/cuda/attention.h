/* attention.h: scaled dot-product attention by cuDNN. C in front; behind it the one C++ file of the
 * tree (attention.cpp), or plain kernels (kernels/attention.cu) where cuDNN cannot or is not there.
 */
#ifndef TSR_CUDA_ATTENTION_H
#define TSR_CUDA_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tsr_cuda_attention;

/* A problem. Tensors are (token, head, d): element (b, t, h, i) lies at
 * ((b queries + t) row + h head + i), elements. */
struct tsr_attention_shape {
    uint64_t batch, heads, kv_heads, queries, keys, d;
    uint64_t row[3], head[3]; /* strides of q, k, v (and their gradients); out and g are dense */
    uint8_t dtype;            /* enum tsr_dtype: BF16 or F16 */
    bool causal, deterministic;
    double scale;
};

struct tsr_attention_tensors {
    const void *q, *k, *v;
    void *out;
    float *lse;    /* (batch, head, query), dense */
    const void *g; /* backward from here */
    void *gq, *gk, *gv;
};

/* NULL in *out and 0: cuDNN cannot be used (`why` says so: no library, no device); the plain
 * kernels do it then. why: at least 256 bytes. */
int tsr_attention_create(struct tsr_cuda_attention **out, char *why);
void tsr_attention_destroy(struct tsr_cuda_attention *attention);
/* True if cuDNN has a plan for the shape; plans it. The workspace that it needs goes to *bytes. */
bool tsr_attention_plan(struct tsr_cuda_attention *attention,
                        const struct tsr_attention_shape *shape, bool backward, uint64_t *bytes);
/* After a plan. Nonzero: failed; why: at least 256 bytes. */
int tsr_attention_run(struct tsr_cuda_attention *attention, const struct tsr_attention_shape *shape,
                      bool backward, const struct tsr_attention_tensors *tensors, void *workspace,
                      cudaStream_t stream, char *why);

#ifdef __cplusplus
}
#endif

#endif
