/* attention.h: what the two directions of attention share: sizes, and where a head's rows lie. */
#ifndef TSR_KERNELS_ATTENTION_H
#define TSR_KERNELS_ATTENTION_H

#include "call.h"
#include "gemm.h"
#include "rows.h"

/* Queries that are worked on at a time. */
enum { TSR_QUERY_BLOCK = 64 };

struct tsr_attention {
    uint64_t batch, heads, kv_heads, queries, keys, dim;
    bool causal; /* query i sees keys 0 .. i */
    double scale;
    struct tsr_elems q, k, v, out, lse;
    uint64_t lse_row; /* elements of lse for a head: at least `queries` */
    struct tsr_elems g, gq, gk, gv;
};

/* Sizes and the operands that both directions have; forward writes slots 3 and 4. */
tsr_status tsr__attention_operands(const struct tsr_kernel_call *call, bool forward,
                                   struct tsr_attention *a) TSR_MUST_USE;

/* Where row t of head h of sequence b lies in a tensor of `heads` heads with `rows` tokens. */
static inline uint64_t tsr_attention_row(const struct tsr_attention *a, uint64_t heads,
                                         uint64_t rows, uint64_t b, uint64_t h, uint64_t t)
{
    return ((b * rows + t) * heads + h) * a->dim;
}

/* How many keys the queries before `end` see. */
static inline uint64_t tsr_attention_seen(const struct tsr_attention *a, uint64_t end)
{
    return a->causal && end < a->keys ? end : a->keys;
}

#endif
