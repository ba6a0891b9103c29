/* grid_copy_real.h: template of grid_copy.h. */
#include "exec/kernels/tensor/real.h"

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

/* Elements [i, end) of the padded piece of rank r. */
TSR_ANYWHERE void TSR_R(tsr_cut_block)(const struct tsr_pieces *p, uint64_t r, uint64_t i,
                                       uint64_t end)
{
    const struct tsr_cut *cut = &p->cut;
    uint64_t line = cut->dim * cut->inner, first = r * cut->chunk * cut->inner;
    uint64_t n = tsr_cut_rows(cut, r) * cut->inner, own = cut->outer * n;
    uint64_t base = r * p->stride + p->first;
    for (uint64_t run; i < end && i < own; i += run) {
        uint64_t o = cut->outer == 1 ? 0 : i / n, within = i - o * n;
        run = n - within < end - i ? n - within : end - i;
        TSR_R(tsr_move)(&p->whole, o * line + first + within, &p->pieces, base + i, run);
    }
    if (i < end)
        TSR_R(tsr_store_same)(&p->pieces, base + i, end - i, 0);
}

#if TSR_BLOCK == 8 && !TSR_REAL_F64
/* Block `block` of the piece of rank r by spread eights (tensor_eight.h); false: it is not of that
 * kind. */
TSR_ANYWHERE bool tsr_cut_spread(const struct tsr_pieces *p, uint64_t r, uint64_t block)
{
    const struct tsr_cut *cut = &p->cut;
    uint64_t first = r * cut->chunk * cut->inner, base = r * p->stride + p->first;
    uint32_t words[2][4];
    float x[8];
    if (cut->outer != 1 || block >= tsr_spread_blocks(tsr_cut_rows(cut, r) * cut->inner) ||
        !tsr_may_spread(&p->whole, first) || !tsr_may_spread(&p->pieces, base))
        return false;
    uint64_t at = tsr_spread(block);
    tsr_get_spread(p->whole.data + p->whole.item * (first + at), p->whole.item, words);
    tsr_of_spread(words, p->whole.dtype, x);
    tsr_put_spread(p->pieces.data + p->pieces.item * (base + at), p->pieces.dtype, x);
    return true;
}
#endif

/* pieces := the cut wholes, zeros behind. Over blocks of padded pieces, one rank after the other.
 */
TSR_ANYWHERE void TSR_R(tsr_grid_cut_pieces)(const struct tsr_pieces_list *k, uint64_t begin,
                                             uint64_t step)
{
    uint64_t block = begin;
    for (uint32_t item = 0; item < k->n; item++) {
        const struct tsr_pieces *p = &k->of[item];
        uint64_t padded = tsr_cut_padded(&p->cut), blocks = tsr_grid_blocks(padded);
        for (; block < blocks * p->ranks; block += step) {
            uint64_t r = block / blocks, i = (block - r * blocks) * TSR_BLOCK, end = i + TSR_BLOCK;
#if TSR_BLOCK == 8 && !TSR_REAL_F64
            if (tsr_cut_spread(p, r, i / TSR_BLOCK))
                continue;
#endif
            TSR_R(tsr_cut_block)(p, r, i, end < padded ? end : padded);
        }
        block -= blocks * p->ranks;
    }
}
