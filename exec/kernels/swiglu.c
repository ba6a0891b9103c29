/* swiglu.c: silu(gate) * up in one kernel, and both gradients in one. */
#include "call.h"
#include "grid_swiglu.h"
#include "table.h"

tsr_status tsr__swiglu(const struct tsr_kernel_call *call)
{
    struct tsr_swiglu k = {.out = {.data = NULL}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.gate));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.gate.n, &k.up));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, k.gate.n, &k.out));
    if (tsr__is_wide(call))
        tsr_grid_swiglu_f64(&k, 0, 1);
    else
        tsr_grid_swiglu_f32(&k, 0, 1);
    return TSR_OK;
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
    if (tsr__is_wide(call))
        tsr_grid_swiglu_backward_f64(&k, 0, 1);
    else
        tsr_grid_swiglu_backward_f32(&k, 0, 1);
    return TSR_OK;
}
