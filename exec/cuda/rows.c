/* rows.c: launches of kernels that work row by row. */
#include "kernels/columns.h"
#include "kernels/declare.h"
#include "kernels/team.h"
#include "launch.h"

tsr_status tsr_cuda_scratch(const struct tsr_kernel_call *call, uint64_t bytes, void **out)
{
    const struct tsr_cuda_context *context = tsr_cuda_context(call);
    *out = context->scratch;
    if (bytes <= context->scratch_bytes)
        return TSR_OK;
    return tsr_fail(TSR_EOOM, "kernel %s: needs %llu bytes of scratch, the stream has %llu",
                    call->work->name, (unsigned long long)bytes,
                    (unsigned long long)context->scratch_bytes);
}

/* Every team has a row, but there are no more blocks than fill the GPU a few times. */
tsr_status tsr_cuda_launch_rows(const struct tsr_kernel_call *call, tsr_cuda_kernel kernel,
                                bool wide, unsigned kept, bool grows, const void *params)
{
    const struct tsr_rows *shape = params;
    unsigned threads = tsr_team_threads(shape->columns, grows);
    uint64_t teams = threads / tsr_team_size(shape->columns, threads);
    uint64_t most = (uint64_t)tsr_cuda_context(call)->n_sms * 16;
    const struct tsr_cuda_grid grid = {
        .blocks = (unsigned)tsr_min_u64(tsr_ceil_div(shape->rows, teams), most),
        .threads = threads,
        .shared = tsr_team_keeps(shape->columns, grows, kept, wide ? 8 : 4)};
    return shape->rows ? tsr_cuda_launch(call, kernel, grid, params) : TSR_OK;
}

/* ---- sums over rows ---------------------------------------------------------------------------
 */

enum { CHUNK_ROWS = 32, ENOUGH_BLOCKS = 2048 };

tsr_status tsr_cuda_sum_columns(const struct tsr_kernel_call *call, bool wide,
                                struct tsr_column_parts *parts, const struct tsr_elems out[2])
{
    uint64_t columns = parts->shape.columns, rows = parts->shape.rows;
    uint64_t tiles = tsr_ceil_div(columns, TSR_COLUMNS_TILE);
    uint64_t per_chunk = columns * (wide ? 8 : 4) * 2;
    unsigned char *scratch;
    if (columns == 0)
        return TSR_OK;
    TSR_TRY(tsr_cuda_scratch(call, per_chunk, (void **)&scratch));
    uint64_t room = tsr_cuda_context(call)->scratch_bytes / per_chunk;
    uint64_t chunks = tsr_min_u64(tsr_ceil_div(rows, CHUNK_ROWS),
                                  tsr_min_u64(tsr_ceil_div(ENOUGH_BLOCKS, tiles), room));
    parts->chunk = tsr_ceil_div(rows, tsr_max_u64(chunks, 1));
    chunks = parts->chunk ? tsr_ceil_div(rows, parts->chunk) : 0;
    parts->plain = out[0].data ? scratch : NULL;
    parts->scaled = out[1].data ? scratch + chunks * per_chunk / 2 : NULL;
    struct tsr_column_ends ends = {.chunks = chunks, .columns = columns};
    struct tsr_cuda_grid grid = {
        .blocks = (unsigned)tiles, .rows = (unsigned)chunks, .threads = TSR_CUDA_THREADS};
    if (chunks > 0)
        TSR_TRY(tsr_cuda_launch(call, wide ? tsr_cuda_column_parts_f64 : tsr_cuda_column_parts_f32,
                                grid, parts));
    grid.blocks = (unsigned)tsr_ceil_div(columns, TSR_COLUMNS_END_TILE);
    grid.rows = 0;
    const void *of[2] = {parts->plain, parts->scaled};
    for (unsigned i = 0; i < 2; i++)
        if (out[i].data) {
            ends.out[grid.rows] = out[i];
            ends.parts[grid.rows++] = of[i];
        }
    return tsr_cuda_launch(call, wide ? tsr_cuda_column_ends_f64 : tsr_cuda_column_ends_f32, grid,
                           &ends);
}
