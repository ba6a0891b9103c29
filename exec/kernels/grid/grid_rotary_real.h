/* grid_rotary_real.h: template of grid_rotary.h. */
#include "exec/kernels/tensor/real.h"

/* n pairs that lie one behind the other: 2 n elements from `at` on. */
TSR_ANYWHERE void TSR_R(tsr_load_pairs)(const struct tsr_elems *e, uint64_t at, unsigned n,
                                        TSR_REAL *out)
{
    TSR_R(tsr_load)(e, at, 2 * n < TSR_BLOCK ? 2 * n : TSR_BLOCK, out);
    TSR_R(tsr_load)(e, at + TSR_BLOCK, 2 * n < TSR_BLOCK ? 0 : 2 * n - TSR_BLOCK, out + TSR_BLOCK);
}

TSR_ANYWHERE void TSR_R(tsr_store_pairs)(const struct tsr_elems *e, uint64_t at, unsigned n,
                                         const TSR_REAL *in)
{
    TSR_R(tsr_store)(e, at, 2 * n < TSR_BLOCK ? 2 * n : TSR_BLOCK, in);
    TSR_R(tsr_store)(e, at + TSR_BLOCK, 2 * n < TSR_BLOCK ? 0 : 2 * n - TSR_BLOCK, in + TSR_BLOCK);
}

/* n pairs from pair `first` on of the head that begins at element `head`, and how they are turned:
 * first elements, then second ones, or in pairs. */
TSR_ANYWHERE void TSR_R(tsr_load_turn)(const struct tsr_rotary *r, uint64_t head, uint64_t position,
                                       uint64_t first, unsigned n, TSR_REAL *turn, TSR_REAL *x)
{
    uint64_t half = r->d / 2, of_turn = 2 * (position * half + first);
#if TSR_BLOCK == 8
    if (n == 8) { /* all at once */
        const struct tsr_elems *const from[4] = {&r->table, &r->table, &r->x, &r->x};
        uint64_t low = head + (r->halves ? first : 2 * first);
        const uint64_t at[4] = {of_turn, of_turn + 8, low, low + (r->halves ? half : 8)};
        TSR_REAL eights[4][8];
        TSR_R(tsr_load_several)(from, at, 4, 8, eights);
        TSR_UNROLL
        for (unsigned i = 0; i < 16; i++) {
            turn[i] = eights[i / 8][i % 8];
            x[i] = eights[2 + i / 8][i % 8];
        }
        return;
    }
#endif
    TSR_R(tsr_load_pairs)(&r->table, of_turn, n, turn);
    if (!r->halves) {
        TSR_R(tsr_load_pairs)(&r->x, head + 2 * first, n, x);
        return;
    }
    TSR_R(tsr_load)(&r->x, head + first, n, x);
    TSR_R(tsr_load)(&r->x, head + half + first, n, x + TSR_BLOCK);
}

TSR_ANYWHERE void TSR_R(tsr_turn_pairs)(const struct tsr_rotary *r, uint64_t head,
                                        uint64_t position, uint64_t first, unsigned n)
{
    TSR_REAL x[2 * TSR_BLOCK], turn[2 * TSR_BLOCK], sign = r->inverse ? -1 : 1;
    TSR_R(tsr_load_turn)(r, head, position, first, n, turn, x);
    if (r->halves) {
        TSR_LANES (i, n)
            TSR_R(tsr_turn)(turn[2 * i], sign * turn[2 * i + 1], &x[i], &x[TSR_BLOCK + i]);
        TSR_R(tsr_store)(&r->out, head + first, n, x);
        TSR_R(tsr_store)(&r->out, head + r->d / 2 + first, n, x + TSR_BLOCK);
        return;
    }
    TSR_LANES (i, n)
        TSR_R(tsr_turn)(turn[2 * i], sign * turn[2 * i + 1], &x[2 * i], &x[2 * i + 1]);
    TSR_R(tsr_store_pairs)(&r->out, head + 2 * first, n, x);
}

/* Block `block` of tsr_rotary_blocks(). */
TSR_ANYWHERE void TSR_R(tsr_turn_block)(const struct tsr_rotary *r, uint64_t block)
{
    uint64_t pairs = r->d / 2, per_head = tsr_grid_blocks(pairs);
    uint64_t head = block / per_head, first = (block - head * per_head) * TSR_BLOCK;
    uint64_t left = pairs - first, position = head / r->heads % r->seq;
    TSR_R(tsr_turn_pairs)
    (r, head * r->d, position, first, left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK);
}

/* Over the blocks of all tensors, one behind the other. */
TSR_ANYWHERE void TSR_R(tsr_grid_rotary)(const struct tsr_rotaries *k, uint64_t begin,
                                         uint64_t step)
{
    uint64_t block = begin;
    for (uint32_t i = 0; i < k->n; i++) {
        uint64_t blocks = tsr_rotary_blocks(&k->of[i]);
        for (; block < blocks; block += step)
            TSR_R(tsr_turn_block)(&k->of[i], block);
        block -= blocks;
    }
}
