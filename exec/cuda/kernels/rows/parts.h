/* parts.h: sums in two steps, in an order that follows from the shape alone: parts of a chunk
 * each, then the sum of the parts. Also all gradients of a norm, whose sums over rows are made
 * so.
 */
#ifndef TSR_EXEC_PARTS_H
#define TSR_EXEC_PARTS_H

#include "exec/cuda/kernels/team_shape.h"
#include "exec/kernels/rows/norms.h"
#include "exec/kernels/rows/sums.h"

/* ---- over rows: chunks of rows --------------------------------------------------------------- */

enum { TSR_COLUMNS_TILE = 256, TSR_COLUMNS_END_TILE = 32 };

/* Blocks: along x tiles of columns, along y chunks. */
struct tsr_column_parts {
    struct tsr_rows shape;
    uint64_t chunk; /* rows of one */
    struct tsr_elems g;
    struct tsr_elems x, mean, rstd; /* for scaled; mean.data NULL: 0 */
    void *plain, *scaled;           /* parts of sum(g) and of sum(g (x - mean) rstd), in the type of
                                       the arithmetic: columns of every chunk; NULL: not wanted */
};

/* Blocks: along x tiles, along y the two of them. */
struct tsr_column_ends {
    uint64_t chunks, columns;
    struct tsr_elems out[2];
    const void *parts[2];
};

/* ---- over all elements of tensors ------------------------------------------------------------ */

/* A block has a chunk. */
struct tsr_fold_parts {
    uint8_t op; /* enum tsr_fold_op */
    uint32_t n;
    uint64_t chunk;                /* elements of one, a multiple of TSR_BLOCK */
    uint32_t first[TSR_NORMS + 1]; /* chunk of every tensor; behind it, of the end */
    struct tsr_elems a[TSR_NORMS];
    struct tsr_elems b; /* of the only tensor; data NULL: none */
    double *parts;      /* of every chunk */
};

/* A block has a tensor: all of its out becomes the sum / divisor, or the sum's root times scale. */
struct tsr_fold_ends {
    bool root;
    double divisor;
    float scale[TSR_NORMS];
    uint32_t first[TSR_NORMS + 1];
    struct tsr_elems out[TSR_NORMS];
    const double *parts;
};

/* ---- gradients of a norm --------------------------------------------------------------------- */

/* All gradients of a norm from one reading of its operands (norm_gradients.cu): a
 * block has a chunk of rows and leaves its part of the sums over rows, as above. What
 * a launch and the kernel agree on; it follows from shapes and dtypes alone. */

struct tsr_norm_gradients {
    struct tsr_norm norm;  /* mean and rstd in f32 */
    uint64_t chunk;        /* rows of a block */
    unsigned stages;       /* as the launch has found */
    float *plain, *scaled; /* parts of gb and of gw: columns of every chunk; NULL: not wanted */
};

/* Shared memory in words of 16 bytes of every thread: where each array of its packs begins. Rows of
 * x, g and gh lie in `stages` places, since the next ones are on their way. */
struct tsr_norm_places {
    unsigned turns; /* packs of a thread, at most */
    unsigned w, sum_w, sum_b;
    unsigned first_stage, g, gh, stage; /* of a stage: x at 0, g, gh; its size */
    unsigned stages, words;
};

enum {
    TSR_NORM_STAGES = 4,
    TSR_NORM_SHARED = 95 << 10, /* of a block; GPUs from sm_80 on have as much */
    TSR_NORM_BLOCKS = 264       /* two for each multiprocessor of an H200 */
};

/* Words of a pack. */
TSR_ANYWHERE unsigned tsr_norm_words(const struct tsr_elems *e)
{
    return e->data ? TSR_CUDA_ITEMS * e->item / 16u : 0;
}

/* In blocks of so many threads; stages 0: there is no room for it. */
TSR_ANYWHERE struct tsr_norm_places tsr_norm_places_of(const struct tsr_norm *k, unsigned threads)
{
    struct tsr_norm_places p;
    uint64_t per_turn = (uint64_t)tsr_team_size(k->shape.columns, threads) * TSR_CUDA_ITEMS;
    uint64_t turns = (k->shape.columns + per_turn - 1) / per_turn;
    uint64_t room = TSR_NORM_SHARED / (16 * (uint64_t)threads);
    p.turns = turns < room ? (unsigned)turns : (unsigned)room + 1;
    p.w = 0;
    p.sum_w = p.turns * tsr_norm_words(&k->w);
    p.sum_b = p.sum_w + (k->gw.data ? 2 * p.turns : 0);
    p.first_stage = p.sum_b + (k->gb.data ? 2 * p.turns : 0);
    p.g = p.turns * tsr_norm_words(&k->x);
    p.gh = p.g + p.turns * tsr_norm_words(&k->g);
    p.stage = p.gh + p.turns * tsr_norm_words(&k->gh);
    p.stages = TSR_NORM_STAGES;
    while (p.stages > 0 && p.first_stage + p.stages * p.stage > room)
        p.stages--;
    p.stages = p.stages > 1 ? p.stages : 0;
    p.words = p.first_stage + p.stages * p.stage;
    return p;
}

#endif
