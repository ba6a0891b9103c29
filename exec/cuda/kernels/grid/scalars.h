/* scalars.h: what changes from step to step, for graphs: values by value, and where they go. */
#ifndef TSR_CUDA_KERNELS_SCALARS_H
#define TSR_CUDA_KERNELS_SCALARS_H

#include "engine/program/program.h"

struct tsr_cuda_table {
    double *to; /* [TSR_N_SCALARS] */
    double values[TSR_N_SCALARS];
};

#endif
