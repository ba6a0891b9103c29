/* initial.c: initial values of a piece of a parameter. */
#include "exec/kernels/elements/initial.h"

#include <inttypes.h>

#include "exec/kernels/call/call.h"

_Static_assert((int)TSR_INITIAL_DIMS == (int)TSR_PIECE_DIMS, "a piece is a box");

TSR_CODE_OF_ONE(initial, tsr_grid_initial, struct tsr_initial);

static tsr_status check(const struct tsr_piece *piece)
{
    if (piece->n_dims < 0 || piece->n_dims > TSR_PIECE_DIMS)
        return tsr_fail(TSR_EDEFECT, "initial values: %d dimensions; allowed: 0 to %d",
                        piece->n_dims, TSR_PIECE_DIMS);
    for (int d = 0; d < piece->n_dims; d++)
        if (piece->start[d] > piece->shape[d] || piece->size[d] > piece->shape[d] - piece->start[d])
            return tsr_fail(TSR_EDEFECT,
                            "initial values: dimension %d has %" PRIu64 " from %" PRIu64
                            " on, but is %" PRIu64 " long",
                            d, piece->size[d], piece->start[d], piece->shape[d]);
    if (piece->dtype == TSR_DTYPE_NONE || piece->dtype >= TSR_N_DTYPES)
        return tsr_fail(TSR_EDEFECT, "initial values: dtype %d is none", piece->dtype);
    if (piece->init < TSR_INIT_CONSTANT || piece->init > TSR_INIT_UNIFORM)
        return tsr_fail(TSR_EDEFECT, "initial values: kind %d is none", piece->init);
    if (piece->init != TSR_INIT_CONSTANT && !tsr_dtype_is_float((tsr_dtype)piece->dtype))
        return tsr_fail(TSR_EUNSUPPORTED, "initial values: random values of %s",
                        tsr_dtype_name((tsr_dtype)piece->dtype));
    return TSR_OK;
}

tsr_status tsr_initial_of(uint64_t seed, const struct tsr_piece *piece, void *out,
                          struct tsr_initial *k)
{
    TSR_TRY(check(piece));
    uint8_t item = (uint8_t)tsr_dtype_bytes((tsr_dtype)piece->dtype);
    int lead = TSR_PIECE_DIMS - piece->n_dims;
    *k = (struct tsr_initial){.out = {.data = out, .dtype = piece->dtype, .item = item},
                              .seed = seed,
                              .name = piece->name,
                              .constant = piece->constant,
                              .kind = (uint8_t)piece->init};
    for (int d = 0; d < TSR_PIECE_DIMS; d++) {
        k->shape[d] = d < lead ? 1 : piece->shape[d - lead];
        k->start[d] = d < lead ? 0 : piece->start[d - lead];
        k->size[d] = d < lead ? 1 : piece->size[d - lead];
    }
    uint64_t rows = k->size[0] * k->size[1] * k->size[2];
    k->out.n = rows * k->size[3];
    k->n = k->out.n ? rows * tsr_initial_fours(k->size[3]) : 0;
    return TSR_OK;
}

void tsr_initial_make(const struct tsr_initial *k, uint64_t begin)
{
    tsr_grid_initial(k, begin, 1);
}

tsr_status tsr_initial_run(const struct tsr_kernel_call *call, uint64_t seed,
                           const struct tsr_piece *piece)
{
    struct tsr_initial k;
    TSR_TRY(tsr_initial_of(seed, piece, call->views[0].data, &k));
    if (k.out.n * k.out.item != call->views[0].bytes)
        return tsr__defect(call, "%" PRIu64 " bytes for %" PRIu64 " elements", call->views[0].bytes,
                           k.out.n);
    return tsr__run_as(call, &code_initial, false, &k, k.n);
}
