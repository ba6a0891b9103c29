/* libraries.h: the libraries that multiply matrices on the host, loaded when the first device
 * opens: OpenBLAS, and oneDNN where the processor multiplies bf16 by itself.
 *
 * Linked in, OpenBLAS would start a thread for every core in every process of the program, also in
 * one that multiplies nothing; where there are no addresses for them (ulimit -v) such a process
 * never ends. Loaded late, it is told before that there is one thread: ranks and streams are the
 * parallel ones, and sums have the same order on any number of cores. oneDNN is told so by each
 * thread that multiplies.
 *
 * TESSERA_PRODUCTS says what may be used at most: plain (loops of our own), openblas, or onednn,
 * which is also what an unset variable means. What the machine lacks is left out.
 */
#ifndef TSR_EXEC_LIBRARIES_H
#define TSR_EXEC_LIBRARIES_H

#include <stdbool.h>
#include <stdint.h>

/* CBLAS' values, which are the same everywhere. */
enum { TSR_BLAS_ROW_MAJOR = 101, TSR_BLAS_AS_IS = 111, TSR_BLAS_TRANSPOSED = 112 };

/* Row-major products on the calling thread, as CBLAS defines them. */
struct tsr_host_blas {
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a,
                  int lda, const double *b, int ldb, double beta, double *c, int ldc);
};

/* NULL: the machine has no libopenblas.so.0, it may not be used, or nobody has called
 * tsr_kernels_init(). */
const struct tsr_host_blas *tsr__blas(void);

/* oneDNN's product of bf16, row-major, summed in f32: ta, tb 'N' or 'T'. It has been in the library
 * since 1.0 without being in its headers, so what it computes is looked at when it is loaded.
 * Returns 0, or else has written nothing. */
typedef int (*tsr_onednn_gemm_fn)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                                  const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                                  float beta, float *c, int64_t ldc);
struct tsr_host_onednn {
    tsr_onednn_gemm_fn gemm;
    void (*set_threads)(int n); /* OpenMP's, for products of the calling thread */
};

/* NULL: the machine has no libdnnl, the processor no products of bf16 (oneDNN would imitate them,
 * slowly), it may not be used, or nobody has called tsr_kernels_init(). */
const struct tsr_host_onednn *tsr__onednn(void);

#endif
