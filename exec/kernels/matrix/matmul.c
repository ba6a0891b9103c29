/* matmul.c: products: of matrices in memory (OpenBLAS, or plain loops; oneDNN for bf16), of a
 * linear layer, forward and backward, and the batched ones of attention that is written with matrix
 * products.
 *
 * Operands that are dense and of the type that computes are multiplied where they lie. Others of a
 * linear layer are converted in panels of at most PANEL rows and columns, so that temporaries stay
 * small beside a vocabulary; the panel of a that was loaded last is kept while b's change. Batched
 * products go a head at a time, BLOCK queries at a time, from copies in the type that computes.
 */
#include "exec/kernels/matrix/matmul.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "exec/kernels/call/kernel.h"
#include "exec/kernels/call/table.h"
#include "exec/kernels/matrix/libraries.h"
#include "exec/kernels/tensor/rows.h"

static bool fits_blas(const struct tsr_gemm *g)
{
    return g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX && g->lda <= INT_MAX &&
           g->ldb <= INT_MAX && g->ldc <= INT_MAX;
}

enum { PANEL = 2048, BLOCK = 128 };

/* A matrix as it is stored, and where its rows lie if it can be used in place. */
struct matrix {
    const struct tsr_elems *elems;
    uint64_t rows, columns, pitch; /* pitch 0: has to be converted */
};

static struct matrix matrix_of(const struct tsr_elems *e, uint64_t rows, uint64_t columns,
                               uint8_t dtype)
{
    struct matrix m = {e, rows, columns, 0};
    if (e->dtype != dtype || columns == 0)
        return m;
    if (e->width == 0)
        m.pitch = columns;
    else if (e->width == columns && e->pitch >= columns)
        m.pitch = e->pitch;
    return m;
}

#define TSR_REAL_F64 0
#include "exec/kernels/matrix/matmul_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/matrix/matmul_real.h"
#undef TSR_REAL_F64

static tsr_status take(const struct tsr_kernel_call *call, unsigned slot, uint64_t rows,
                       uint64_t columns, struct tsr_elems *out)
{
    return tsr__in(call, slot, TSR_OPERAND_FLOAT, tsr__product3(rows, columns, 1), out);
}

static tsr_status take_out(const struct tsr_kernel_call *call, struct tsr_product *p)
{
    return tsr__out(call, 3, TSR_OPERAND_FLOAT, tsr__product3(p->m, p->n, 1), &p->out);
}

/* x w^T, or x w where args[0] is 1. */
static tsr_status forward(const struct tsr_kernel_call *call, struct tsr_product *p)
{
    const uint64_t *d = call->work->dims;
    *p = (struct tsr_product){.m = d[0], .n = d[1], .k = d[2], .tb = tsr__arg(call, 0) == 0};
    TSR_TRY(take(call, 0, p->m, p->k, &p->a));
    TSR_TRY(take(call, 1, p->n, p->k, &p->b));
    if (strcmp(call->work->name, "addmm") == 0)
        TSR_TRY(take(call, 2, 1, p->n, &p->bias));
    return take_out(call, p);
}

/* What the result is added to. */
static tsr_status take_into(const struct tsr_kernel_call *call, struct tsr_product *p)
{
    TSR_TRY(take(call, 2, p->m, p->n, &p->into));
    if (p->into.data != p->out.data || p->into.dtype != p->out.dtype)
        return tsr__defect(call, "slot 2: the sum is not in the place of the result");
    return TSR_OK;
}

/* g^T x, or x^T g where args[0] is 1; addmm_weight_grad: in place of what it is added to. */
static tsr_status weight_grad(const struct tsr_kernel_call *call, struct tsr_product *p)
{
    const uint64_t *d = call->work->dims; /* out, in, rows */
    *p = (struct tsr_product){.m = d[0], .n = d[1], .k = d[2], .ta = true};
    TSR_TRY(take(call, 0, p->k, p->m, &p->a));
    TSR_TRY(take(call, 1, p->k, p->n, &p->b));
    TSR_TRY(take_out(call, p));
    if (strcmp(call->work->name, "addmm_weight_grad") == 0) {
        return take_into(call, p);
    } else if (tsr__arg(call, 0)) {
        struct tsr_product turned = *p;
        turned.m = p->n;
        turned.n = p->m;
        turned.a = p->b;
        turned.b = p->a;
        *p = turned;
    }
    return TSR_OK;
}

