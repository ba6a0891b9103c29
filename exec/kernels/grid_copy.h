/* grid_copy.h: copies that cast, cut and join, as loops over blocks of the output. */
#ifndef TSR_KERNELS_GRID_COPY_H
#define TSR_KERNELS_GRID_COPY_H

#include "grid_elementwise.h"

/* A tensor (outer, dim, inner), cut along dim into pieces of `chunk`. */
struct tsr_cut {
    uint64_t outer, dim, inner, chunk;
};

/* Elements of a piece with its padding, and how many along dim piece r has. */
TSR_ANYWHERE uint64_t tsr_cut_padded(const struct tsr_cut *cut)
{
    return cut->outer * cut->chunk * cut->inner;
}

TSR_ANYWHERE uint64_t tsr_cut_rows(const struct tsr_cut *cut, uint64_t r)
{
    uint64_t begin = r * cut->chunk;
    if (begin >= cut->dim)
        return 0;
    return cut->dim - begin < cut->chunk ? cut->dim - begin : cut->chunk;
}

/* One tensor between the whole and its pieces. pieces: place of piece r is r * stride + first. */
struct tsr_pieces {
    struct tsr_cut cut;
    struct tsr_elems whole, pieces;
    uint64_t ranks, stride, first;
};

/* Where element i of the whole lies among the pieces, and how many from there on follow in both. */
TSR_ANYWHERE uint64_t tsr_pieces_place(const struct tsr_pieces *p, uint64_t i, uint64_t *run)
{
    const struct tsr_cut *cut = &p->cut;
    uint64_t line = cut->dim * cut->inner, o = i / line, row = i % line / cut->inner;
    uint64_t r = row / cut->chunk, n = tsr_cut_rows(cut, r) * cut->inner;
    uint64_t within = i % line - r * cut->chunk * cut->inner;
    *run = n - within;
    return r * p->stride + p->first + o * n + within;
}

#define TSR_REAL_F64 0
#include "grid_copy_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "grid_copy_real.h"
#undef TSR_REAL_F64

#endif
