/* launch_copies.c: kernels that only move bytes (CUDA's copy engines do it), and the gradient of
 * an embedding, for which tokens are sorted first.
 */
#include <stdio.h>
#include <string.h>

#include "exec/cuda/gpu/slow.h"
#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/grid/grid.h"
#include "exec/cuda/launch/cuda_launch.h"
#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"
#include "exec/kernels/elements/embedding.h"

static tsr_status two_views(const struct tsr_kernel_call *call, const struct tsr_view **from,
                            const struct tsr_view **to)
{
    *from = tsr_slot(call, 0);
    *to = tsr_slot(call, 1);
    if (!*from || !*to || !((*from)->access & TSR_READ) || !((*to)->access & TSR_WRITE))
        return tsr__defect(call, "a copy from slot 0 to slot 1 has not both");
    return TSR_OK;
}

static bool has_rows(const struct tsr_view *v)
{
    return v->width && v->pitch > v->width && v->bytes > v->width;
}

/* Bytes that are there, without what lies between rows. */
static uint64_t dense_bytes(const struct tsr_view *v)
{
    if (!has_rows(v))
        return v->bytes;
    uint64_t whole = v->bytes / v->pitch, rest = v->bytes % v->pitch;
    return whole * v->width + tsr_min_u64(rest, v->width);
}

/* Pageable host memory is copied by the driver to pinned memory first, and the host waits for it.
 */
static tsr_status check_pinned(const struct tsr_kernel_call *call, const struct tsr_view *host)
{
    struct cudaPointerAttributes found;
    char what[192];
    if (host->bytes == 0 || cudaPointerGetAttributes(&found, host->data) != cudaSuccess ||
        found.type != cudaMemoryTypeUnregistered) {
        (void)cudaGetLastError();
        return TSR_OK;
    }
    (void)snprintf(what, sizeof what, "kernel %s: %llu bytes of host memory that is not pinned",
                   call->work->name, (unsigned long long)host->bytes);
    return tsr_slow_take(tsr_cuda_context(call)->slow, TSR_SLOW_COPY, what);
}

tsr_status tsr__cuda_copy(const struct tsr_kernel_call *call)
{
    const struct tsr_view *from, *to;
    cudaStream_t stream = tsr_cuda_context(call)->stream;
    TSR_TRY(two_views(call, &from, &to));
    if (!strncmp(call->work->name, "h2d_", 4) || !strncmp(call->work->name, "d2h_", 4))
        TSR_TRY(check_pinned(call, call->work->name[0] == 'h' ? from : to));
    uint64_t n = dense_bytes(from), width = has_rows(from) ? from->width : to->width;
    bool rows = has_rows(from) || has_rows(to);
    if (!rows) { /* as many as both have */
        uint64_t both = tsr_min_u64(n, dense_bytes(to));
        if (both > 0) /* a graph has no node of nothing */
            TSR_CUDA(call->work->name,
                     cudaMemcpyAsync(to->data, from->data, both, cudaMemcpyDefault, stream));
        return TSR_OK;
    }
    if (n != dense_bytes(to) || (has_rows(to) && to->width != width) || n % width)
        return tsr__copy_bytes(call); /* a kernel: rows that the copy engines do not have */
    TSR_CUDA(call->work->name, cudaMemcpy2DAsync(to->data, has_rows(to) ? to->pitch : width,
                                                 from->data, has_rows(from) ? from->pitch : width,
                                                 width, n / width, cudaMemcpyDefault, stream));
    return TSR_OK;
}

/* Zeros are the same bytes in every dtype. */
tsr_status tsr_cuda_fill(const struct tsr_kernel_call *call)
{
    const struct tsr_view *v = tsr_slot(call, 0);
    bool zeros = v && (v->dtype == TSR_DTYPE_NONE || call->factor == 0);
    if (!zeros || !(v->access & TSR_WRITE) || v->pitch)
        return tsr_host_fill(call);
    if (v->bytes > 0)
        TSR_CUDA("fill", cudaMemsetAsync(v->data, 0, v->bytes, tsr_cuda_context(call)->stream));
    return TSR_OK;
}

/* ---- the gradient of an embedding ------------------------------------------------------------ */

/* The gradient of an embedding. Tokens are sorted by row in the stream's
 * scratch (kernels/grid/grid.h), then every row sums its tokens in their order. */

/* A thread for each of n items, but no more than fill the GPU many times. */
static tsr_status launch(const struct tsr_kernel_call *call, tsr_cuda_kernel kernel, uint64_t n,
                         const void *params)
{
    uint64_t most = (uint64_t)tsr_cuda_context(call)->n_sms * 128;
    const struct tsr_cuda_grid grid = {
        .blocks = (unsigned)tsr_min_u64(tsr_ceil_div(n, TSR_CUDA_THREADS), most),
        .threads = TSR_CUDA_THREADS};
    return n ? tsr_cuda_launch(call, kernel, grid, params) : TSR_OK;
}

/* Rows of the gradient from e->first on, as many as `k` has. */
static tsr_status rows(const struct tsr_kernel_call *call, const struct tsr_tokens *k,
                       struct tsr_embedding_grad *e)
{
    tsr_cuda_kernel sum =
        tsr__is_wide(call) ? tsr_cuda_embedding_grad_f64 : tsr_cuda_embedding_grad_f32;
    TSR_TRY(launch(call, tsr_cuda_tokens_clear, k->rows, k));
    TSR_TRY(launch(call, tsr_cuda_tokens_count, k->ids.n, k));
    TSR_TRY(launch(call, tsr_cuda_tokens_start, k->ids.n, k));
    TSR_TRY(launch(call, tsr_cuda_tokens_gather, k->ids.n, k));
    TSR_TRY(launch(call, tsr_cuda_tokens_order, k->ids.n, k));
    e->first = k->begin;
    e->rows = k->rows;
    e->start = k->start;
    e->count = k->count;
    e->order = k->places;
    return launch(call, sum, k->rows * tsr_ceil_div(e->columns, TSR_CUDA_ITEMS), e);
}

tsr_status tsr__cuda_embedding_grad(const struct tsr_kernel_call *call)
{
    struct tsr_embedding_grad e;
    struct tsr_tokens k = {.first = tsr__arg(call, 0), .all = tsr__arg(call, 1)};
    void *scratch;
    TSR_TRY(tsr__embedding_grad(call, &e, &k.ids));
    if (e.out.n == 0)
        return TSR_OK;
    /* Two words a token and two a row: as many rows at a time as there is room for. */
    const uint64_t fixed = 4 * (2 * k.ids.n + 1), least = tsr_min_u64(k.all, 1024);
    TSR_TRY(tsr_cuda_scratch(call, fixed + 8 * least, &scratch));
    uint64_t room = (tsr_cuda_context(call)->scratch_bytes - fixed) / 8;
    uint64_t part = tsr_min_u64(k.all, room);
    k.total = (uint32_t *)scratch;
    k.places = k.total + 1;
    k.tokens = k.places + k.ids.n;
    k.count = k.tokens + k.ids.n;
    k.start = k.count + part;
    for (k.begin = 0; k.begin < k.all; k.begin += part) {
        k.rows = tsr_min_u64(part, k.all - k.begin);
        TSR_TRY(rows(call, &k, &e));
    }
    return TSR_OK;
}
