/* grid_used_map.h: which parameters were used, as integers of 32 bits, the low byte first. */
#ifndef TSR_KERNELS_GRID_USED_MAP_H
#define TSR_KERNELS_GRID_USED_MAP_H

#include "exec/kernels/tensor/tensor.h"

enum { TSR_USED_WORDS = 56 };

/* Bytes [first, first + n) of out, from whole integers. */
struct tsr_used_map {
    struct tsr_elems out; /* bytes */
    uint64_t first, n;
    uint64_t used[TSR_USED_WORDS]; /* a bit for each integer */
};

TSR_ANYWHERE void tsr_grid_used_map(const struct tsr_used_map *k, uint64_t begin, uint64_t step)
{
    for (uint64_t i = begin; i < k->n; i += step) {
        uint64_t which = i / 4, used = k->used[which / 64] >> which % 64 & 1;
        k->out.data[tsr_elems_place(&k->out, k->first + i)] = i % 4 == 0 && used;
    }
}

#endif
