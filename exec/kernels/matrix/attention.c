/* attention.c: softmax(scale q k^T) v and its gradients, a head and TSR_QUERY_BLOCK queries at a
 * time, from copies of the head in the type that computes. Which of PyTorch's kernels is meant does
 * not matter here.
 */
#include <stdlib.h>

#include "exec/kernels/call/table.h"
#include "exec/kernels/matrix/attention.h"
#include "exec/kernels/matrix/matmul.h"
#include "exec/kernels/tensor/rows.h"

/* lse has a row of `queries` elements for every head, or of more: the padding is infinite. */
static tsr_status lse_of(const struct tsr_kernel_call *call, bool forward,
                         struct tsr_attention_operands *a)
{
    uint64_t heads = a->batch * a->heads;
    TSR_TRY(forward ? tsr__out(call, 4, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &a->lse)
                    : tsr__in(call, 4, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &a->lse));
    a->lse_row = heads ? a->lse.n / heads : 0;
    if (heads && (a->lse.n % heads != 0 || a->lse_row < a->queries))
        return tsr__defect(call, "slot 4: %llu elements for %llu heads of %llu queries",
                           (unsigned long long)a->lse.n, (unsigned long long)heads,
                           (unsigned long long)a->queries);
    return TSR_OK;
}

tsr_status tsr__attention_operands(const struct tsr_kernel_call *call, bool forward,
                                   struct tsr_attention_operands *a)
{
    const uint64_t *d = call->work->dims;
    *a = (struct tsr_attention_operands){.batch = d[0],
                                         .heads = d[1],
                                         .kv_heads = d[2],
                                         .queries = d[3],
                                         .keys = d[4],
                                         .dim = d[5],
                                         .causal = call->work->causal,
                                         .scale = call->work->constants[0]};
    if (a->kv_heads == 0 || a->heads % a->kv_heads != 0)
        return tsr__defect(call, "%llu heads do not divide %llu", (unsigned long long)a->kv_heads,
                           (unsigned long long)a->heads);
    uint64_t of_q = tsr__product3(tsr__product3(a->batch, a->queries, 1), a->heads, a->dim);
    uint64_t of_k = tsr__product3(tsr__product3(a->batch, a->keys, 1), a->kv_heads, a->dim);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, of_q, &a->q));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, of_k, &a->k));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, of_k, &a->v));
    TSR_TRY(forward ? tsr__out(call, 3, TSR_OPERAND_FLOAT, of_q, &a->out)
                    : tsr__in(call, 3, TSR_OPERAND_FLOAT, of_q, &a->out));
    TSR_TRY(lse_of(call, forward, a));
    if (forward)
        return TSR_OK;
    TSR_TRY(tsr__in(call, 5, TSR_OPERAND_FLOAT, of_q, &a->g));
    TSR_TRY(tsr__out(call, 6, TSR_OPERAND_FLOAT, of_q, &a->gq));
    TSR_TRY(tsr__out(call, 7, TSR_OPERAND_FLOAT, of_k, &a->gk));
    return tsr__out(call, 8, TSR_OPERAND_FLOAT, of_k, &a->gv);
}

#define TSR_REAL_F64 0
#include "exec/kernels/matrix/attention_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/matrix/attention_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(attention)
TSR_KERNEL_OF_REALS(attention_backward)
