/* launch_norms.c: the backward of norms. Where a row of all operands fits into shared memory, from
 * one reading of them; else sums over rows first, since the gradient of x may take the place of
 * what they are made of.
 */
#include "exec/kernels/rows/norms.h"

#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/rows/norm_gradients.h"
#include "exec/cuda/kernels/rows/parts.h"
#include "exec/cuda/launch/cuda_launch.h"

/* ---- from one reading ------------------------------------------------------------------------ */

/* It follows from shapes, dtypes and what is wanted, so that the order of sums does. */
static bool fits_at_once(const struct tsr_kernel_call *call, const struct tsr_norm *k, bool wide)
{
    static const struct tsr_cuda_forms which = {.f32 = tsr_cuda_norm_gradients};
    uint64_t columns = k->shape.columns;
    unsigned threads = tsr_team_threads(columns, false);
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
    unsigned threads = tsr_team_threads(k->shape.columns, false);
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

/* ---- in two steps ---------------------------------------------------------------------------- */

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
