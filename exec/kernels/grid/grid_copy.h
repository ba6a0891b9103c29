/* grid_copy.h: elements that are moved, as loops over blocks: copies that cast, cut and join; lists
 * of tensors in one launch, also summed, scaled and cast; rows of heads.
 */
#ifndef TSR_EXEC_GRID_COPY_H
#define TSR_EXEC_GRID_COPY_H

#include "exec/kernels/grid/grid_elementwise.h"

/* ---- words ----------------------------------------------------------------------------------- */

/* Elements that are moved as they are: words of 1, 2, 4, 8 or 16 bytes, which are the elements of
 * U8 tensors with that `item`. A thread of CUDA has one in hand at a time. */

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

/* ---- cut and joined -------------------------------------------------------------------------- */

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

/* ---- lists ----------------------------------------------------------------------------------- */

/* One launch for a list of tensors: copies of whole words, and sums, scalings and casts of
 * elements. The blocks of all items follow each other. */

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

/* ---- heads ----------------------------------------------------------------------------------- */

/* Rows of one length that become rows of another, and sums of heads: a head of a token is a row. */

/* Row r of `to`, of `rows`, gets [0, keep) of row r / times of `from` at `offset`; `zeros`: and
 * zeros elsewhere, else the rest of it is left alone. */
struct tsr_placing {
    struct tsr_elems from, to;
    uint64_t rows, from_row, to_row, keep, offset, times;
    bool zeros;
};

/* out, rows of d: the sum of `times` rows of g each. */
struct tsr_head_sums {
    struct tsr_elems g, out;
    uint64_t d, times;
};

/* Blocks that make up what is written of a row. */
TSR_ANYWHERE uint64_t tsr_placing_blocks(const struct tsr_placing *k)
{
    return tsr_grid_blocks(k->zeros ? k->to_row : k->keep);
}

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_copy_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_copy_real.h"
#undef TSR_REAL_F64

#endif
