/* grid_list.h: one launch for a list of tensors: copies of whole words, and sums, scalings and
 * casts of elements. The blocks of all items follow each other.
 */
#ifndef TSR_KERNELS_GRID_LIST_H
#define TSR_KERNELS_GRID_LIST_H

#include "grid_words.h"

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

/* Over the words of all items. */
TSR_ANYWHERE void tsr_grid_move(const struct tsr_list *k, uint64_t begin, uint64_t step)
{
    uint64_t word = begin;
    for (uint32_t i = 0; i < k->n; i++) {
        const struct tsr_pair *p = &k->pairs[i];
        for (; word < p->from.n; word += step)
            tsr_move_word(&p->from, word, &p->to, p->to_at + word);
        word -= p->from.n;
    }
}

#define TSR_REAL_F64 0
#include "grid_list_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "grid_list_real.h"
#undef TSR_REAL_F64

#endif
