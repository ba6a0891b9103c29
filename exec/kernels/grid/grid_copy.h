/* grid_copy.h: copies that cast, cut and join, as loops over blocks of the output. */
#ifndef TSR_KERNELS_GRID_COPY_H
#define TSR_KERNELS_GRID_COPY_H

#include "exec/kernels/grid/grid_words.h"

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

/* Several, in one launch: below the 4 KiB of parameters. */
enum { TSR_MAX_PIECES = 28 };
struct tsr_pieces_list {
    uint32_t n;
    struct tsr_pieces of[TSR_MAX_PIECES];
};

/* Where element i of the whole lies among the pieces, and how many from there on follow in both. */
TSR_ANYWHERE uint64_t tsr_pieces_place(const struct tsr_pieces *p, uint64_t i, uint64_t *run)
{
    const struct tsr_cut *cut = &p->cut;
    uint64_t piece = cut->chunk * cut->inner;
    if (cut->outer == 1) { /* nearly always: a division instead of five */
        uint64_t r = i / piece, within = i - r * piece;
        *run = tsr_cut_rows(cut, r) * cut->inner - within;
        return r * p->stride + p->first + within;
    }
    uint64_t line = cut->dim * cut->inner, o = i / line, column = i % line, r = column / piece;
    uint64_t n = tsr_cut_rows(cut, r) * cut->inner, within = column - r * piece;
    *run = n - within;
    return r * p->stride + p->first + o * n + within;
}

/* whole := its pieces, word by word, in CUDA. Over the words of all wholes. */
TSR_ANYWHERE void tsr_grid_join_words(const struct tsr_pieces_list *k, uint64_t begin,
                                      uint64_t step)
{
    uint64_t word = begin, run;
    for (uint32_t i = 0; i < k->n; i++) {
        const struct tsr_pieces *p = &k->of[i];
        for (; word < p->whole.n; word += step)
            tsr_move_word(&p->pieces, tsr_pieces_place(p, word, &run), &p->whole, word);
        word -= p->whole.n;
    }
}

/* Which parameters were used, as integers of 32 bits, the low byte first. */
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

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_copy_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_copy_real.h"
#undef TSR_REAL_F64

#endif
