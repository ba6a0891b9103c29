/* launch_attention.c: attention on the GPU: by cuDNN where it can, else by kernels of our own. */
#include <stdio.h>

#include "exec/cuda/cudnn/cudnn_attention.h"
#include "exec/cuda/gpu/slow.h"
#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/grid/grid.h"
#include "exec/cuda/launch/cuda_launch.h"
#include "exec/kernels/matrix/attention.h"

/* ---- by cuDNN -------------------------------------------------------------------------------- */

/* Tensors of 16 bits in rows of all heads, which cuDNN reads 16 bytes at a time. */
static bool set_tensor(const struct tsr_elems *e, uint8_t dtype, uint64_t heads, uint64_t dim,
                       uint64_t *row, uint64_t *head)
{
    *row = e->width ? e->pitch : heads * dim;
    *head = dim;
    return e->dtype == dtype && (e->width == 0 || (e->width == heads * dim && *row >= e->width)) &&
           (uintptr_t)e->data % 16 == 0 && *row % 8 == 0 && dim % 8 == 0;
}

/* False: it is not for cuDNN. */
static bool set_shape(const struct tsr_attention_operands *a, bool forward, bool deterministic,
                      struct tsr_cudnn_shape *s, struct tsr_attention_pointers *at)
{
    const struct tsr_elems *const all[TSR_ATTENTION_TENSORS] = {&a->q, &a->k,  &a->v,  &a->out,
                                                                &a->g, &a->gq, &a->gk, &a->gv};
    const uint64_t heads[TSR_ATTENTION_TENSORS] = {a->heads, a->kv_heads, a->kv_heads, a->heads,
                                                   a->heads, a->heads,    a->kv_heads, a->kv_heads};
    uint8_t dtype = a->q.dtype;
    bool fits = (dtype == TSR_BF16 || dtype == TSR_F16) && a->lse.dtype == TSR_F32 &&
                a->lse.width == 0 && a->batch && a->queries && a->keys && a->dim;
    *s = (struct tsr_cudnn_shape){.batch = a->batch,
                                  .heads = a->heads,
                                  .kv_heads = a->kv_heads,
                                  .queries = a->queries,
                                  .keys = a->keys,
                                  .d = a->dim,
                                  .lse_row = a->lse_row,
                                  .half = dtype == TSR_F16,
                                  .causal = a->causal,
                                  .backward = !forward,
                                  .deterministic = !forward && deterministic,
                                  .scale = a->scale};
    *at = (struct tsr_attention_pointers){.lse = (float *)(void *)a->lse.data};
    for (int i = 0; i < (forward ? TSR_ATTENTION_G : TSR_ATTENTION_TENSORS) && fits; i++) {
        fits = set_tensor(all[i], dtype, heads[i], a->dim, &s->row[i], &s->head[i]);
        at->tensor[i] = all[i]->data;
    }
    return fits;
}

/* cuDNN writes no more than the queries' lse. */
static tsr_status pad_lse(const struct tsr_kernel_call *call,
                          const struct tsr_attention_operands *a)
{
    const struct tsr_attention_padding p = {
        .lse = a->lse, .heads = a->batch * a->heads, .queries = a->queries, .row = a->lse_row};
    uint64_t n = p.heads * (p.row - p.queries);
    if (n == 0)
        return TSR_OK;
    const struct tsr_cuda_grid grid = {
        .blocks = (unsigned)tsr_min_u64(tsr_ceil_div(n, TSR_CUDA_THREADS), 1024),
        .threads = TSR_CUDA_THREADS};
    return tsr_cuda_launch(call, tsr_cuda_attention_padding, grid, &p);
}

/* TSR_EUNSUPPORTED: it is not for cuDNN, or there is no memory for what it needs (*bytes). */
static tsr_status by_cudnn(const struct tsr_kernel_call *call,
                           const struct tsr_attention_operands *a, bool forward, uint64_t *bytes)
{
    const struct tsr_cuda_context *c = tsr_cuda_context(call);
    struct tsr_cudnn_shape shape;
    struct tsr_attention_pointers at;
    char why[TSR_ATTENTION_TEXT] = "";
    void *workspace;
    *bytes = 0;
    if (!c->attention || !set_shape(a, forward, c->deterministic, &shape, &at))
        return TSR_EUNSUPPORTED;
    const struct tsr_attention_plan *plan = tsr_attention_prepare(c->attention, &shape, bytes);
    if (!plan)
        return TSR_EUNSUPPORTED;
    if (tsr_cuda_scratch(call, *bytes, &workspace) != TSR_OK) {
        tsr_attention_lacks(c->attention, plan, *bytes);
        return TSR_EUNSUPPORTED;
    }
    *bytes = 0;
    if (tsr_attention_run(c->attention, plan, &at, workspace, c->stream, why))
        return tsr_fail(TSR_EBACKEND, "kernel %s: cuDNN says '%s'", call->work->name, why);
    return forward ? pad_lse(call, a) : TSR_OK;
}

