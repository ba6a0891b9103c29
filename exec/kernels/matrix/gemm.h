/* gemm.h: products of matrices in memory, row-major, on the calling thread.
 *
 * c (m, n) = alpha op(a) op(b) + beta c, op(a) (m, k), op(b) (k, n); op transposes if `ta`, `tb`.
 * lda, ldb, ldc: elements from row to row, of what is stored. beta 0: c is not read. OpenBLAS if
 * the build has it; sizes beyond its 32 bits go through the plain loops.
 */
#ifndef TSR_KERNELS_GEMM_H
#define TSR_KERNELS_GEMM_H

#include <stdbool.h>
#include <stdint.h>

struct tsr_gemm {
    bool ta, tb;
    uint64_t m, n, k, lda, ldb, ldc;
    double alpha, beta;
};

void tsr__gemm_f32(const struct tsr_gemm *g, const float *a, const float *b, float *c);
void tsr__gemm_f64(const struct tsr_gemm *g, const double *a, const double *b, double *c);

#endif
