/* grid_words.h: elements that are moved as they are: words of 1, 2, 4, 8 or 16 bytes, which are the
 * elements of U8 tensors with that `item`. A thread of CUDA has one in hand at a time.
 */
#ifndef TSR_KERNELS_GRID_WORDS_H
#define TSR_KERNELS_GRID_WORDS_H

#include "exec/kernels/grid/grid_elementwise.h"

TSR_ANYWHERE void tsr_move_word(const struct tsr_elems *source, uint64_t from_at,
                                const struct tsr_elems *target, uint64_t to_at)
{
    const unsigned char *from = source->data + source->item * tsr_elems_place(source, from_at);
    unsigned char *to = target->data + target->item * tsr_elems_place(target, to_at);
#ifdef __CUDACC__
    switch (target->item) {
    case 16:
        *(uint4 *)to = *(const uint4 *)from;
        break;
    case 8:
        *(uint2 *)to = *(const uint2 *)from;
        break;
    case 4:
        *(uint32_t *)to = *(const uint32_t *)from;
        break;
    case 2:
        *(uint16_t *)to = *(const uint16_t *)from;
        break;
    default:
        *to = *from;
    }
#else
    memmove(to, from, target->item);
#endif
}

#endif
