/* grid_list.h: one launch for a list of tensors: copies of whole words, and sums, scalings and
 * casts of elements. The blocks of all items follow each other.
 */
#ifndef TSR_KERNELS_GRID_LIST_H
#define TSR_KERNELS_GRID_LIST_H

#include "exec/kernels/grid/grid_words.h"

enum tsr_list_op {
    TSR_LIST_CAST, /* to = from */
    TSR_LIST_ADD,  /* to += from */
    TSR_LIST_SCALE /* to *= the one element of factor */
};

/* Elements of `to` from to_at on and as many of `from`, of which there are from.n. */
struct tsr_pair {
    struct tsr_elems from, to;
    uint64_t to_at;
};

/* Below the 4 KiB that parameters of a kernel have everywhere. */
enum { TSR_LIST = 44 };
struct tsr_list {
    uint32_t n;
    uint8_t op; /* enum tsr_list_op */
    struct tsr_elems factor;
    struct tsr_pair pairs[TSR_LIST];
};

#if TSR_BLOCK == 8
/* Words of 16 bytes that lie one behind the other, `step` apart, four under way at a time; the
 * first one that is left. */
TSR_ANYWHERE uint64_t tsr_move_fours(const struct tsr_pair *p, uint64_t word, uint64_t step)
{
    const unsigned char *from = p->from.data;
    unsigned char *to = p->to.data + 16 * p->to_at;
    for (; word + 3 * step < p->from.n; word += 4 * step) {
        uint32_t w[4][4];
        TSR_UNROLL
        for (unsigned i = 0; i < 4; i++)
            tsr_get_words(from + 16 * (word + i * step), w[i]);
        TSR_UNROLL
        for (unsigned i = 0; i < 4; i++)
            tsr_put_words(to + 16 * (word + i * step), w[i]);
    }
    return word;
}

/* Over the words of all items. */
TSR_ANYWHERE void tsr_grid_move(const struct tsr_list *k, uint64_t begin, uint64_t step)
{
    uint64_t word = begin;
    for (uint32_t i = 0; i < k->n; i++) {
        const struct tsr_pair *p = &k->pairs[i];
        if (p->from.width == 0 && p->to.width == 0 && p->from.item == 16)
            word = tsr_move_fours(p, word, step);
        for (; word < p->from.n; word += step)
            tsr_move_word(&p->from, word, &p->to, p->to_at + word);
        word -= p->from.n;
    }
}
#endif

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_list_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_list_real.h"
#undef TSR_REAL_F64

#endif
