/* launch_rows.c: launches of kernels that work row by row. */
#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/rows/parts.h"
#include "exec/cuda/kernels/team_shape.h"
#include "exec/cuda/launch/cuda_launch.h"
#include "exec/kernels/rows/loss.h"
#include "exec/kernels/rows/norms.h"
#include "exec/kernels/tensor/rows.h"

/* The second step of it: parts->plain and ->scaled, as far as they are there, of so many chunks. */
static tsr_status tsr_cuda_add_parts(const struct tsr_kernel_call *call, bool wide,
                                     const struct tsr_column_parts *parts, uint64_t chunks,
                                     const struct tsr_elems out[2]) TSR_MUST_USE;

/* Sums over rows: plain into out[0], scaled into out[1] (data NULL: not wanted); `parts` has the
 * operands. */
static tsr_status tsr_cuda_sum_columns(const struct tsr_kernel_call *call, bool wide,
                                       struct tsr_column_parts *parts,
                                       const struct tsr_elems out[2]) TSR_MUST_USE;

tsr_status tsr_cuda_scratch(const struct tsr_kernel_call *call, uint64_t bytes, void **out)
{
    const struct tsr_cuda_context *context = tsr_cuda_context(call);
    if (bytes > context->scratch_bytes && context->grow)
        TSR_TRY(context->grow(context->owner, context->index, bytes));
    *out = context->scratch;
    if (bytes <= context->scratch_bytes)
        return TSR_OK;
    return tsr_fail(TSR_EOOM, "kernel %s: needs %llu bytes of scratch, the stream has %llu",
                    call->work->name, (unsigned long long)bytes,
                    (unsigned long long)context->scratch_bytes);
}

static bool is_whole(const struct tsr_view *view)
{
    if (!tsr_dtype_is_float((tsr_dtype)view->dtype))
        return true; /* no packs of it are read */
    return (uintptr_t)view->data % 16 == 0 && view->width == 0 && view->pitch == 0;
}

/* The form for the operands of a call in rows of `columns`. */
static tsr_cuda_kernel tsr_cuda_form(const struct tsr_kernel_call *call,
                                     const struct tsr_cuda_forms *forms, bool wide,
                                     uint64_t columns)
{
    bool whole = columns % TSR_CUDA_ITEMS == 0;
    for (uint32_t i = 0; i < call->n_views && whole; i++)
        whole = is_whole(&call->views[i]);
    if (wide)
        return forms->f64;
    return whole ? forms->f32 : forms->torn;
}

/* Every team has a row, but there are no more blocks than fill the GPU a few times. */
tsr_status tsr_cuda_launch_rows(const struct tsr_kernel_call *call,
                                const struct tsr_cuda_forms *forms, bool wide, unsigned kept,
                                bool grows, const void *params)
{
    const struct tsr_rows *shape = params;
    tsr_cuda_kernel kernel = tsr_cuda_form(call, forms, wide, shape->columns);
    const unsigned grown = kernel == forms->f32 ? TSR_CUDA_LONG : TSR_CUDA_MEDIUM;
    const unsigned limit = grows ? grown : TSR_CUDA_THREADS;
    unsigned threads = tsr_team_threads(shape->columns, limit);
    uint64_t teams = threads / tsr_team_size(shape->columns, threads);
    uint64_t most = (uint64_t)tsr_cuda_context(call)->n_sms * 16;
    const struct tsr_cuda_grid grid = {
        .blocks = (unsigned)tsr_min_u64(tsr_ceil_div(shape->rows, teams), most),
        .threads = threads,
        .shared = kept ? tsr_team_keeps(shape->columns, limit, kept, wide ? 8 : 4,
                                        tsr_cuda_most_shared(call))
                       : 0};
    return shape->rows ? tsr_cuda_launch(call, kernel, grid, params) : TSR_OK;
}

/* ---- losses, which end in a sum that one block makes ----------------------------------------- */

static const struct tsr_cuda_grid one_block = {.blocks = 1, .threads = TSR_CUDA_LONG};

tsr_status tsr_cuda_nll(const struct tsr_kernel_call *call, bool wide, const void *params,
                        uint64_t n)
{
    (void)n;
    return tsr_cuda_launch(call, wide ? tsr_cuda_nll_f64 : tsr_cuda_nll_f32, one_block, params);
}

