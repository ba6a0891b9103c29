/* team.h: threads that have a row together: a few lanes of a warp where rows are short, a whole
 * block where they are long. Elements are dealt out in packs of TSR_BLOCK: pack t * size + lane is
 * the lane's in turn t. Who has which elements follows from the number of columns alone.
 *
 * A kernel has two forms in f32. One is for tensors whose packs are all whole words: no code for
 * anything else. The other takes what there is; where rows have an odd length its packs begin at
 * multiples of TSR_BLOCK of the tensor, not of the row, so that only the ends of rows are torn.
 *
 *   struct tsr_team t = tsr_team_of(k.shape.columns, whole);
 *   TSR_TEAM_ROWS(&t, &k.shape, row)   every thread as often, with or without a row of its own
 *       TSR_TEAM_PACKS(&t, row, turn, at, n)   n elements from column `at` on
 */
#ifndef TSR_EXEC_TEAM_H
#define TSR_EXEC_TEAM_H

#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/team_shape.h"

#include "exec/kernels/tensor/rows.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Sums and maxima over the threads of a block, in a fixed order: the result does not depend on
 * which thread comes first. Every thread of the block calls; every thread gets the result. */

/* Blocks have whole warps. */
#define TSR_BLOCK_FOLD(name, type, suffix, combine)                             \
    TSR_DEVICE type tsr_warp_##name##_##suffix(type x)                          \
    {                                                                           \
        for (int lanes = TSR_WARP / 2; lanes > 0 && !tsr_alone(); lanes /= 2) { \
            type y = tsr_shuffle_##suffix(x, lanes);                            \
            x = combine;                                                        \
        }                                                                       \
        return x;                                                               \
    }                                                                           \
    TSR_DEVICE type tsr_block_##name##_##suffix(type x)                         \
    {                                                                           \
        tsr_shared type of_warp[TSR_CUDA_LONG / TSR_WARP];                      \
        unsigned warp = tsr_thread() / TSR_WARP;                                \
        x = tsr_warp_##name##_##suffix(x);                                      \
        tsr_sync(); /* the last call's results have been read */                \
        if (tsr_thread() % TSR_WARP == 0)                                       \
            of_warp[warp] = x;                                                  \
        tsr_sync();                                                             \
        x = of_warp[0];                                                         \
        for (unsigned i = 1; i < tsr_threads() / TSR_WARP; i++) {               \
            type y = of_warp[i];                                                \
            x = combine;                                                        \
        }                                                                       \
        return x;                                                               \
    }

TSR_BLOCK_FOLD(sum, float, f32, x + y)
TSR_BLOCK_FOLD(sum, double, f64, x + y)
TSR_BLOCK_FOLD(max, float, f32, x > y || x != x ? x : y)
TSR_BLOCK_FOLD(max, double, f64, x > y || x != x ? x : y)

/* ---- teams ----------------------------------------------------------------------------------- */

struct tsr_team {
    unsigned size, lane;    /* threads, and which of them this is */
    unsigned number, teams; /* in the block */
    bool whole;             /* every pack consists of whole words */
    unsigned turns;         /* packs that this thread has of a row, if whole */
};

/* Packs that a thread has of the first n columns. */
TSR_DEVICE unsigned tsr_turns_to(const struct tsr_team *t, unsigned before, uint64_t n)
{
    uint64_t skipped = (uint64_t)t->lane * TSR_BLOCK, per_turn = (uint64_t)t->size * TSR_BLOCK;
    uint64_t end = n ? before + n : 0;
    return end > skipped ? (unsigned)((end - skipped - 1) / per_turn) + 1 : 0;
}

TSR_DEVICE struct tsr_team tsr_team_of(uint64_t columns, bool whole)
{
    struct tsr_team t;
    t.size = tsr_team_size(columns, tsr_threads());
    t.lane = tsr_thread() % t.size;
    t.number = tsr_thread() / t.size;
    t.teams = tsr_threads() / t.size;
    t.whole = whole;
    t.turns = whole ? tsr_turns_to(&t, 0, columns) : 0;
    return t;
}

