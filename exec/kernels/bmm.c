/* bmm.c: the batched products of attention that is written with matrix products. A head at a time,
 * BLOCK queries at a time, from copies in the type that computes. Three forms:
 *
 *   outer        scores(i, j)  = alpha x(i) y(j)             scores, grad_p
 *   apply        out(i)        = alpha sum_j p(i, j) y(j)    values, grad_q
 *   transposed   out(j)        = alpha sum_i p(i, j) x(i)    grad_k, grad_v
 */
#include <stdlib.h>

#include "call.h"
#include "gemm.h"
#include "rows.h"
#include "table.h"

enum { BLOCK = 128 };

struct shape {
    uint64_t batch, seq, heads, dim;
    uint64_t tokens, scores; /* elements of the two kinds of operands */
    double alpha;
};

static tsr_status shape_of(const struct tsr_kernel_call *call, bool scaled, struct shape *s)
{
    TSR_TRY(tsr__need_args(call, 4));
    const uint64_t *a = call->work->args;
    *s = (struct shape){.batch = a[0], .seq = a[1], .heads = a[2], .dim = a[3]};
    uint64_t heads = tsr__product3(s->batch, s->heads, 1);
    s->tokens = tsr__product3(heads, s->seq, s->dim);
    s->scores = tsr__product3(heads, s->seq, s->seq);
    s->alpha = scaled ? call->work->constants[0] : 1;
    return TSR_OK;
}

#define TSR_REAL_F64 0
#include "bmm_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "bmm_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(bmm_outer)
TSR_KERNEL_OF_REALS(bmm_apply)
TSR_KERNEL_OF_REALS(bmm_transposed)
