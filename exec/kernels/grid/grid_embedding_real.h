/* grid_embedding_real.h: template of grid_embedding.h. */
#include "exec/kernels/tensor/real.h"

/* Over blocks of TSR_BLOCK elements of a row, token by token. */
TSR_ANYWHERE void TSR_R(tsr_grid_embedding)(const struct tsr_embedding *e, uint64_t begin,
                                            uint64_t step)
{
    uint64_t per_row = tsr_grid_blocks(e->columns);
    for (uint64_t block = begin; block < per_row * e->ids.n; block += step) {
        uint64_t token = block / per_row, at = (block - token * per_row) * TSR_BLOCK;
        uint64_t left = e->columns - at;
        uint64_t row = tsr_embedding_row(tsr_elems_i64(&e->ids, token), e->first, e->rows);
        uint64_t n = left < TSR_BLOCK ? left : TSR_BLOCK;
        if (row < e->rows)
            TSR_R(tsr_move)(&e->w, row * e->columns + at, &e->out, token * e->columns + at, n);
        else
            TSR_R(tsr_store_same)(&e->out, token * e->columns + at, n, 0);
    }
}

/* sum += columns [at, at + n) of the tokens, in their order. */
TSR_ANYWHERE void TSR_R(tsr_add_tokens)(const struct tsr_embedding_grad *e, const uint32_t *token,
                                        uint32_t tokens, uint64_t at, unsigned n, TSR_REAL *sum)
{
    TSR_REAL part[TSR_BLOCK];
    for (uint32_t k = 0; k < tokens; k++) {
        TSR_R(tsr_load)(&e->g, token[k] * e->columns + at, n, part);
        TSR_LANES (i, n)
            sum[i] += part[i];
    }
}

#if TSR_BLOCK == 8
/* The same where all accesses are of whole words: several are under way while sums wait for the
 * first, which makes the rows of frequent tokens short. */
TSR_ANYWHERE void TSR_R(tsr_add_tokens_ahead)(const struct tsr_embedding_grad *e,
                                              const uint32_t *token, uint32_t tokens, uint64_t at,
                                              TSR_REAL *sum)
{
    TSR_REAL part[8];
    uint32_t raw[4][8];
    for (uint32_t k = 0; k < tokens; k += 4) {
        TSR_UNROLL
        for (uint32_t b = 0; b < 4; b++) {
            uint64_t t = token[k + b < tokens ? k + b : k];
            tsr_get_raw(e->g.data + e->g.item * (t * e->columns + at), e->g.item, raw[b]);
        }
        TSR_UNROLL
        for (uint32_t b = 0; b < 4; b++) {
            TSR_R(tsr_of_raw)(raw[b], e->g.dtype, part);
            TSR_UNROLL
            for (unsigned i = 0; i < 8; i++)
                sum[i] += k + b < tokens ? part[i] : 0;
        }
    }
}
#endif

/* Over blocks of a row of the gradient, row by row. */
TSR_ANYWHERE void TSR_R(tsr_grid_embedding_grad)(const struct tsr_embedding_grad *e, uint64_t begin,
                                                 uint64_t step)
{
    TSR_REAL sum[TSR_BLOCK];
    uint64_t per_row = tsr_grid_blocks(e->columns);
    for (uint64_t block = begin; block < per_row * e->rows; block += step) {
        uint64_t row = block / per_row, at = (block - row * per_row) * TSR_BLOCK;
        uint64_t left = e->columns - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        const uint32_t *token = e->order + e->start[row];
        TSR_LANES (i, n)
            sum[i] = 0;
#if TSR_BLOCK == 8
        if (tsr_rows_are_words(&e->g, e->columns))
            TSR_R(tsr_add_tokens_ahead)(e, token, e->count[row], at, sum);
        else
#endif
            TSR_R(tsr_add_tokens)(e, token, e->count[row], at, n, sum);
        TSR_R(tsr_store)(&e->out, (e->first + row) * e->columns + at, n, sum);
    }
}