/* A row as one thread of its team sees it. */
struct tsr_team_row {
    uint64_t number, first, columns; /* of columns 0: there is no row for this team */
    unsigned before;                 /* elements of its first pack that belong to the row before */
    unsigned turns;                  /* packs that the thread has */
    bool leads;                      /* one thread of the team, if it has a row */
};

TSR_DEVICE struct tsr_team_row tsr_row_of(const struct tsr_team *t, const struct tsr_rows *shape,
                                          uint64_t number)
{
    struct tsr_team_row row;
    row.number = number;
    row.first = number * shape->columns;
    row.columns = number < shape->rows ? shape->columns : 0;
    row.before = t->whole ? 0 : (unsigned)(row.first % TSR_BLOCK);
    if (t->whole)
        row.turns = row.columns ? t->turns : 0;
    else
        row.turns = tsr_turns_to(t, row.before, row.columns);
    row.leads = number < shape->rows && t->lane == 0;
    return row;
}

#define TSR_TEAM_ROWS(t, shape, row)                                                   \
    for (uint64_t tsr_at = tsr_block_x() * (t)->teams; tsr_at < (shape)->rows;         \
         tsr_at += tsr_blocks_x() * (t)->teams)                                        \
        for (struct tsr_team_row row = tsr_row_of((t), (shape), tsr_at + (t)->number), \
                                 *tsr_p = &row;                                        \
             tsr_p; tsr_p = NULL)

/* First column of a thread's pack, and how many elements it has. */
TSR_DEVICE uint64_t tsr_pack_column(const struct tsr_team *t, const struct tsr_team_row *row,
                                    unsigned turn)
{
    uint64_t place = ((uint64_t)turn * t->size + t->lane) * TSR_BLOCK;
    return place < row->before ? 0 : place - row->before;
}

/* More than any pack has: of whole words, which needs no test. */
enum { TSR_WHOLE_PACK = 256 };

TSR_DEVICE unsigned tsr_pack_elements(const struct tsr_team *t, const struct tsr_team_row *row,
                                      uint64_t column)
{
    uint64_t left = row->columns - column, most = TSR_BLOCK;
    if (t->whole)
        return TSR_WHOLE_PACK;
    if (column == 0)
        most -= row->before;
    return (unsigned)(left < most ? left : most);
}

/* Packs of so many bytes that a thread may keep in shared memory. */
TSR_DEVICE unsigned tsr_packs_stay(unsigned bytes)
{
    return tsr_dynamic_shared_size() / (bytes * tsr_threads());
}

/* What others of the team have read before may be written. */
TSR_DEVICE void tsr_team_sync(const struct tsr_team *t)
{
    if (t->size > TSR_WARP)
        tsr_sync();
    else
        tsr_sync_warp();
}

#define TSR_REAL_F64 0
#include "exec/cuda/kernels/team_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/cuda/kernels/team_real.h"
#undef TSR_REAL_F64

/* Kernels tsr_cuda_NAME_f32 (whole words), _torn (in f32, too) and _f64 of functions NAME_f32 and
 * NAME_f64, with blocks of up to `words` threads, and up to `others` for the last two, which need
 * more registers. */
#define TSR_TEAM_KERNELS(words, others, name, type)           \
    TSR_BLOCK_KERNEL_OF(words, tsr_cuda_##name##_f32, type)   \
    {                                                         \
        name##_f32(&k, true);                                 \
    }                                                         \
    TSR_BLOCK_KERNEL_OF(others, tsr_cuda_##name##_torn, type) \
    {                                                         \
        name##_f32(&k, false);                                \
    }                                                         \
    TSR_BLOCK_KERNEL_OF(others, tsr_cuda_##name##_f64, type)  \
    {                                                         \
        name##_f64(&k, false);                                \
    }
/* TSR_TEAM_KERNEL: every block has at most TSR_CUDA_THREADS. TSR_GROWING_KERNEL: blocks are larger
 * where rows are long (tsr_team_threads()). */
#define TSR_TEAM_KERNEL(name, type)    TSR_TEAM_KERNELS(TSR_CUDA_THREADS, TSR_CUDA_THREADS, name, type)
#define TSR_GROWING_KERNEL(name, type) TSR_TEAM_KERNELS(TSR_CUDA_LONG, TSR_CUDA_MEDIUM, name, type)

#endif