/* g w, or g w^T where args[0] is 1; addmm_input_grad: in place of what it is added to. */
static tsr_status input_grad(const struct tsr_kernel_call *call, struct tsr_product *p)
{
    const uint64_t *d = call->work->dims; /* rows, in, out */
    *p = (struct tsr_product){.m = d[0], .n = d[1], .k = d[2], .tb = tsr__arg(call, 0) != 0};
    TSR_TRY(take(call, 0, p->m, p->k, &p->a));
    TSR_TRY(take(call, 1, p->k, p->n, &p->b));
    TSR_TRY(take_out(call, p));
    return strcmp(call->work->name, "addmm_input_grad") == 0 ? take_into(call, p) : TSR_OK;
}

tsr_status tsr__product_operands(const struct tsr_kernel_call *call, struct tsr_product *p)
{
    const char *name = call->work->name;
    if (strcmp(name, "mm_input_grad") == 0 || strcmp(name, "addmm_input_grad") == 0)
        return input_grad(call, p);
    if (strcmp(name, "mm") == 0 || strcmp(name, "addmm") == 0)
        return forward(call, p);
    return weight_grad(call, p);
}

/* ---- of bf16 --------------------------------------------------------------------------------- */

bool tsr__gemm_bf16(const struct tsr_gemm *g, const uint16_t *a, const uint16_t *b, float *c)
{
    const struct tsr_host_onednn *d = tsr__onednn();
    if (g->m == 0 || g->n == 0)
        return true;
    if (g->k == 0) {
        tsr__gemm_f32(g, NULL, NULL, c);
        return true;
    }
    d->set_threads(1);
    return d->gemm(g->ta ? 'T' : 'N', g->tb ? 'T' : 'N', (int64_t)g->m, (int64_t)g->n,
                   (int64_t)g->k, (float)g->alpha, a, (int64_t)g->lda, b, (int64_t)g->ldb,
                   (float)g->beta, c, (int64_t)g->ldc) == 0;
}

/* Of a and b where they lie, in panels of the result: sums over all of k are in f32, and rounded
 * once. */
static tsr_status multiply_bf16(const struct tsr_kernel_call *call, const struct tsr_product *p,
                                const struct matrix *a, const struct matrix *b)
{
    struct matrix out = matrix_of(&p->out, p->m, p->n, TSR_F32);
    uint64_t rows = tsr_min_u64(p->m, PANEL), columns = tsr_min_u64(p->n, PANEL);
    float *own = out.pitch ? NULL : malloc((rows * columns + 1) * sizeof *own);
    bool ok = own || out.pitch;
    for (uint64_t i = 0; ok && i < p->m; i += rows)
        for (uint64_t j = 0; ok && j < p->n; j += columns) {
            struct tsr_gemm g = {.ta = p->ta, .tb = p->tb, .k = p->k, .alpha = 1};
            g.m = tsr_min_u64(rows, p->m - i);
            g.n = tsr_min_u64(columns, p->n - j);
            g.lda = a->pitch;
            g.ldb = b->pitch;
            g.ldc = own ? g.n : out.pitch;
            g.beta = p->bias.data || p->into.data;
            float *c = own ? own : (float *)p->out.data + i * g.ldc + j;
            begin_result_f32(p, i, j, g.m, g.n, c, g.ldc);
            ok = tsr__gemm_bf16(&g, (const uint16_t *)a->elems->data + (p->ta ? i : i * g.lda),
                                (const uint16_t *)b->elems->data + (p->tb ? j * g.ldb : j), c);
            for (uint64_t r = 0; ok && own && r < g.m; r++)
                tsr_store_f32(&p->out, (i + r) * p->n + j, g.n, c + r * g.ldc);
        }
    free(own);
    return ok ? TSR_OK : tsr__no_memory(call);
}

tsr_status tsr__mm(const struct tsr_kernel_call *call)
{
    struct tsr_product p;
    TSR_TRY(tsr__product_operands(call, &p));
    struct matrix a = matrix_of(&p.a, p.ta ? p.k : p.m, p.ta ? p.m : p.k, TSR_BF16);
    struct matrix b = matrix_of(&p.b, p.tb ? p.n : p.k, p.tb ? p.k : p.n, TSR_BF16);
    if (tsr__onednn() && a.pitch && b.pitch && !tsr__is_wide(call))
        return multiply_bf16(call, &p, &a, &b);
    return tsr__is_wide(call) ? multiply_f64(call, &p) : multiply_f32(call, &p);
}

/* ---- batched products of attention ----------------------------------------------------------- */

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

tsr_status tsr__bmm(const struct tsr_kernel_call *call)
{
    struct tsr_bmm s;
    TSR_TRY(tsr__bmm_operands(call, &s));
    return tsr__is_wide(call) ? bmm_f64(call, &s) : bmm_f32(call, &s);
}
