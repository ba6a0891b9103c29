/* softmax.c: softmax and log-softmax of rows, and their parts where a vocabulary is cut over ranks.
 */
#include "exec/kernels/rows/softmax.h"

#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"

#define TSR_REAL_F64 0
#include "exec/kernels/rows/softmax_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/rows/softmax_real.h"
#undef TSR_REAL_F64

TSR_CODE(softmax, softmax, struct tsr_softmax);
TSR_CODE(softmax_backward, softmax_backward, struct tsr_softmax);
TSR_CODE(log_softmax, log_softmax, struct tsr_softmax);
TSR_CODE(log_softmax_backward, log_softmax_backward, struct tsr_softmax);
TSR_CODE(row_max, row_max, struct tsr_softmax);
TSR_CODE(row_exp_sum, row_exp_sum, struct tsr_softmax);
TSR_CODE(log_softmax_tp, log_softmax_tp, struct tsr_softmax);

/* Rows of x (slot 0). */
static tsr_status take_rows(const struct tsr_kernel_call *call, struct tsr_softmax *k)
{
    *k = (struct tsr_softmax){
        .shape = {.rows = call->work->dims[0], .columns = call->work->dims[1]}};
    return tsr__in(call, 0, TSR_OPERAND_FLOAT, tsr__product3(k->shape.rows, k->shape.columns, 1),
                   &k->x);
}

/* Rows of the same length. */
static tsr_status take_out(const struct tsr_kernel_call *call, unsigned slot, struct tsr_softmax *k)
{
    return tsr__out(call, slot, TSR_OPERAND_FLOAT, k->x.n, &k->out);
}

static tsr_status run_one(const struct tsr_kernel_call *call, const struct tsr_code *code,
                          bool causal)
{
    struct tsr_softmax k;
    TSR_TRY(take_rows(call, &k));
    TSR_TRY(take_out(call, 1, &k));
    k.causal = causal;
    return tsr__run(call, code, &k, k.shape.rows);
}

static tsr_status run_two(const struct tsr_kernel_call *call, const struct tsr_code *code)
{
    struct tsr_softmax k;
    TSR_TRY(take_rows(call, &k));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.x.n, &k.y));
    TSR_TRY(take_out(call, 2, &k));
    return tsr__run(call, code, &k, k.shape.rows);
}

tsr_status tsr__softmax(const struct tsr_kernel_call *call)
{
    return run_one(call, &code_softmax, tsr__arg(call, 0) != 0);
}

tsr_status tsr__softmax_backward(const struct tsr_kernel_call *call)
{
    return run_two(call, &code_softmax_backward);
}

tsr_status tsr__log_softmax(const struct tsr_kernel_call *call)
{
    return run_one(call, &code_log_softmax, false);
}

tsr_status tsr__log_softmax_backward(const struct tsr_kernel_call *call)
{
    return run_two(call, &code_log_softmax_backward);
}

/* ---- a vocabulary that is cut ---------------------------------------------------------------- */

tsr_status tsr__row_max(const struct tsr_kernel_call *call)
{
    struct tsr_softmax k;
    TSR_TRY(take_rows(call, &k));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, k.shape.rows, &k.out));
    return tsr__run(call, &code_row_max, &k, k.shape.rows);
}

tsr_status tsr__row_exp_sum(const struct tsr_kernel_call *call)
{
    struct tsr_softmax k;
    TSR_TRY(take_rows(call, &k));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.shape.rows, &k.max));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, k.shape.rows, &k.out));
    return tsr__run(call, &code_row_exp_sum, &k, k.shape.rows);
}

tsr_status tsr__log_softmax_tp(const struct tsr_kernel_call *call)
{
    struct tsr_softmax k;
    TSR_TRY(take_rows(call, &k));
    TSR_TRY(take_out(call, 3, &k));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.shape.rows, &k.max));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k.shape.rows, &k.sum));
    return tsr__run(call, &code_log_softmax_tp, &k, k.shape.rows);
}
