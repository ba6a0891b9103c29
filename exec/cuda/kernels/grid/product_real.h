/* product_real.h: template of product.cu. */
#include "exec/kernels/tensor/real.h"

/* A slice of `depth` k from p0 on and TSR_PRODUCT_SIDE rows (of a) or columns (of b) from i0 on; 0
 * beyond them. by_depth: what lies side by side in memory is along k. */
TSR_DEVICE void TSR_R(product_slice)(const struct tsr_factor *f, bool by_depth, uint64_t base,
                                     uint64_t i0, uint64_t n, uint64_t p0, uint64_t depth,
                                     TSR_REAL slice[TSR_PRODUCT_DEPTH][TSR_PRODUCT_SIDE + 1])
{
    for (unsigned e = tsr_thread(); e < TSR_PRODUCT_DEPTH * TSR_PRODUCT_SIDE; e += tsr_threads()) {
        unsigned i = by_depth ? e / TSR_PRODUCT_DEPTH : e % TSR_PRODUCT_SIDE;
        unsigned p = by_depth ? e % TSR_PRODUCT_DEPTH : e / TSR_PRODUCT_SIDE;
        TSR_REAL x = 0;
        if (i0 + i < n && p0 + p < depth)
            x = TSR_R(tsr_load_one)(&f->elems, base + (by_depth ? (i0 + i) * f->row + p0 + p
                                                                : (p0 + p) * f->row + i0 + i));
        slice[p][i] = x;
    }
}

/* Element (i, j) from its sum. */
TSR_DEVICE void TSR_R(product_store)(const struct tsr_plain_product *k, uint64_t base, uint64_t i,
                                     uint64_t j, TSR_REAL sum)
{
    uint64_t at = base + i * k->out.row + j;
    TSR_REAL x = (TSR_REAL)k->alpha * sum;
    if (k->bias.data)
        x += TSR_R(tsr_load_one)(&k->bias, j);
    if (k->add)
        x += TSR_R(tsr_load_one)(&k->out.elems, at);
    TSR_R(tsr_store)(&k->out.elems, at, 1, &x);
}

/* A tile from (i0, j0) on. A part of 4 x 4 results, 16 rows and columns apart, is a thread's. */
TSR_DEVICE void TSR_R(product_tile)(const struct tsr_plain_product *k, const uint64_t base[3],
                                    uint64_t i0, uint64_t j0, unsigned part)
{
    tsr_shared TSR_REAL a[TSR_PRODUCT_DEPTH][TSR_PRODUCT_SIDE + 1];
    tsr_shared TSR_REAL b[TSR_PRODUCT_DEPTH][TSR_PRODUCT_SIDE + 1];
    TSR_REAL sum[4][4] = {{0}};
    unsigned ti = part / 16, tj = part % 16;
    for (uint64_t p0 = 0; p0 < k->k; p0 += TSR_PRODUCT_DEPTH) {
        TSR_R(product_slice)(&k->a, !k->a.transposed, base[0], i0, k->m, p0, k->k, a);
        TSR_R(product_slice)(&k->b, k->b.transposed, base[1], j0, k->n, p0, k->k, b);
        tsr_sync();
        for (unsigned p = 0; p < TSR_PRODUCT_DEPTH; p++)
            for (unsigned r = 0; r < 4; r++)
                for (unsigned c = 0; c < 4; c++)
                    sum[r][c] += a[p][ti + 16 * r] * b[p][tj + 16 * c];
        tsr_sync();
    }
    /* Not unrolled, the sums would lie in memory: an index of them would not be a constant. */
    TSR_UNROLL
    for (unsigned r = 0; r < 4; r++) {
        TSR_UNROLL
        for (unsigned c = 0; c < 4; c++)
            if (i0 + ti + 16 * r < k->m && j0 + tj + 16 * c < k->n)
                TSR_R(product_store)(k, base[2], i0 + ti + 16 * r, j0 + tj + 16 * c, sum[r][c]);
    }
}

TSR_DEVICE void TSR_R(product)(const struct tsr_plain_product *k)
{
    uint64_t across = (k->n + TSR_PRODUCT_SIDE - 1) / TSR_PRODUCT_SIDE;
    uint64_t tiles = (k->m + TSR_PRODUCT_SIDE - 1) / TSR_PRODUCT_SIDE * across;
    for (uint64_t t = tsr_block_x(); t < tiles * k->n_outer * k->n_inner; t += tsr_blocks_x()) {
        uint64_t o = t / tiles / k->n_inner, i = t / tiles % k->n_inner, tile = t % tiles;
        const uint64_t base[3] = {o * k->a.outer + i * k->a.inner, o * k->b.outer + i * k->b.inner,
                                  o * k->out.outer + i * k->out.inner};
        uint64_t i0 = tile / across * TSR_PRODUCT_SIDE, j0 = tile % across * TSR_PRODUCT_SIDE;
        for (unsigned part = tsr_thread(); part < TSR_CUDA_THREADS; part += tsr_threads()) {
            /* A thread that is alone has all parts one after the other: not those of nothing. */
            if (tsr_alone() && (i0 + part / 16 >= k->m || j0 + part % 16 >= k->n))
                continue;
            TSR_R(product_tile)(k, base, i0, j0, part);
        }
    }
}
