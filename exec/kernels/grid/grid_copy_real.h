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
/* Block `block` of the piece of rank r by spread eights (tensor.h); false: it is not of that
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

/* ---- lists ----------------------------------------------------------------------------------- */

TSR_ANYWHERE void TSR_R(tsr_list_block)(const struct tsr_list *k, const struct tsr_pair *p,
                                        uint64_t block)
{
    TSR_REAL x[TSR_BLOCK], y[TSR_BLOCK];
    uint64_t at = block * TSR_BLOCK, left = p->from.n - at;
    unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
    TSR_R(tsr_load)(&p->from, at, n, x);
    if (k->op == TSR_LIST_CAST) {
        TSR_R(tsr_store)(&p->to, p->to_at + at, n, x);
        return;
    }
    if (k->op == TSR_LIST_ADD) {
        TSR_R(tsr_load)(&p->to, p->to_at + at, n, y);
        TSR_LANES (i, n)
            x[i] = y[i] + x[i];
    } else if (k->op == TSR_LIST_SCALE) {
        TSR_REAL factor = TSR_R(tsr_load_one)(&k->factor, 0);
        TSR_LANES (i, n)
            x[i] *= factor;
    }
    TSR_R(tsr_store)(&p->to, p->to_at + at, n, x);
}

#if TSR_BLOCK == 8 && !TSR_REAL_F64
/* The same of spread eights (tensor.h). */
TSR_ANYWHERE void tsr_list_spread(const struct tsr_list *k, const struct tsr_pair *p,
                                  uint64_t block)
{
    uint64_t at = tsr_spread(block);
    uint32_t from[2][4], old[2][4];
    float x[8], y[8];
    unsigned char *to = p->to.data + p->to.item * (p->to_at + at);
    tsr_get_spread(p->from.data + p->from.item * at, p->from.item, from);
    if (k->op == TSR_LIST_ADD)
        tsr_get_spread(to, p->to.item, old);
    tsr_of_spread(from, p->from.dtype, x);
    if (k->op == TSR_LIST_ADD) {
        tsr_of_spread(old, p->to.dtype, y);
        TSR_LANES (i, 8)
            x[i] = y[i] + x[i];
    } else if (k->op == TSR_LIST_SCALE) {
        float factor = tsr_load_one_f32(&k->factor, 0);
        TSR_LANES (i, 8)
            x[i] *= factor;
    }
    tsr_put_spread(to, p->to.dtype, x);
}
#endif

/* Over the blocks of all items. */
TSR_ANYWHERE void TSR_R(tsr_grid_list)(const struct tsr_list *k, uint64_t begin, uint64_t step)
{
    uint64_t block = begin;
    for (uint32_t i = 0; i < k->n; i++) {
        uint64_t blocks = tsr_grid_blocks(k->pairs[i].from.n);
#if TSR_BLOCK == 8 && !TSR_REAL_F64
        if (tsr_may_spread(&k->pairs[i].from, 0) &&
            tsr_may_spread(&k->pairs[i].to, k->pairs[i].to_at))
            for (; block < tsr_spread_blocks(k->pairs[i].from.n); block += step)
                tsr_list_spread(k, &k->pairs[i], block);
#endif
        for (; block < blocks; block += step)
            TSR_R(tsr_list_block)(k, &k->pairs[i], block);
        block -= blocks;
    }
}

/* ---- heads ----------------------------------------------------------------------------------- */

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
