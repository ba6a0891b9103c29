/* grid_optimizer.h: what optimizers do to one parameter, as loops over blocks of its elements.
 * Every step of AdamW exists alone (foreach, loop) and within tsr_grid_fused_adamw.
 */
#ifndef TSR_EXEC_GRID_OPTIMIZER_H
#define TSR_EXEC_GRID_OPTIMIZER_H

#include "engine/program/program.h"
#include "exec/kernels/grid/grid_elementwise.h"

enum tsr_optimizer_step {
    TSR_STEP_DECAY,        /* p *= decay */
    TSR_STEP_LERP,         /* m += (from - m) lerp */
    TSR_STEP_MUL_V,        /* v *= beta2 */
    TSR_STEP_ADDCMUL_V,    /* v += from from rest */
    TSR_STEP_MAXIMUM,      /* m = max(m, v), where m is AMSGrad's maximum */
    TSR_STEP_SQRT,         /* t = sqrt(v) */
    TSR_STEP_DIV_ROOT,     /* t /= root */
    TSR_STEP_ADD_EPS,      /* t += eps */
    TSR_STEP_DIV_AND_EPS,  /* t = old / root + eps */
    TSR_STEP_ADDCDIV,      /* p -= size m / t */
    TSR_STEP_ADDCDIV_V,    /* the same with t made from v */
    TSR_STEP_FUSED,        /* decay, m, v, p; t, where there is one, is the maximum */
    TSR_STEP_COUNT,        /* t = the parameter's number of steps */
    TSR_STEP_NEG,          /* t = -g */
    TSR_STEP_ADD_DECAY,    /* t = from + weight_decay p */
    TSR_STEP_CLONE,        /* m = from */
    TSR_STEP_MUL_M,        /* m *= momentum */
    TSR_STEP_ADD_M,        /* m += (1 - dampening) from */
    TSR_STEP_ADD_NESTEROV, /* from + momentum m, in t, or in g where there is no t */
    TSR_STEP_SGD,          /* p -= lr from */
    TSR_STEP_FUSED_SGD,    /* all of it */
    TSR_STEP_FUSED_NESTEROV
};

/* Where a step finds the gradient: some have a copy that was changed. */
enum tsr_optimizer_from { TSR_FROM_G, TSR_FROM_T /* or old */, TSR_FROM_M };

/* One parameter. What a step does not use has data NULL. */
struct tsr_optimizer_work {
    struct tsr_elems g, m, v, p, t, old, mirror;
    uint64_t numel;
    float scale;           /* of the gradient: what is left of a mean; fused */
    uint32_t missed : 30;  /* steps of the optimizer without it; fewer than all */
    uint32_t decays : 1;   /* weight decay applies */
    uint32_t mirrored : 1; /* p is stored in the mirror, too */
};

/* Parameters of one launch, within the 32,764 bytes that CUDA allows from sm_70 on: one table
 * instead of many launches. */
enum { TSR_OPTIMIZER_LIST = 108 };
struct tsr_optimizer {
    double scalars[TSR_N_SCALARS];
    const double *scalars_at; /* where they lie when the kernel runs; NULL: scalars */
    struct tsr_elems factor;  /* one number, of clipping; data NULL: 1; fused */
    uint8_t step;             /* enum tsr_optimizer_step */
    uint8_t from;             /* enum tsr_optimizer_from */
    bool first;               /* fused SGD: m is not read */
    uint32_t n;
    struct tsr_optimizer_work works[TSR_OPTIMIZER_LIST];
};

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_optimizer_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_optimizer_real.h"
#undef TSR_REAL_F64

#endif