/* ---- by our own kernels ---------------------------------------------------------------------- */

/* Two blocks fit on a multiprocessor of an H200, one on that of an A100. */
enum { MOST_SHARED = 112 << 10 };

/* n: tiles are of so many rows in each of `heads`. */
static tsr_status launch(const struct tsr_kernel_call *call, const struct tsr_plain_attention *p,
                         tsr_cuda_kernel f32, tsr_cuda_kernel f64, uint64_t n, uint64_t heads)
{
    bool wide = tsr__is_wide(call);
    uint64_t blocks = tsr_attention_tiles(n, p->side) * heads;
    if (blocks == 0)
        return TSR_OK;
    if (blocks > INT32_MAX)
        return tsr_fail(TSR_EUNSUPPORTED, "kernel %s: too many heads for the GPU",
                        call->work->name);
    const struct tsr_cuda_grid grid = {.blocks = (unsigned)blocks,
                                       .threads = TSR_CUDA_THREADS,
                                       .shared = tsr_attention_shared(p->side, p->a.dim) *
                                                 (wide ? sizeof(double) : sizeof(float))};
    return tsr_cuda_launch(call, wide ? f64 : f32, grid, p);
}

/* The largest tiles that fit. */
static tsr_status size_tiles(const struct tsr_kernel_call *call, struct tsr_plain_attention *p)
{
    uint64_t item = tsr__is_wide(call) ? sizeof(double) : sizeof(float);
    uint64_t most = tsr_min_u64(tsr_cuda_most_shared(call), MOST_SHARED);
    p->side = TSR_ATTENTION_MAX_SIDE;
    while (p->side >= TSR_ATTENTION_MIN_SIDE &&
           tsr_attention_shared(p->side, p->a.dim) * item > most)
        p->side /= 2;
    if (p->side >= TSR_ATTENTION_MIN_SIDE)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED, "kernel %s: heads of %llu elements are too large for the GPU",
                    call->work->name, (unsigned long long)p->a.dim);
}

static tsr_status plain(const struct tsr_kernel_call *call, const struct tsr_attention_operands *a,
                        bool forward)
{
    struct tsr_plain_attention p = {.a = *a};
    TSR_TRY(size_tiles(call, &p));
    if (forward)
        return launch(call, &p, tsr_cuda_attention_forward_f32, tsr_cuda_attention_forward_f64,
                      a->queries, a->batch * a->heads);
    TSR_TRY(launch(call, &p, tsr_cuda_attention_queries_f32, tsr_cuda_attention_queries_f64,
                   a->queries, a->batch * a->heads));
    return launch(call, &p, tsr_cuda_attention_keys_f32, tsr_cuda_attention_keys_f64, a->keys,
                  a->batch * a->kv_heads);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* What cuDNN was to do and did not: without cuDNN the plain kernels are the usual way, and so they
 * are for more bits than 16, which cuDNN does not take. */
static tsr_status note_plain(const struct tsr_kernel_call *call,
                             const struct tsr_attention_operands *a, uint64_t bytes)
{
    const struct tsr_cuda_context *c = tsr_cuda_context(call);
    char what[320];
    if (!c->slow || !c->slow->has_cudnn || tsr_dtype_bytes((tsr_dtype)a->q.dtype) != 2)
        return TSR_OK;
    c->slow->is_half = true;
    int n = snprintf(what, sizeof what, "kernel %s: %llu heads of %llu in %s", call->work->name,
                     (unsigned long long)a->heads, (unsigned long long)a->dim,
                     tsr_dtype_name((tsr_dtype)a->q.dtype));
    if (bytes == 0) {
        (void)snprintf(what + n, sizeof what - (size_t)n, ", for which cuDNN has no plan");
        return tsr_slow_take(c->slow, TSR_SLOW_ATTENTION, what);
    }
    (void)snprintf(what + n, sizeof what - (size_t)n,
                   ", for which cuDNN needs a workspace of %llu bytes and there is no memory",
                   (unsigned long long)bytes);
    return tsr_slow_take(c->slow, TSR_SLOW_SCRATCH, what);
}

static tsr_status attend(const struct tsr_kernel_call *call, bool forward)
{
    struct tsr_attention_operands a;
    uint64_t lacking;
    TSR_TRY(tsr__attention_operands(call, forward, &a));
    tsr_status status = by_cudnn(call, &a, forward, &lacking);
    if (status != TSR_EUNSUPPORTED)
        return status;
    TSR_TRY(note_plain(call, &a, lacking));
    return plain(call, &a, forward);
}

tsr_status tsr__cuda_attention(const struct tsr_kernel_call *call)
{
    return attend(call, true);
}

tsr_status tsr__cuda_attention_backward(const struct tsr_kernel_call *call)
{
    return attend(call, false);
}
