/* matmul.h: products of matrices in memory, and the operands of products, of linear layers and of
 * attention, for the host and for a GPU.
 */
#ifndef TSR_EXEC_MATMUL_H
#define TSR_EXEC_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernels/call/call.h"

/* ---- in memory ------------------------------------------------------------------------------- */

/* Products of matrices in memory, row-major, on the calling thread.
 *
 * c (m, n) = alpha op(a) op(b) + beta c, op(a) (m, k), op(b) (k, n); op transposes if `ta`, `tb`.
 * lda, ldb, ldc: elements from row to row, of what is stored. beta 0: c is not read. OpenBLAS if
 * the machine has it; sizes beyond its 32 bits go through the plain loops. */

struct tsr_gemm {
    bool ta, tb;
    uint64_t m, n, k, lda, ldb, ldc;
    double alpha, beta;
};

void tsr__gemm_f32(const struct tsr_gemm *g, const float *a, const float *b, float *c);
void tsr__gemm_f64(const struct tsr_gemm *g, const double *a, const double *b, double *c);
/* Of bf16, summed in f32, where there is tsr__onednn(); values below f32's normal ones count as 0.
 * False: out of memory. */
bool tsr__gemm_bf16(const struct tsr_gemm *g, const uint16_t *a, const uint16_t *b, float *c);

/* ---- of linear layers ------------------------------------------------------------------------ */

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

/* One of the products above: of which operand the scores are, the form says; the scores are
 * (batch, heads, seq, seq). */
struct tsr_bmm {
    enum tsr_bmm_form form;
    uint64_t batch, seq, heads, dim;
    double alpha;
    struct tsr_elems a, b, out;
};

/* Of any kernel bmm_*, by the name of the call. */
tsr_status tsr__bmm_operands(const struct tsr_kernel_call *call, struct tsr_bmm *s) TSR_MUST_USE;

#endif
