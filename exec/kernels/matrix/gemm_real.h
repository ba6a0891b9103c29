/* gemm_real.h: template of gemm.c. */
#include "exec/kernels/tensor/real.h"

/* c = beta c, without reading it if beta is 0. */
static void TSR_R(scale_result)(const struct tsr_gemm *g, TSR_REAL *c)
{
    TSR_REAL beta = (TSR_REAL)g->beta;
    for (uint64_t i = 0; i < g->m; i++)
        for (uint64_t j = 0; j < g->n; j++)
            c[i * g->ldc + j] = g->beta == 0 ? 0 : beta * c[i * g->ldc + j];
}

/* Row i of c += alpha op(a) op(b). */
static void TSR_R(plain_row)(const struct tsr_gemm *g, uint64_t i, const TSR_REAL *a,
                             const TSR_REAL *b, TSR_REAL *c)
{
    TSR_REAL alpha = (TSR_REAL)g->alpha;
    uint64_t a_step = g->ta ? g->lda : 1;
    const TSR_REAL *row = a + (g->ta ? i : i * g->lda);
    if (g->tb) {
        for (uint64_t j = 0; j < g->n; j++) {
            TSR_REAL sum = 0;
            for (uint64_t p = 0; p < g->k; p++)
                sum += row[p * a_step] * b[j * g->ldb + p];
            c[j] += alpha * sum;
        }
        return;
    }
    for (uint64_t p = 0; p < g->k; p++) {
        TSR_REAL factor = alpha * row[p * a_step];
        for (uint64_t j = 0; j < g->n; j++)
            c[j] += factor * b[p * g->ldb + j];
    }
}

void TSR_R(tsr__gemm)(const struct tsr_gemm *g, const TSR_REAL *a, const TSR_REAL *b, TSR_REAL *c)
{
    if (g->m == 0 || g->n == 0)
        return;
#ifdef TSR_HAVE_OPENBLAS
    if (g->k > 0 && fits_blas(g)) {
        enum CBLAS_TRANSPOSE ta = g->ta ? CblasTrans : CblasNoTrans;
        enum CBLAS_TRANSPOSE tb = g->tb ? CblasTrans : CblasNoTrans;
#if TSR_REAL_F64
        cblas_dgemm(CblasRowMajor, ta, tb, (int)g->m, (int)g->n, (int)g->k, g->alpha, a,
                    (int)g->lda, b, (int)g->ldb, g->beta, c, (int)g->ldc);
#else
        cblas_sgemm(CblasRowMajor, ta, tb, (int)g->m, (int)g->n, (int)g->k, (float)g->alpha, a,
                    (int)g->lda, b, (int)g->ldb, (float)g->beta, c, (int)g->ldc);
#endif
        return;
    }
#endif
    TSR_R(scale_result)(g, c);
    for (uint64_t i = 0; i < g->m; i++)
        TSR_R(plain_row)(g, i, a, b, c + i * g->ldc);
}
