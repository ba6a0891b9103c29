/* grid_list_real.h: template of grid_list.h. */
#include "real.h"

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

/* Over the blocks of all items. */
TSR_ANYWHERE void TSR_R(tsr_grid_list)(const struct tsr_list *k, uint64_t begin, uint64_t step)
{
    uint64_t block = begin;
    for (uint32_t i = 0; i < k->n; i++) {
        uint64_t blocks = tsr_grid_blocks(k->pairs[i].from.n);
        for (; block < blocks; block += step)
            TSR_R(tsr_list_block)(k, &k->pairs[i], block);
        block -= blocks;
    }
}
