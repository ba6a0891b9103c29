/* blas.h: what tests ask of the stand-in of cuBLASLt. It has three algorithms, 0 to 2; 1 and 2
 * split the sum along k, 2 with parts that are added in place.
 */
#ifndef TSR_STANDIN_BLAS_H
#define TSR_STANDIN_BLAS_H

#include <stddef.h>

/* The algorithm of the last product that was asked for. */
unsigned tsr_standin_algorithm(void);
/* Algorithms below this number take 20 ms longer. */
void tsr_standin_slow_algorithms(unsigned below);
/* What cublasLtGetVersion() says. */
void tsr_standin_cublaslt_version(size_t version);

#endif
