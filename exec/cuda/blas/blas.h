/* blas.h: matrix products by cuBLASLt, planned once per problem: the fastest of several algorithms
 * is timed on the device, kept for the process, and stored in a file for the next one.
 *
 * Which algorithm runs decides the last bits of a result. With `tune` it is the fastest of this
 * process, or of the one that wrote the file; without, the library's first choice, which is the
 * same in every run on one kind of GPU with one version of the library.
 */
#ifndef TSR_EXEC_BLAS_H
#define TSR_EXEC_BLAS_H

#include "exec/cuda/gpu/gpu.h"

/* out (rows m, columns n) = alpha op(a) op(b) + beta out [+ bias], row-major; one per batch. The
 * types: a and b alike; out like them, or F32 where they are BF16 or F16. F64 has no bias. */
struct tsr_blas_gemm {
    uint64_t m, n, k, batch; /* all at least 1 */
    bool transpose_a,
        transpose_b;          /* op(a) is (m, k), op(b) (k, n): a lies as (k, m), b as (n, k) */
    uint8_t dtype, dtype_out; /* enum tsr_dtype */
    const void *a, *b, *bias; /* bias: n values of dtype_out, added before rounding; NULL: none */
    void *out;
    uint64_t row_a, row_b, row_out;    /* elements from row to row */
    uint64_t step_a, step_b, step_out; /* elements from one of the batch to the next; inputs: 0 is
                                        * one matrix for all */
    double alpha, beta;
};

struct tsr_blas_config {
    const struct tsr_cuda_gpu *gpu; /* copied: plans belong to it */
    const char *plans;              /* folder of files of plans; NULL: they are not stored */
    bool deterministic;             /* no split along k whose parts are added as they come */
    /* Time the candidates; false: the library's first, and no file is read or written. */
    bool tune;
};

/* One per device and process; any thread may use it. TSR_EBACKEND: cuBLASLt does not start. A file
 * of plans that is damaged, or of another GPU, driver or library, is as good as none. */
tsr_status tsr_blas_create(const struct tsr_blas_config *config,
                           struct tsr_blas **out) TSR_MUST_USE;
/* Saves what is new, if it can. NULL is fine. */
void tsr_blas_destroy(struct tsr_blas *blas);
/* What the user should know: "" or one line (a damaged file, products that could not be timed).
 * Valid until the next call of tsr_blas_note(). */
const char *tsr_blas_note(struct tsr_blas *blas);
/* Adds new plans to the file, if there are any: the old file or the new one is there, never a part.
 * Good after the first step. TSR_EIO. */
tsr_status tsr_blas_save(struct tsr_blas *blas) TSR_MUST_USE;

/* On the stream of `context`, with its scratch as the workspace. The first call of a problem plans
 * it and, with `tune`, waits for the stream, unless that is captured: then the library's first
 * choice is taken. Later calls only launch. TSR_EUNSUPPORTED: cuBLASLt has no algorithm for it. */
tsr_status tsr_blas_run(struct tsr_blas *blas, const struct tsr_cuda_context *context,
                        const struct tsr_blas_gemm *gemm) TSR_MUST_USE;

#endif
