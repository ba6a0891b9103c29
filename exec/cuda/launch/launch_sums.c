/* launch_sums.c: launches of sums over columns and over all elements, in two steps. */
#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/rows/parts.h"
#include "exec/cuda/launch/cuda_launch.h"

enum { CHUNK_ROWS = 32, ENOUGH_BLOCKS = 2048, CHUNK_ELEMENTS = 64 << 10, MOST_CHUNKS = 8192 };
/* Of parts of columns: a number, since the order of a sum must not depend on how much scratch there
 * happens to be. */
enum { COLUMN_SCRATCH = 8 << 20 };

/* ---- over rows --------------------------------------------------------------------------------
 */

/* Enough chunks to fill a GPU with tiles, but no more than there is room for. */
static void cut_rows(struct tsr_column_parts *parts, uint64_t tiles, uint64_t room)
{
    uint64_t chunks = tsr_min_u64(tsr_ceil_div(parts->shape.rows, CHUNK_ROWS),
                                  tsr_min_u64(tsr_ceil_div(ENOUGH_BLOCKS, tiles), room));
    parts->chunk = tsr_max_u64(tsr_ceil_div(parts->shape.rows, tsr_max_u64(chunks, 1)), 1);
}

tsr_status tsr_cuda_add_parts(const struct tsr_kernel_call *call, bool wide,
                              const struct tsr_column_parts *parts, uint64_t chunks,
                              const struct tsr_elems out[2])
{
    struct tsr_column_ends ends = {.chunks = chunks, .columns = parts->shape.columns};
    struct tsr_cuda_grid grid = {.blocks =
                                     (unsigned)tsr_ceil_div(ends.columns, TSR_COLUMNS_END_TILE),
                                 .threads = TSR_CUDA_THREADS};
    const void *of[2] = {parts->plain, parts->scaled};
    for (unsigned i = 0; i < 2; i++)
        if (out[i].data) {
            ends.out[grid.rows] = out[i];
            ends.parts[grid.rows++] = of[i];
        }
    return tsr_cuda_launch(call, wide ? tsr_cuda_column_ends_f64 : tsr_cuda_column_ends_f32, grid,
                           &ends);
}

static tsr_cuda_kernel parts_kernel(const struct tsr_kernel_call *call, bool wide,
                                    const struct tsr_column_parts *parts)
{
    static const struct tsr_cuda_forms forms = TSR_FORMS(column_parts);
    tsr_cuda_kernel kernel = tsr_cuda_form(call, &forms, wide, parts->shape.columns);
    bool narrow = kernel == forms.f32 && parts->g.item == 2 && !parts->scaled;
    return narrow ? tsr_cuda_column_parts_narrow : kernel;
}

tsr_status tsr_cuda_sum_columns(const struct tsr_kernel_call *call, bool wide,
                                struct tsr_column_parts *parts, const struct tsr_elems out[2])
{
    uint64_t columns = parts->shape.columns, rows = parts->shape.rows;
    uint64_t tiles = tsr_ceil_div(columns, TSR_COLUMNS_TILE);
    uint64_t bytes = columns * (wide ? 8 : 4); /* of a chunk's sums */
    void *scratch;
    if (columns == 0)
        return TSR_OK;
    cut_rows(parts, tiles, tsr_max_u64(COLUMN_SCRATCH / (2 * bytes), 1));
    uint64_t chunks = tsr_ceil_div(rows, parts->chunk);
    TSR_TRY(tsr_cuda_scratch(call, 2 * chunks * bytes, &scratch));
    parts->plain = out[0].data ? scratch : NULL;
    parts->scaled = out[1].data ? (unsigned char *)scratch + chunks * bytes : NULL;
    const struct tsr_cuda_grid grid = {
        .blocks = (unsigned)tiles, .rows = (unsigned)chunks, .threads = TSR_CUDA_THREADS};
    if (chunks > 0)
        TSR_TRY(tsr_cuda_launch(call, parts_kernel(call, wide, parts), grid, parts));
    return tsr_cuda_add_parts(call, wide, parts, chunks, out);
}

tsr_status tsr_cuda_column_sums(const struct tsr_kernel_call *call, bool wide, const void *params,
                                uint64_t n)
{
    const struct tsr_column_sums *k = params;
    const struct tsr_elems out[2] = {k->out, {.data = NULL}};
    struct tsr_column_parts parts = {.shape = k->shape, .g = k->x};
    (void)n;
    return tsr_cuda_sum_columns(call, wide, &parts, out);
}

/* ---- over all elements ------------------------------------------------------------------------
 */

/* Chunks of the tensors of `parts`; how many. */
static uint32_t cut_tensors(struct tsr_fold_parts *parts)
{
    uint64_t total = 0;
    uint32_t chunks = 0;
    for (uint32_t i = 0; i < parts->n; i++)
        total += parts->a[i].n;
    parts->chunk = tsr_ceil_div(tsr_ceil_div(total, MOST_CHUNKS), CHUNK_ELEMENTS) * CHUNK_ELEMENTS;
    for (uint32_t i = 0; i < parts->n; i++) {
        parts->first[i] = chunks;
        chunks += parts->a[i].n ? (uint32_t)tsr_ceil_div(parts->a[i].n, parts->chunk) : 0;
    }
    parts->first[parts->n] = chunks;
    return chunks;
}

static tsr_status fold(const struct tsr_kernel_call *call, bool wide, struct tsr_fold_parts *parts,
                       struct tsr_fold_ends *ends)
{
    struct tsr_cuda_grid grid = {.blocks = cut_tensors(parts), .threads = TSR_CUDA_THREADS};
    void *scratch;
    TSR_TRY(tsr_cuda_scratch(call, grid.blocks * sizeof(double), &scratch));
    parts->parts = scratch;
    if (grid.blocks > 0)
        TSR_TRY(tsr_cuda_launch(call, wide ? tsr_cuda_fold_parts_f64 : tsr_cuda_fold_parts_f32,
                                grid, parts));
    ends->parts = scratch;
    memcpy(ends->first, parts->first, sizeof ends->first);
    grid.blocks = parts->n;
    return tsr_cuda_launch(call, tsr_cuda_fold_ends, grid, ends);
}

tsr_status tsr_cuda_fold(const struct tsr_kernel_call *call, bool wide, const void *params,
                         uint64_t n)
{
    const struct tsr_fold *k = params;
    struct tsr_fold_parts parts = {.op = k->op, .n = 1, .a = {k->a}, .b = k->b};
    struct tsr_fold_ends ends = {.divisor = k->divisor, .out = {k->out}};
    (void)n;
    return fold(call, wide, &parts, &ends);
}

tsr_status tsr_cuda_norms(const struct tsr_kernel_call *call, bool wide, const void *params,
                          uint64_t n)
{
    const struct tsr_norms *k = params;
    struct tsr_fold_parts parts = {.op = TSR_FOLD_SQUARES, .n = k->n};
    struct tsr_fold_ends ends = {.root = true};
    (void)n;
    memcpy(parts.a, k->g, sizeof parts.a);
    memcpy(ends.scale, k->scale, sizeof ends.scale);
    memcpy(ends.out, k->norm, sizeof ends.out);
    return fold(call, wide, &parts, &ends);
}
