/* columns_real.h: template of columns.cu. */
#include "exec/kernels/tensor/real.h"

/* Sums of the rows of one warp from `row` on, n columns from `column` on. */
TSR_DEVICE void TSR_R(column_rows)(const struct tsr_column_parts *k, uint64_t row, uint64_t end,
                                   uint64_t step, uint64_t column, unsigned n, TSR_REAL *plain,
                                   TSR_REAL *scaled)
{
    TSR_REAL g[TSR_BLOCK], x[TSR_BLOCK];
    for (; row < end; row += step) {
        uint64_t at = row * k->shape.columns + column;
        if (k->scaled) {
            TSR_REAL mean = k->mean.data ? TSR_R(tsr_load_one)(&k->mean, row) : 0;
            TSR_REAL rstd = TSR_R(tsr_load_one)(&k->rstd, row);
            TSR_R(tsr_pack_load_two)(&k->g, &k->x, at, n, g, x);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                scaled[i] += g[i] * ((x[i] - mean) * rstd);
        } else {
            TSR_R(tsr_pack_load)(&k->g, at, n, g);
        }
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            plain[i] += g[i];
    }
}

/* Adds the packs of all warps, in their order; the first warp stores. */
TSR_DEVICE void TSR_R(column_store)(const struct tsr_column_parts *k, unsigned lane,
                                    uint64_t column, unsigned n, TSR_REAL *sum, void *parts)
{
    tsr_shared TSR_REAL of_warp[TSR_CUDA_THREADS / TSR_WARP][TSR_BLOCK][TSR_WARP];
    unsigned warp = tsr_thread() / TSR_WARP, warps = tsr_threads() / TSR_WARP;
    if (!parts)
        return;
    tsr_sync(); /* what was there has been read */
    if (!tsr_alone())
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            of_warp[warp][i][lane] = sum[i];
    tsr_sync();
    if (warp > 0)
        return;
    for (unsigned other = 1; other < warps; other++)
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            sum[i] += of_warp[other][i][lane];
    TSR_REAL *out = (TSR_REAL *)parts + tsr_block_y() * k->shape.columns + column;
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        if (i < n)
            out[i] = sum[i];
}

TSR_DEVICE void TSR_R(column_parts)(const struct tsr_column_parts *k, bool whole)
{
    unsigned lanes = tsr_alone() ? 1 : TSR_WARP;
    for (unsigned lane = tsr_thread() % lanes; lane < TSR_WARP; lane += lanes) {
        TSR_REAL plain[TSR_BLOCK] = {0}, scaled[TSR_BLOCK] = {0};
        uint64_t column = tsr_block_x() * TSR_COLUMNS_TILE + lane * TSR_BLOCK;
        uint64_t left = column < k->shape.columns ? k->shape.columns - column : 0;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        if (left > 0 && whole)
            n = TSR_WHOLE_PACK;
        uint64_t row = tsr_block_y() * k->chunk + tsr_thread() / lanes,
                 step = tsr_threads() / lanes;
        uint64_t end = column_chunk_end(k);
        if (left > 0)
            TSR_R(column_rows)(k, row, end, step, column, n, plain, scaled);
        TSR_R(column_store)(k, lane, column, n, plain, k->plain);
        TSR_R(column_store)(k, lane, column, n, scaled, k->scaled);
    }
}

/* A lane has a column, a warp every eighth part. */
TSR_DEVICE void TSR_R(column_ends)(const struct tsr_column_ends *k)
{
    tsr_shared double of_warp[TSR_CUDA_THREADS / TSR_WARP][TSR_WARP];
    const TSR_REAL *parts = (const TSR_REAL *)k->parts[tsr_block_y()];
    unsigned lanes = tsr_alone() ? 1 : TSR_WARP, warps = tsr_threads() / lanes;
    unsigned warp = tsr_thread() / lanes;
    for (unsigned lane = tsr_thread() % lanes; lane < TSR_WARP; lane += lanes) {
        uint64_t column = tsr_block_x() * TSR_COLUMNS_END_TILE + lane;
        double sum = 0;
        if (column < k->columns)
            for (uint64_t i = warp; i < k->chunks; i += warps)
                sum += (double)parts[i * k->columns + column];
        of_warp[warp][lane] = sum;
        tsr_sync();
        if (warp > 0 || column >= k->columns)
            continue;
        for (unsigned other = 1; other < warps; other++)
            sum += of_warp[other][lane];
        TSR_REAL value = (TSR_REAL)sum;
        TSR_R(tsr_store)(&k->out[tsr_block_y()], column, 1, &value);
    }
}
