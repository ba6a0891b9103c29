/* norms.c: RMSNorm and LayerNorm, forward and backward, also of a sum that is made on the way. A
 * row at a time; its mean and its 1 / sqrt are those that are stored. Sums over rows are carried in
 * f64.
 */
#include "exec/kernels/rows/norms.h"

#include <stdlib.h>

#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"

#define TSR_REAL_F64 0
#include "exec/kernels/rows/norms_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/rows/norms_real.h"
#undef TSR_REAL_F64

TSR_CODE(norm, norm_rows, struct tsr_norm);
TSR_CODE(norm_backward, norm_backward_rows, struct tsr_norm);

static struct tsr_norm norm_of(const struct tsr_kernel_call *call)
{
    return (struct tsr_norm){
        .shape = {.rows = call->work->dims[0], .columns = call->work->dims[1]},
        .eps = call->work->constants[0],
        .centered = strstr(call->work->name, "layer_norm") != NULL,
    };
}

static uint64_t numel(const struct tsr_norm *k)
{
    return tsr__product3(k->shape.rows, k->shape.columns, 1);
}

/* A result that may be absent. */
static tsr_status out_if_wanted(const struct tsr_kernel_call *call, unsigned slot, uint64_t n,
                                struct tsr_elems *out)
{
    return tsr_slot(call, slot) ? tsr__out(call, slot, TSR_OPERAND_FLOAT, n, out) : TSR_OK;
}

tsr_status tsr__norm(const struct tsr_kernel_call *call)
{
    struct tsr_norm k = norm_of(call);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, numel(&k), &k.x));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.shape.columns, &k.w));
    if (k.centered)
        TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k.shape.columns, &k.b));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, numel(&k), &k.y));
    if (k.centered)
        TSR_TRY(out_if_wanted(call, 4, k.shape.rows, &k.mean));
    TSR_TRY(out_if_wanted(call, k.centered ? 5 : 4, k.shape.rows, &k.rstd));
    return tsr__run(call, &code_norm, &k, k.shape.rows);
}

tsr_status tsr__add_norm(const struct tsr_kernel_call *call)
{
    struct tsr_norm k = norm_of(call);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, numel(&k), &k.a));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, numel(&k), &k.delta));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k.shape.columns, &k.w));
    if (k.centered)
        TSR_TRY(tsr__in(call, 3, TSR_OPERAND_FLOAT, k.shape.columns, &k.b));
    TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, numel(&k), &k.x));
    TSR_TRY(tsr__out(call, 5, TSR_OPERAND_FLOAT, numel(&k), &k.y));
    if (k.centered)
        TSR_TRY(out_if_wanted(call, 6, k.shape.rows, &k.mean));
    TSR_TRY(out_if_wanted(call, 7, k.shape.rows, &k.rstd));
    return tsr__run(call, &code_norm, &k, k.shape.rows);
}

/* ---- backward -------------------------------------------------------------------------------- */

static tsr_status run_backward(const struct tsr_kernel_call *call, struct tsr_norm *k)
{
    if (call->launch)
        return tsr__run(call, &code_norm_backward, k, k->shape.rows);
    double *sums = calloc(2 * k->shape.columns + 1, sizeof *sums);
    if (!sums)
        return tsr__no_memory(call);
    k->sum_w = k->gw.data ? sums : NULL;
    k->sum_b = k->gb.data ? sums + k->shape.columns : NULL;
    tsr_status status = tsr__run(call, &code_norm_backward, k, k->shape.rows);
    free(sums);
    return status;
}

tsr_status tsr__norm_backward(const struct tsr_kernel_call *call)
{
    struct tsr_norm k = norm_of(call);
    uint64_t columns = k.shape.columns;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, numel(&k), &k.g));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, numel(&k), &k.x));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, columns, &k.w));
    TSR_TRY(out_if_wanted(call, 3, numel(&k), &k.gx));
    TSR_TRY(out_if_wanted(call, 4, columns, &k.gw));
    if (k.centered)
        TSR_TRY(out_if_wanted(call, 5, columns, &k.gb));
    if (k.centered)
        TSR_TRY(tsr__in(call, 6, TSR_OPERAND_FLOAT, k.shape.rows, &k.mean));
    TSR_TRY(tsr__in(call, k.centered ? 7 : 6, TSR_OPERAND_FLOAT, k.shape.rows, &k.rstd));
    return run_backward(call, &k);
}

tsr_status tsr__add_norm_backward(const struct tsr_kernel_call *call)
{
    struct tsr_norm k = norm_of(call);
    uint64_t columns = k.shape.columns;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, numel(&k), &k.g));
    if (tsr_slot(call, 1))
        TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, numel(&k), &k.gh));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, numel(&k), &k.x));
    TSR_TRY(tsr__in(call, 3, TSR_OPERAND_FLOAT, columns, &k.w));
    TSR_TRY(out_if_wanted(call, 4, numel(&k), &k.gx));
    TSR_TRY(out_if_wanted(call, 5, columns, &k.gw));
    if (k.centered)
        TSR_TRY(out_if_wanted(call, 6, columns, &k.gb));
    if (k.centered)
        TSR_TRY(tsr__in(call, 7, TSR_OPERAND_FLOAT, k.shape.rows, &k.mean));
    TSR_TRY(tsr__in(call, 8, TSR_OPERAND_FLOAT, k.shape.rows, &k.rstd));
    return run_backward(call, &k);
}
