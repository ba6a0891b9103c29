/* launch_blas.c: the products of engine/ops/KERNELS.md on the GPU: by cuBLASLt where it can, by a
 * kernel of our own (kernels/product.cu) where operands have different types or rows that repeat.
 */
#include <stdio.h>

#include "exec/cuda/blas/blas.h"
#include "exec/cuda/gpu/slow.h"
#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/grid/grid.h"
#include "exec/cuda/launch/cuda_launch.h"
#include "exec/kernels/matrix/matmul.h"

/* ---- where matrices lie ---------------------------------------------------------------------- */

/* As struct tsr_factor, in elements of memory. */
struct place {
    uint64_t row, outer, inner;
};

/* The distance in memory of what is `step` elements of the tensor apart, whole rows of it. */
static bool over_rows(const struct tsr_elems *e, uint64_t n, uint64_t step, uint64_t *out)
{
    *out = n > 1 ? step / e->width * e->pitch : 0;
    return n == 1 || step % e->width == 0;
}

/* False: the matrices are not evenly spaced in memory. */
static bool lies(const struct tsr_factor *f, const struct tsr_plain_product *p, uint64_t columns,
                 struct place *out)
{
    const struct tsr_elems *e = &f->elems;
    *out = (struct place){f->row, f->outer, f->inner};
    if (e->width == 0)
        return true;
    out->row = e->pitch;
    if (f->row != e->width || !over_rows(e, p->n_outer, f->outer, &out->outer))
        return false;
    if (e->pitch < e->width) { /* every matrix of a row is the same one */
        out->inner = 0;
        return columns <= e->pitch && (p->n_inner == 1 || f->inner % e->pitch == 0);
    }
    if (p->n_inner > 1 && f->inner < e->width) /* side by side in a row */
        return (p->n_inner - 1) * f->inner + columns <= e->width;
    return over_rows(e, p->n_inner, f->inner, &out->inner);
}

static const void *at(const struct tsr_factor *f, uint64_t elements)
{
    return f->elems.data + elements * f->elems.item;
}

/* ---- by cuBLASLt ----------------------------------------------------------------------------- */

static bool takes_bias(const struct tsr_plain_product *p)
{
    return !p->bias.data ||
           (p->bias.width == 0 && p->bias.dtype == p->out.elems.dtype && p->bias.dtype != TSR_F64);
}

/* TSR_EUNSUPPORTED: it is not for cuBLASLt. A launch for each of the outer matrices. */
static tsr_status by_blas(const struct tsr_kernel_call *call, const struct tsr_plain_product *p)
{
    const struct tsr_cuda_context *context = tsr_cuda_context(call);
    const struct tsr_factor *a = &p->a, *b = &p->b, *out = &p->out;
    struct place pa, pb, po;
    if (p->k == 0 || a->elems.dtype != b->elems.dtype || !takes_bias(p) ||
        !lies(a, p, a->transposed ? p->m : p->k, &pa) ||
        !lies(b, p, b->transposed ? p->k : p->n, &pb) || !lies(out, p, p->n, &po))
        return TSR_EUNSUPPORTED;
    struct tsr_blas_gemm g = {.m = p->m,
                              .n = p->n,
                              .k = p->k,
                              .batch = p->n_inner,
                              .transpose_a = a->transposed,
                              .transpose_b = b->transposed,
                              .dtype = a->elems.dtype,
                              .dtype_out = out->elems.dtype,
                              .bias = p->bias.data,
                              .row_a = pa.row,
                              .row_b = pb.row,
                              .row_out = po.row,
                              .step_a = pa.inner,
                              .step_b = pb.inner,
                              .step_out = po.inner,
                              .alpha = p->alpha,
                              .beta = p->add ? 1 : 0};
    for (uint64_t o = 0; o < p->n_outer; o++) {
        g.a = at(a, o * pa.outer);
        g.b = at(b, o * pb.outer);
        g.out = out->elems.data + o * po.outer * out->elems.item;
        TSR_TRY(tsr_blas_run(context->blas, context, &g));
    }
    return TSR_OK;
}

/* ---- by our own kernel ----------------------------------------------------------------------- */

