/* grid_list_real.h: template of grid_list.h. */
#include "exec/kernels/tensor/real.h"

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
/* The same of spread eights (tensor_eight.h). */
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
