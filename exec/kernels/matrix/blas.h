/* blas.h: OpenBLAS, loaded when the first device opens.
 *
 * Linked in, it would start a thread for every core in every process of the program, also in one
 * that multiplies nothing; where there are no addresses for them (ulimit -v) such a process never
 * ends. Loaded late, it is told before that there is one thread: ranks and streams are the parallel
 * ones, and sums have the same order on any number of cores.
 */
#ifndef TSR_EXEC_BLAS_H
#define TSR_EXEC_BLAS_H

#include <stdbool.h>

/* CBLAS' values, which are the same everywhere. */
enum { TSR_BLAS_ROW_MAJOR = 101, TSR_BLAS_AS_IS = 111, TSR_BLAS_TRANSPOSED = 112 };

/* Row-major products on the calling thread, as CBLAS defines them. */
struct tsr_host_blas {
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a,
                  int lda, const double *b, int ldb, double beta, double *c, int ldc);
};

/* NULL: the machine has no libopenblas.so.0, or nobody has called tsr_kernels_init(). */
const struct tsr_host_blas *tsr__blas(void);

#endif
