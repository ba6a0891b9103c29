/* swiglu.c: silu(gate) * up in one kernel, and both gradients in one. */
#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"
#include "exec/kernels/grid/grid_swiglu.h"

TSR_CODE(swiglu, tsr_grid_swiglu, struct tsr_swiglu);
TSR_CODE(swiglu_backward, tsr_grid_swiglu_backward, struct tsr_swiglu);

tsr_status tsr__swiglu(const struct tsr_kernel_call *call)
{
    struct tsr_swiglu k = {.out = {.data = NULL}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.gate));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.gate.n, &k.up));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, k.gate.n, &k.out));
    return tsr__run(call, &code_swiglu, &k, k.gate.n);
}

tsr_status tsr__swiglu_backward(const struct tsr_kernel_call *call)
{
    struct tsr_swiglu k = {.out = {.data = NULL}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.g));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.g.n, &k.gate));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k.g.n, &k.up));
    if (tsr_slot(call, 3))
        TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, k.g.n, &k.grad_gate));
    if (tsr_slot(call, 4))
        TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, k.g.n, &k.grad_up));
    return tsr__run(call, &code_swiglu_backward, &k, k.gate.n);
}
