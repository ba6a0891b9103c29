/* bmm.h: the operands of the batched products of attention, for the host and for a GPU. Scores are
 * (batch, head, query, key), all else is in token order: (batch, token, head, dim).
 */
#ifndef TSR_KERNELS_BMM_H
#define TSR_KERNELS_BMM_H

#include "exec/kernels/call/call.h"

enum tsr_bmm_form {
    TSR_BMM_OUTER,     /* out(i, j) = alpha a(i) b(j)             scores, grad_p; out: scores */
    TSR_BMM_APPLY,     /* out(i)    = alpha sum_j a(i, j) b(j)    values, grad_q; a: scores */
    TSR_BMM_TRANSPOSED /* out(j)    = alpha sum_i a(i, j) b(i)    grad_k, grad_v; a: scores */
};

struct tsr_bmm {
    enum tsr_bmm_form form;
    uint64_t batch, seq, heads, dim;
    double alpha;
    struct tsr_elems a, b, out;
};

/* Of any kernel bmm_*, by the name of the call. */
tsr_status tsr__bmm_operands(const struct tsr_kernel_call *call, struct tsr_bmm *s) TSR_MUST_USE;

#endif
