/* grid_rotary_real.h: template of grid_rotary.h. */
#include "real.h"

/* n pairs from pair `first` on of the head that begins at element `head`. */
TSR_ANYWHERE void TSR_R(tsr_turn_pairs)(const struct tsr_rotary *r, uint64_t head,
                                        uint64_t position, uint64_t first, unsigned n)
{
    TSR_REAL x[TSR_BLOCK], turn[TSR_BLOCK];
    uint64_t half = r->d / 2;
    TSR_R(tsr_load)(&r->table, 2 * (position * half + first), 2 * n, turn);
    for (unsigned i = 0; i < n && r->inverse; i++)
        turn[2 * i + 1] = -turn[2 * i + 1];
    if (r->halves) {
        TSR_R(tsr_load)(&r->x, head + first, n, x);
        TSR_R(tsr_load)(&r->x, head + half + first, n, x + n);
        for (unsigned i = 0; i < n; i++)
            TSR_R(tsr_turn)(turn[2 * i], turn[2 * i + 1], &x[i], &x[n + i]);
        TSR_R(tsr_store)(&r->out, head + first, n, x);
        TSR_R(tsr_store)(&r->out, head + half + first, n, x + n);
        return;
    }
    TSR_R(tsr_load)(&r->x, head + 2 * first, 2 * n, x);
    for (unsigned i = 0; i < n; i++)
        TSR_R(tsr_turn)(turn[2 * i], turn[2 * i + 1], &x[2 * i], &x[2 * i + 1]);
    TSR_R(tsr_store)(&r->out, head + 2 * first, 2 * n, x);
}

/* Over tsr_rotary_blocks(). */
TSR_ANYWHERE void TSR_R(tsr_grid_rotary)(const struct tsr_rotary *r, uint64_t begin, uint64_t step)
{
    uint64_t pairs = r->d / 2, per_head = pairs / TSR_PAIRS + (pairs % TSR_PAIRS != 0);
    for (uint64_t block = begin; block < tsr_rotary_blocks(r); block += step) {
        uint64_t head = block / per_head, first = block % per_head * TSR_PAIRS;
        uint64_t left = pairs - first, position = head / r->heads % r->seq;
        TSR_R(tsr_turn_pairs)
        (r, head * r->d, position, first, left < TSR_PAIRS ? (unsigned)left : TSR_PAIRS);
    }
}
