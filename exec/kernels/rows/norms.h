/* norms.h: what RMSNorm and LayerNorm take, forward and backward. */
#ifndef TSR_EXEC_NORMS_H
#define TSR_EXEC_NORMS_H

#include "exec/kernels/tensor/rows.h"

/* data NULL: absent. */
struct tsr_norm {
    struct tsr_rows shape;
    double eps;
    bool centered; /* LayerNorm: has b and mean */
    struct tsr_elems x, w, b, y, mean, rstd;
    struct tsr_elems a, delta; /* x = a + delta is written first */
    /* backward */
    struct tsr_elems g, gx, gw, gb;
    struct tsr_elems gh;   /* added to gx */
    double *sum_w, *sum_b; /* the host's: of every column, zeros; NULL: not wanted */
};

#endif
