/* attention_operands.h: sizes and operands of attention, and where a head's rows lie: what host and
 * GPU compute from.
 */
#ifndef TSR_EXEC_ATTENTION_OPERANDS_H
#define TSR_EXEC_ATTENTION_OPERANDS_H

#include "exec/kernels/tensor/tensor.h"

/* Operands of attention, forward and backward. heads is a multiple of kv_heads; q, out and their
 * gradients have `heads`, k and v have `kv_heads`. lse: the logarithm of each row's sum of
 * exponentials. g, gq, gk and gv (the gradients of out, q, k and v) are backward's. */
struct tsr_attention_operands {
    uint64_t batch, heads, kv_heads, queries, keys, dim;
    bool causal; /* query i sees keys 0 .. i */
    double scale;
    struct tsr_elems q, k, v, out, lse;
    uint64_t lse_row; /* elements of lse for a head: at least `queries` */
    struct tsr_elems g, gq, gk, gv;
};

/* Where row t of head h of sequence b lies in a tensor of `heads` heads with `rows` tokens. */
TSR_ANYWHERE uint64_t tsr_attention_row(const struct tsr_attention_operands *a, uint64_t heads,
                                        uint64_t rows, uint64_t b, uint64_t h, uint64_t t)
{
    return ((b * rows + t) * heads + h) * a->dim;
}

/* How many keys the queries before `end` see. */
TSR_ANYWHERE uint64_t tsr_attention_seen(const struct tsr_attention_operands *a, uint64_t end)
{
    return a->causal && end < a->keys ? end : a->keys;
}

#endif
