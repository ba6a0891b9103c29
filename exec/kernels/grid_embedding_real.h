/* grid_embedding_real.h: template of grid_embedding.h. */
#include "real.h"

/* Over blocks of TSR_BLOCK elements of a row, token by token. */
TSR_ANYWHERE void TSR_R(tsr_grid_embedding)(const struct tsr_embedding *e, uint64_t begin,
                                            uint64_t step)
{
    uint64_t per_row = tsr_grid_blocks(e->columns);
    for (uint64_t block = begin; block < per_row * e->ids.n; block += step) {
        uint64_t token = block / per_row, at = block % per_row * TSR_BLOCK, left = e->columns - at;
        uint64_t row = tsr_embedding_row(tsr_elems_i64(&e->ids, token), e->first, e->rows);
        uint64_t n = left < TSR_BLOCK ? left : TSR_BLOCK;
        if (row < e->rows)
            TSR_R(tsr_move)(&e->w, row * e->columns + at, &e->out, token * e->columns + at, n);
        else
            TSR_R(tsr_store_same)(&e->out, token * e->columns + at, n, 0);
    }
}

/* Over blocks of a row of the gradient, row by row. */
TSR_ANYWHERE void TSR_R(tsr_grid_embedding_grad)(const struct tsr_embedding_grad *e, uint64_t begin,
                                                 uint64_t step)
{
    TSR_REAL sum[TSR_BLOCK], part[TSR_BLOCK];
    uint64_t per_row = tsr_grid_blocks(e->columns);
    for (uint64_t block = begin; block < per_row * e->rows; block += step) {
        uint64_t row = block / per_row, at = block % per_row * TSR_BLOCK, left = e->columns - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        for (unsigned i = 0; i < n; i++)
            sum[i] = 0;
        for (uint64_t t = e->head[row]; t != TSR_NO_TOKEN; t = e->next[t]) {
            TSR_R(tsr_load)(&e->g, t * e->columns + at, n, part);
            for (unsigned i = 0; i < n; i++)
                sum[i] += part[i];
        }
        TSR_R(tsr_store)(&e->out, row * e->columns + at, n, sum);
    }
}
