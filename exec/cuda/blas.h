/* blas.h: matrix products by cuBLASLt, planned once per problem: the fastest of several algorithms
 * is timed on the device, kept for the process, and stored in a file for the next one.
 */
#ifndef TSR_CUDA_BLAS_H
#define TSR_CUDA_BLAS_H

#include "context.h"

/* out (rows m, columns n) = alpha op(a) op(b) + beta out, row-major; one per batch. */
struct tsr_gemm {
    uint64_t m, n, k, batch;
    bool transpose_a,
        transpose_b; /* op(a) is (m, k), op(b) (k, n): a lies as (k, m), b as (n, k) */
    uint8_t dtype_a, dtype_b, dtype_out; /* enum tsr_dtype */
    const void *a, *b, *bias; /* bias: n values of dtype_bias, added before rounding; NULL: none */
    uint8_t dtype_bias;
    void *out;
    uint64_t row_a, row_b, row_out;    /* elements from row to row */
    uint64_t step_a, step_b, step_out; /* elements from one of the batch to the next */
    double alpha, beta;
};

struct tsr_blas_config {
    const char *plans;  /* file of plans, borrowed; NULL: they are not stored */
    bool deterministic; /* no split along k whose parts are added as they come */
    bool tune;          /* time the candidates; false: take the library's first */
};

/* One per device and process. TSR_EBACKEND: cuBLASLt does not start. */
tsr_status tsr_blas_create(const struct tsr_blas_config *config,
                           struct tsr_blas **out) TSR_MUST_USE;
/* Writes the file of plans if there are new ones (atomically). NULL is fine. */
void tsr_blas_destroy(struct tsr_blas *blas);
/* On the stream of `context`, with its scratch as the workspace. The first call of a problem plans
 * it, which waits for the device; later ones only launch. */
tsr_status tsr_blas_gemm(const struct tsr_cuda_context *context,
                         const struct tsr_gemm *gemm) TSR_MUST_USE;

#endif
