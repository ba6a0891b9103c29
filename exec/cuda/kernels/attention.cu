/* attention.cu: attention and its gradients for what cuDNN does not take. A block keeps a tile of
 * queries and walks over tiles of keys (forward, gradient of queries), or the reverse (gradients of
 * keys and values), all in shared memory. No two blocks write one place: every run gives the same
 * bits.
 */
#include "code.h"

#include "attention_plain.h"

#define TSR_REAL_F64 0
#include "attention_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "attention_real.h"
#undef TSR_REAL_F64

#define ATTENTION_KERNEL(name, suffix)                                              \
    TSR_BLOCK_KERNEL(tsr_cuda_attention_##name##_##suffix, struct tsr_plain_attention) \
    {                                                                               \
        attention_##name##_##suffix(&k);                                            \
    }

ATTENTION_KERNEL(forward, f32)
ATTENTION_KERNEL(forward, f64)
ATTENTION_KERNEL(queries, f32)
ATTENTION_KERNEL(queries, f64)
ATTENTION_KERNEL(keys, f32)
ATTENTION_KERNEL(keys, f64)
