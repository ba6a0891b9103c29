/* matmul.h: the operands of a product of a linear layer, for the host and for a GPU.
 */
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

#endif
