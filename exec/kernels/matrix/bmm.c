/* bmm.c: the batched products of attention that is written with matrix products (matmul.h). A head at
 * a time, BLOCK queries at a time, from copies in the type that computes.
 */
#include <stdlib.h>

#include "exec/kernels/call/table.h"
#include "exec/kernels/matrix/gemm.h"
#include "exec/kernels/matrix/matmul.h"
#include "exec/kernels/tensor/rows.h"

enum { BLOCK = 128 };

static enum tsr_bmm_form form_of(const char *name)
{
    if (strcmp(name, "bmm_scores") == 0 || strcmp(name, "bmm_grad_p") == 0)
        return TSR_BMM_OUTER;
    if (strcmp(name, "bmm_values") == 0 || strcmp(name, "bmm_grad_q") == 0)
        return TSR_BMM_APPLY;
    return TSR_BMM_TRANSPOSED;
}

static bool is_scaled(const char *name)
{
    return strcmp(name, "bmm_scores") == 0 || strcmp(name, "bmm_grad_q") == 0 ||
           strcmp(name, "bmm_grad_k") == 0;
}

tsr_status tsr__bmm_operands(const struct tsr_kernel_call *call, struct tsr_bmm *s)
{
    const char *name = call->work->name;
    TSR_TRY(tsr__need_args(call, 4));
    const uint64_t *a = call->work->args;
    *s = (struct tsr_bmm){.form = form_of(name),
                          .batch = a[0],
                          .seq = a[1],
                          .heads = a[2],
                          .dim = a[3],
                          .alpha = is_scaled(name) ? call->work->constants[0] : 1};
    bool outer = s->form == TSR_BMM_OUTER, second = strcmp(name, "bmm_grad_v") == 0;
    uint64_t heads = tsr__product3(s->batch, s->heads, 1);
    uint64_t tokens = tsr__product3(heads, s->seq, s->dim);
    uint64_t scores = tsr__product3(heads, s->seq, s->seq);
    TSR_TRY(tsr__in(call, second ? 1 : 0, TSR_OPERAND_FLOAT, outer ? tokens : scores, &s->a));
    TSR_TRY(tsr__in(call, second ? 0 : 1, TSR_OPERAND_FLOAT, tokens, &s->b));
    return tsr__out(call, 3, TSR_OPERAND_FLOAT, outer ? scores : tokens, &s->out);
}

#define TSR_REAL_F64 0
#include "exec/kernels/matrix/bmm_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/matrix/bmm_real.h"
#undef TSR_REAL_F64

tsr_status tsr__bmm(const struct tsr_kernel_call *call)
{
    struct tsr_bmm s;
    TSR_TRY(tsr__bmm_operands(call, &s));
    return tsr__is_wide(call) ? bmm_f64(call, &s) : bmm_f32(call, &s);
}
