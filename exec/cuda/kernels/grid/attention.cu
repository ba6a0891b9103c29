/* attention.cu: attention and its gradients for what cuDNN does not take. A block keeps a tile of
 * queries and walks over tiles of keys (forward, gradient of queries), or the reverse (gradients of
 * keys and values), all in shared memory. No two blocks write one place: every run gives the same
 * bits.
 */
#include "exec/cuda/kernels/code.h"

#include "exec/cuda/kernels/grid/grid.h"

#define TSR_REAL_F64 0
#include "exec/cuda/kernels/grid/attention_plain_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/cuda/kernels/grid/attention_plain_real.h"
#undef TSR_REAL_F64

#define ATTENTION_KERNEL(name, suffix)                                                 \
    TSR_BLOCK_KERNEL(tsr_cuda_attention_##name##_##suffix, struct tsr_plain_attention) \
    {                                                                                  \
        attention_##name##_##suffix(&k);                                               \
    }

ATTENTION_KERNEL(forward, f32)
ATTENTION_KERNEL(forward, f64)
ATTENTION_KERNEL(queries, f32)
ATTENTION_KERNEL(queries, f64)
ATTENTION_KERNEL(keys, f32)
ATTENTION_KERNEL(keys, f64)

TSR_GRID_KERNEL(tsr_cuda_attention_padding, struct tsr_attention_padding)
{
    const float infinity = INFINITY;
    uint64_t behind = k.row - k.queries;
    for (uint64_t i = tsr_begin(); i < k.heads * behind; i += tsr_step())
        tsr_store_f32(&k.lse, i / behind * k.row + k.queries + i % behind, 1, &infinity);
}
