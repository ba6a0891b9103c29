/* gemm.c: products of matrices: OpenBLAS, or plain loops. */
#include <limits.h>
#include <string.h>

#ifdef TSR_HAVE_OPENBLAS
#include <cblas.h>
#endif

#include "exec/kernels/call/kernel.h"
#include "exec/kernels/matrix/gemm.h"

void tsr_kernels_init(void)
{
#ifdef TSR_HAVE_OPENBLAS
    openblas_set_num_threads(1);
#endif
}

#ifdef TSR_HAVE_OPENBLAS
static bool fits_blas(const struct tsr_gemm *g)
{
    return g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX && g->lda <= INT_MAX &&
           g->ldb <= INT_MAX && g->ldc <= INT_MAX;
}
#endif

#define TSR_REAL_F64 0
#include "exec/kernels/matrix/gemm_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/matrix/gemm_real.h"
#undef TSR_REAL_F64