tsr_status tsr_cuda_cross_entropy(const struct tsr_kernel_call *call, bool wide, const void *params,
                                  uint64_t n)
{
    static const struct tsr_cuda_forms forms = TSR_FORMS(cross_entropy_rows);
    struct tsr_cross_entropy k;
    memcpy(&k, params, sizeof k);
    if (!k.row_loss)
        TSR_TRY(tsr_cuda_scratch(call, n * (wide ? sizeof(double) : sizeof(float)), &k.row_loss));
    TSR_TRY(tsr_cuda_launch_rows(call, &forms, wide, 1, true, &k));
    return tsr_cuda_launch(call,
                           wide ? tsr_cuda_cross_entropy_loss_f64 : tsr_cuda_cross_entropy_loss_f32,
                           one_block, &k);
}

/* ---- the backward of norms ------------------------------------------------------------------- */

/* The backward of norms. Where a row of all operands fits into shared memory, from
 * one reading of them; else sums over rows first, since the gradient of x may take the place of
 * what they are made of. */

/* ---- norms, from one reading ----------------------------------------------------------------- */

/* It follows from shapes, dtypes and what is wanted, so that the order of sums does. */
static bool fits_at_once(const struct tsr_kernel_call *call, const struct tsr_norm *k, bool wide)
{
    static const struct tsr_cuda_forms which = {.f32 = tsr_cuda_norm_gradients};
    uint64_t columns = k->shape.columns;
    unsigned threads = tsr_team_threads(columns, TSR_CUDA_THREADS);
    bool plain = k->rstd.dtype == TSR_F32 && (!k->centered || k->mean.dtype == TSR_F32);
    return plain && k->gx.data && (k->gw.data || k->gb.data) && k->shape.rows > 0 && columns > 0 &&
           tsr_cuda_form(call, &which, wide, columns) && tsr_norm_places_of(k, threads).stages > 0;
}

/* Whole rounds of the teams of a block, no more blocks than are at work at once. */
static uint64_t rows_of_block(const struct tsr_rows *shape, unsigned threads)
{
    uint64_t teams = threads / tsr_team_size(shape->columns, threads);
    return tsr_ceil_div(tsr_ceil_div(shape->rows, TSR_NORM_BLOCKS), teams) * teams;
}

static tsr_status at_once(const struct tsr_kernel_call *call, const struct tsr_norm *k)
{
    const struct tsr_elems out[2] = {k->gb, k->gw};
    unsigned threads = tsr_team_threads(k->shape.columns, TSR_CUDA_THREADS);
    const struct tsr_norm_places places = tsr_norm_places_of(k, threads);
    struct tsr_norm_gradients p = {
        .norm = *k, .chunk = rows_of_block(&k->shape, threads), .stages = places.stages};
    uint64_t chunks = tsr_ceil_div(k->shape.rows, p.chunk), part = chunks * k->shape.columns;
    void *scratch;
    TSR_TRY(tsr_cuda_scratch(call, 2 * part * sizeof(float), &scratch));
    p.plain = out[0].data ? scratch : NULL;
    p.scaled = out[1].data ? (float *)scratch + part : NULL;
    const struct tsr_cuda_grid grid = {.blocks = (unsigned)chunks,
                                       .threads = threads,
                                       .shared = (size_t)16 * threads * places.words};
    TSR_TRY(tsr_cuda_launch(call, tsr_cuda_norm_gradients, grid, &p));
    const struct tsr_column_parts parts = {.shape = k->shape, .plain = p.plain, .scaled = p.scaled};
    return tsr_cuda_add_parts(call, false, &parts, chunks, out);
}

/* ---- norms, in two steps --------------------------------------------------------------------- */

tsr_status tsr_cuda_norm_backward(const struct tsr_kernel_call *call, bool wide, const void *params,
                                  uint64_t n)
{
    const struct tsr_norm *k = params;
    (void)n;
    if (fits_at_once(call, k, wide))
        return at_once(call, k);
    if (k->gw.data || k->gb.data) {
        const struct tsr_elems out[2] = {k->gb, k->gw};
        struct tsr_column_parts parts = {
            .shape = k->shape, .g = k->g, .x = k->x, .mean = k->mean, .rstd = k->rstd};
        TSR_TRY(tsr_cuda_sum_columns(call, wide, &parts, out));
    }
    if (!k->gx.data)
        return TSR_OK;
    static const struct tsr_cuda_forms forms = TSR_FORMS(norm_backward);
    return tsr_cuda_launch_rows(call, &forms, wide, 2, false, k);
}

/* ---- sums, in two steps ---------------------------------------------------------------------- */

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

static tsr_status tsr_cuda_add_parts(const struct tsr_kernel_call *call, bool wide,
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

static tsr_status tsr_cuda_sum_columns(const struct tsr_kernel_call *call, bool wide,
                                       struct tsr_column_parts *parts,
                                       const struct tsr_elems out[2])
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
