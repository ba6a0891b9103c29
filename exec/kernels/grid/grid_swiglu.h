/* grid_swiglu.h: silu(gate) * up and its gradients as a loop over blocks of TSR_BLOCK elements.
 */
#ifndef TSR_KERNELS_GRID_SWIGLU_H
#define TSR_KERNELS_GRID_SWIGLU_H

#include "exec/kernels/grid/grid_elementwise.h"

/* Forward: gate, up, out. Backward: g as well, and grad_gate and grad_up (data NULL: not wanted),
 * which may lie where gate and up do. */
struct tsr_swiglu {
    struct tsr_elems gate, up, out, g, grad_gate, grad_up;
};

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_swiglu_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_swiglu_real.h"
#undef TSR_REAL_F64

#endif
