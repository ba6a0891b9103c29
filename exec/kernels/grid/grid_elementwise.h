/* grid_elementwise.h: elementwise kernels, and silu(gate) * up, as a loop over blocks of
 * TSR_BLOCK elements. A body gets (begin, step): the host runs (0, 1), a thread of CUDA (its
 * number, how many there are).
 */
#ifndef TSR_EXEC_GRID_ELEMENTWISE_H
#define TSR_EXEC_GRID_ELEMENTWISE_H

#include "exec/kernels/tensor/tensor.h"

enum tsr_elementwise_op {
    TSR_EW_COPY,
    TSR_EW_ADD,
    TSR_EW_MUL,
    TSR_EW_MUL_BY,
    TSR_EW_ADD_TO,
    TSR_EW_SUB_FROM,
    TSR_EW_DIV_BY,
    TSR_EW_NEG,
    TSR_EW_RSQRT,
    TSR_EW_SILU,
    TSR_EW_RELU,
    TSR_EW_GELU,
    TSR_EW_SILU_BACKWARD,
    TSR_EW_GELU_BACKWARD,
    TSR_EW_THRESHOLD_BACKWARD,
    TSR_EW_TANH_BACKWARD,
    TSR_EW_CONSTANT,
    TSR_EW_ROOT,
    TSR_EW_RECIPROCAL,
    TSR_EW_AT_MOST_ONE,
    TSR_EW_COUNT_UP, /* from here on tsr_is_rare() */
    TSR_EW_WHERE,
    TSR_EW_TRIL,
    TSR_EW_POW,
    TSR_EW_TANH,
    TSR_EW_COS,
    TSR_EW_SIN,
    TSR_EW_GELU_ERF,
    TSR_EW_GELU_ERF_BACKWARD
};

/* Rare functions, some of which need many registers: a GPU has them in a kernel of their own. */
TSR_ANYWHERE bool tsr_is_rare(unsigned op)
{
    return op >= TSR_EW_COUNT_UP;
}

/* out(i) = op(in[0](i), in[1](i), in[2](i), c), of as many operands as `op` takes; all that are
 * not `per_row` have the elements of `out`. */
struct tsr_elementwise {
    uint8_t op;       /* enum tsr_elementwise_op */
    uint8_t n_in;     /* operands that are read */
    uint8_t per_row;  /* bit i: in[i] has one element a row of the output */
    uint64_t columns; /* of the output */
    double c;
    const double *c_at; /* where c lies when the kernel runs; NULL: c */
    struct tsr_elems in[3], out;
};

TSR_ANYWHERE uint64_t tsr_grid_blocks(uint64_t n)
{
    return n / TSR_BLOCK + (n % TSR_BLOCK != 0);
}

/* silu(gate) * up. Forward: gate, up, out. Backward: g as well, and grad_gate and grad_up (data
 * NULL: not wanted), which may lie where gate and up do. */
struct tsr_swiglu {
    struct tsr_elems gate, up, out, g, grad_gate, grad_up;
};

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_elementwise_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_elementwise_real.h"
#undef TSR_REAL_F64

#endif