static tsr_status by_kernel(const struct tsr_kernel_call *call, const struct tsr_plain_product *p)
{
    uint64_t across = tsr_ceil_div(p->n, TSR_PRODUCT_SIDE);
    uint64_t tiles = tsr_ceil_div(p->m, TSR_PRODUCT_SIDE) * across * p->n_outer * p->n_inner;
    const struct tsr_cuda_grid grid = {.blocks = (unsigned)tsr_min_u64(tiles, 1u << 30),
                                       .threads = TSR_CUDA_THREADS};
    return tsr_cuda_launch(call, tsr__is_wide(call) ? tsr_cuda_product_f64 : tsr_cuda_product_f32,
                           grid, p);
}

static tsr_status by_kernel_instead(const struct tsr_kernel_call *call,
                                    const struct tsr_plain_product *p)
{
    struct tsr_slow *slow = tsr_cuda_context(call)->slow;
    char what[320];
    (void)snprintf(
        what, sizeof what,
        "kernel %s: product (%llu, %llu) x (%llu, %llu) in %s, for which cuBLASLt has no algorithm",
        call->work->name, (unsigned long long)p->m, (unsigned long long)p->k,
        (unsigned long long)p->k, (unsigned long long)p->n,
        tsr_dtype_name((tsr_dtype)p->a.elems.dtype));
    if (p->k > 0) /* else there is nothing to multiply */
        TSR_TRY(tsr_slow_take(slow, TSR_SLOW_PRODUCT, what));
    return by_kernel(call, p);
}

static tsr_status multiply(const struct tsr_kernel_call *call, const struct tsr_plain_product *p)
{
    struct tsr_slow *slow = tsr_cuda_context(call)->slow;
    if (p->m == 0 || p->n == 0 || p->n_outer == 0 || p->n_inner == 0)
        return TSR_OK;
    if (slow && tsr_dtype_bytes((tsr_dtype)p->a.elems.dtype) == 2)
        slow->is_half = true;
    tsr_status status = by_blas(call, p);
    return status == TSR_EUNSUPPORTED ? by_kernel_instead(call, p) : status;
}

/* ---- kernels --------------------------------------------------------------------------------- */

tsr_status tsr__cuda_mm(const struct tsr_kernel_call *call)
{
    struct tsr_product x;
    TSR_TRY(tsr__product_operands(call, &x));
    const struct tsr_plain_product p = {
        .m = x.m,
        .n = x.n,
        .k = x.k,
        .n_outer = 1,
        .n_inner = 1,
        .alpha = 1,
        .add = x.into.data != NULL,
        .bias = x.bias,
        .a = {.elems = x.a, .row = x.ta ? x.m : x.k, .transposed = x.ta},
        .b = {.elems = x.b, .row = x.tb ? x.k : x.n, .transposed = x.tb},
        .out = {.elems = x.out, .row = x.n}};
    return multiply(call, &p);
}

/* The larger of the two batches is cuBLASLt's; the other is a loop. */
static void turn(struct tsr_plain_product *p)
{
    struct tsr_factor *all[] = {&p->a, &p->b, &p->out};
    uint64_t n = p->n_outer;
    if (p->n_outer <= p->n_inner)
        return;
    p->n_outer = p->n_inner;
    p->n_inner = n;
    for (int i = 0; i < 3; i++) {
        uint64_t step = all[i]->outer;
        all[i]->outer = all[i]->inner;
        all[i]->inner = step;
    }
}

tsr_status tsr__cuda_bmm(const struct tsr_kernel_call *call)
{
    struct tsr_bmm s;
    TSR_TRY(tsr__bmm_operands(call, &s));
    const uint64_t square = s.seq * s.seq, token = s.heads * s.dim;
    const struct tsr_factor tokens = {.row = token, .outer = s.seq * token, .inner = s.dim},
                            scores = {.row = s.seq, .outer = s.heads * square, .inner = square};
    bool outer = s.form == TSR_BMM_OUTER;
    struct tsr_plain_product p = {.m = s.seq,
                                  .n = outer ? s.seq : s.dim,
                                  .k = outer ? s.dim : s.seq,
                                  .n_outer = s.batch,
                                  .n_inner = s.heads,
                                  .alpha = s.alpha,
                                  .a = outer ? tokens : scores,
                                  .b = tokens,
                                  .out = outer ? scores : tokens};
    p.a.elems = s.a;
    p.b.elems = s.b;
    p.out.elems = s.out;
    p.a.transposed = s.form == TSR_BMM_TRANSPOSED;
    p.b.transposed = outer;
    turn(&p);
    return multiply(call, &p);
}
