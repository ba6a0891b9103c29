/* launch_copies.c: kernels that only move bytes: CUDA's copy engines do it. */
#include "exec/cuda/launch/cuda_kernels.h"
#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"

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

tsr_status tsr__cuda_copy(const struct tsr_kernel_call *call)
{
    const struct tsr_view *from, *to;
    cudaStream_t stream = tsr_cuda_context(call)->stream;
    TSR_TRY(two_views(call, &from, &to));
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
