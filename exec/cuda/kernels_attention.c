/* kernels_attention.c: attention on the GPU: by cuDNN where it can, else by kernels of our own. */
#include "exec/kernels/attention.h"
#include "kernels.h"
#include "kernels/attention_plain.h"
#include "kernels/code.h"
#include "kernels/declare.h"

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
    p->side = TSR_ATTENTION_MAX_SIDE;
    while (p->side >= TSR_ATTENTION_MIN_SIDE &&
           tsr_attention_shared(p->side, p->a.dim) * item > MOST_SHARED)
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

tsr_status tsr__cuda_attention(const struct tsr_kernel_call *call)
{
    struct tsr_attention_operands a;
    TSR_TRY(tsr__attention_operands(call, true, &a));
    return plain(call, &a, true);
}

tsr_status tsr__cuda_attention_backward(const struct tsr_kernel_call *call)
{
    struct tsr_attention_operands a;
    TSR_TRY(tsr__attention_operands(call, false, &a));
    return plain(call, &a, false);
}
