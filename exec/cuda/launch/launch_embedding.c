/* launch_embedding.c: the gradient of an embedding. Tokens are sorted by row in the stream's
 * scratch (kernels/tokens.h), then every row sums its tokens in their order.
 */
#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/grid/tokens.h"
#include "exec/cuda/launch/cuda_kernels.h"
#include "exec/cuda/launch/cuda_launch.h"
#include "exec/kernels/elements/embedding.h"

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
