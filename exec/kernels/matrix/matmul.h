/* matmul.h: the operands of products, of linear layers and of attention, for the host and for a
 * GPU. */
#ifndef TSR_KERNELS_MATMUL_H
#define TSR_KERNELS_MATMUL_H

#include "exec/kernels/call/call.h"

/* out (m, n) = op(a) op(b) [+ bias, the same in every row] [+ into, which is out's own place].
 * op(a) is (m, k), op(b) (k, n); ta: a is stored as (k, m), tb: b as (n, k). */
struct tsr_product {
    bool ta, tb;
    uint64_t m, n, k;
    struct tsr_elems a, b, bias, into, out; /* data NULL: absent */
};

/* Of mm, addmm, mm_weight_grad, addmm_weight_grad, mm_input_grad, addmm_input_grad: by the name of
 * the call. */
tsr_status tsr__product_operands(const struct tsr_kernel_call *call,
                                 struct tsr_product *p) TSR_MUST_USE;

/* ---- batched products of attention ------------------------------------------------------------
 */

/* Scores are (batch, head, query, key), all else is in token order: (batch, token, head, dim). */
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
