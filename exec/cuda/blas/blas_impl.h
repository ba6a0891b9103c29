/* blas_impl.h: what blas*.c share. */
#ifndef TSR_EXEC_BLAS_IMPL_H
#define TSR_EXEC_BLAS_IMPL_H

#include <pthread.h>

#include <cublasLt.h>

#include "exec/cuda/blas/blas.h"

/* All that a choice of algorithm depends on, in rows as cuBLASLt has them: numbers only, so that
 * keys are compared and written as they are. */
enum tsr_blas_field {
    TSR_BLAS_M,
    TSR_BLAS_N,
    TSR_BLAS_K,
    TSR_BLAS_BATCH,
    TSR_BLAS_FLAGS, /* enum tsr_blas_flag */
    TSR_BLAS_DTYPE,
    TSR_BLAS_DTYPE_OUT,
    TSR_BLAS_ROW_A,
    TSR_BLAS_ROW_B,
    TSR_BLAS_ROW_OUT,
    TSR_BLAS_STEP_A,
    TSR_BLAS_STEP_B,
    TSR_BLAS_STEP_OUT,
    TSR_BLAS_ALIGN_A, /* bytes, at most 256 */
    TSR_BLAS_ALIGN_B,
    TSR_BLAS_ALIGN_OUT,
    TSR_BLAS_WORKSPACE, /* bytes */
    TSR_BLAS_SMS,       /* multiprocessors to use; 0: all */
    TSR_BLAS_FIELDS
};
enum tsr_blas_flag {
    TSR_BLAS_TRANSPOSE_A = 1,
    TSR_BLAS_TRANSPOSE_B = 2,
    TSR_BLAS_ADD = 4, /* beta is not 0 */
    TSR_BLAS_BIAS = 8,
    TSR_BLAS_DETERMINISTIC = 16
};
struct tsr_blas_key {
    uint64_t field[TSR_BLAS_FIELDS];
};

enum tsr_blas_origin {
    TSR_BLAS_NONE,     /* there is no algorithm */
    TSR_BLAS_FIRST,    /* the library's first choice */
    TSR_BLAS_TIMED,    /* the fastest, timed here */
    TSR_BLAS_FROM_FILE /* read, and not yet checked */
};
struct tsr_blas_plan {
    struct tsr_blas_key key;
    cublasLtMatmulAlgo_t algo;
    double microseconds; /* 0: not timed */
    enum tsr_blas_origin origin;
};

/* Owns the handle, the path and the plans. What stands above the lock is constant after
 * tsr_blas_create(). n_unsaved counts plans that the file does not have yet, n_untimed those that
 * should have been timed and were not. */
struct tsr_blas {
    cublasLtHandle_t handle;
    struct tsr_cuda_gpu gpu;
    bool deterministic, tune;
    char *path; /* of the file; NULL: none */
    pthread_mutex_t lock;
    /* Under the lock: */
    struct tsr_blas_plan *plans; /* in the order of keys */
    size_t n, capacity, n_unsaved, n_untimed;
    char file_note[256], note[512];
};

/* A product as cuBLASLt takes it. Column-major: its first operand is b, its second a. */
struct tsr_blas_problem {
    struct tsr_blas_key key;
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, out;
    union tsr_blas_factor {
        float f32;
        double f64;
    } alpha, beta;
    const struct tsr_blas_gemm *gemm;
    void *workspace;
    size_t workspace_bytes;
    cudaStream_t stream;
};
/* TSR_EUNSUPPORTED: types that cuBLASLt does not multiply. */
tsr_status tsr__blas_describe(const struct tsr_blas *blas, const struct tsr_cuda_context *context,
                              const struct tsr_blas_gemm *gemm,
                              struct tsr_blas_problem *out) TSR_MUST_USE;
/* Launches; `result` may be another place than gemm->out. */
cublasStatus_t tsr__blas_launch(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                                const cublasLtMatmulAlgo_t *algo, void *result);

/* A plan for the problem: by timing if `blas` tunes and the stream is not captured. It is
 * TSR_BLAS_NONE if cuBLASLt has none. Without the lock: this waits. */
tsr_status tsr__blas_plan(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                          struct tsr_blas_plan *out) TSR_MUST_USE;
/* True if the library takes an algorithm that was read for this problem. */
bool tsr__blas_check(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                     const cublasLtMatmulAlgo_t *algo);

#endif
