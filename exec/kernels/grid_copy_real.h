/* grid_copy_real.h: template of grid_copy.h. */
#include "real.h"

/* to[to_at ...) = from[from_at ...), n elements, cast. */
TSR_ANYWHERE void TSR_R(tsr_move)(const struct tsr_elems *from, uint64_t from_at,
                                  const struct tsr_elems *to, uint64_t to_at, uint64_t n)
{
    TSR_REAL part[TSR_BLOCK];
    while (n > 0) {
        uint64_t k = n < TSR_BLOCK ? n : TSR_BLOCK;
        TSR_R(tsr_load)(from, from_at, k, part);
        TSR_R(tsr_store)(to, to_at, k, part);
        from_at += k;
        to_at += k;
        n -= k;
    }
}

/* whole := its pieces. Over blocks of the whole. */
TSR_ANYWHERE void TSR_R(tsr_grid_join_pieces)(const struct tsr_pieces *p, uint64_t begin,
                                              uint64_t step)
{
    for (uint64_t block = begin; block < tsr_grid_blocks(p->whole.n); block += step) {
        uint64_t i = block * TSR_BLOCK, end = i + TSR_BLOCK, run;
        end = end < p->whole.n ? end : p->whole.n;
        for (; i < end; i += run) {
            uint64_t place = tsr_pieces_place(p, i, &run);
            run = run < end - i ? run : end - i;
            TSR_R(tsr_move)(&p->pieces, place, &p->whole, i, run);
        }
    }
}

/* pieces := the cut whole, zeros behind. Over blocks of a padded piece, one rank after the other.
 */
TSR_ANYWHERE void TSR_R(tsr_grid_cut_pieces)(const struct tsr_pieces *p, uint64_t begin,
                                             uint64_t step)
{
    uint64_t padded = tsr_cut_padded(&p->cut), blocks = tsr_grid_blocks(padded);
    uint64_t line = p->cut.dim * p->cut.inner;
    for (uint64_t block = begin; block < blocks * p->ranks; block += step) {
        uint64_t r = block / blocks, i = block % blocks * TSR_BLOCK, end = i + TSR_BLOCK, run;
        uint64_t n = tsr_cut_rows(&p->cut, r) * p->cut.inner, own = p->cut.outer * n;
        uint64_t base = r * p->stride + p->first;
        end = end < padded ? end : padded;
        for (; i < end && i < own; i += run) {
            uint64_t from = i / n * line + r * p->cut.chunk * p->cut.inner + i % n;
            run = n - i % n < end - i ? n - i % n : end - i;
            TSR_R(tsr_move)(&p->whole, from, &p->pieces, base + i, run);
        }
        if (i < end)
            TSR_R(tsr_store_same)(&p->pieces, base + i, end - i, 0);
    }
}
