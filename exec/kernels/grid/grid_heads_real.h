/* grid_heads_real.h: template of grid_heads.h. */
#include "exec/kernels/tensor/real.h"

/* Columns [at, end) of a row: zeros, elements, zeros. */
TSR_ANYWHERE void TSR_R(tsr_place_part)(const struct tsr_placing *k, uint64_t row, uint64_t at,
                                        uint64_t end)
{
    uint64_t from = (k->times == 1 ? row : row / k->times) * k->from_row, to = row * k->to_row;
    uint64_t begin = k->offset, behind = k->offset + k->keep;
    if (at < begin) {
        uint64_t n = (begin < end ? begin : end) - at;
        TSR_R(tsr_store_same)(&k->to, to + at, n, 0);
        at += n;
    }
    if (at < end && at < behind) {
        uint64_t n = (behind < end ? behind : end) - at;
        TSR_R(tsr_move)(&k->from, from + at - begin, &k->to, to + at, n);
        at += n;
    }
    if (at < end)
        TSR_R(tsr_store_same)(&k->to, to + at, end - at, 0);
}

/* Over rows x tsr_placing_blocks(). */
TSR_ANYWHERE void TSR_R(tsr_grid_place)(const struct tsr_placing *k, uint64_t begin, uint64_t step)
{
    uint64_t per_row = tsr_placing_blocks(k), first = k->zeros ? 0 : k->offset;
    uint64_t last = k->zeros ? k->to_row : k->offset + k->keep;
    for (uint64_t block = begin; block < k->rows * per_row; block += step) {
        uint64_t row = block / per_row, at = first + (block - row * per_row) * TSR_BLOCK;
        uint64_t end = last - at < TSR_BLOCK ? last : at + TSR_BLOCK;
        TSR_R(tsr_place_part)(k, row, at, end);
    }
}

/* Over the blocks of all rows of the output. */
TSR_ANYWHERE void TSR_R(tsr_grid_head_sums)(const struct tsr_head_sums *k, uint64_t begin,
                                            uint64_t step)
{
    TSR_REAL sum[TSR_BLOCK], part[TSR_BLOCK];
    uint64_t per_row = tsr_grid_blocks(k->d), rows = k->out.n / k->d;
    for (uint64_t block = begin; block < rows * per_row; block += step) {
        uint64_t row = block / per_row, at = block % per_row * TSR_BLOCK, left = k->d - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        TSR_R(tsr_load)(&k->g, row * k->times * k->d + at, n, sum);
        for (uint64_t h = 1; h < k->times; h++) {
            TSR_R(tsr_load)(&k->g, (row * k->times + h) * k->d + at, n, part);
            TSR_LANES (i, n)
                sum[i] += part[i];
        }
        TSR_R(tsr_store)(&k->out, row * k->d + at, n, sum);
    }
}
