/* team_shape.h: how many threads have a row together (team.h), and what they keep of it: what a
 * launch and the kernel agree on. It follows from the number of columns alone.
 */
#ifndef TSR_EXEC_TEAM_SHAPE_H
#define TSR_EXEC_TEAM_SHAPE_H

#include "exec/cuda/kernels/code.h"

#include "exec/base/numeric.h"

enum {
    TSR_TEAM_SHORT = 1024,    /* columns up to which lanes of a warp have a row */
    TSR_TEAM_LONG = 16384,    /* from here on more than TSR_CUDA_THREADS, so that the rows that are
                                 in work at once stay in the cache until they are read again */
    TSR_TEAM_KEEPS = 48 << 10 /* bytes of rows that a block of TSR_CUDA_THREADS may keep in shared
                                 memory; larger ones have a multiprocessor alone, and all of it */
};

/* Returns the threads of a block for rows of `columns`; `limit` is the kernel's launch bound. */
TSR_ANYWHERE unsigned tsr_team_threads(uint64_t columns, unsigned limit)
{
    if (columns <= TSR_TEAM_SHORT)
        return TSR_CUDA_THREADS;
    unsigned most = columns >= TSR_TEAM_LONG ? limit : (unsigned)TSR_CUDA_THREADS;
    uint64_t packs = (columns + TSR_CUDA_ITEMS - 1) / TSR_CUDA_ITEMS;
    uint64_t whole = (packs + TSR_WARP - 1) / TSR_WARP * TSR_WARP;
    return whole < most ? (unsigned)whole : most;
}

/* Threads of a team in blocks of so many. */
TSR_ANYWHERE unsigned tsr_team_size(uint64_t columns, unsigned threads)
{
    unsigned size = 1;
    if (columns > TSR_TEAM_SHORT)
        return threads;
    while (size < TSR_WARP && size < threads && (uint64_t)size * TSR_CUDA_ITEMS < columns)
        size *= 2;
    return size;
}

/* Shared memory of a block that keeps `arrays` reals of `real` bytes for every element of the rows
 * in work, or for as many packs of a thread as there is room for: the others are read again. most:
 * what a block may have at all. */
TSR_ANYWHERE uint64_t tsr_team_keeps(uint64_t columns, unsigned limit, unsigned arrays,
                                     unsigned real, uint64_t most)
{
    unsigned threads = tsr_team_threads(columns, limit);
    uint64_t per_turn = (uint64_t)tsr_team_size(columns, threads) * TSR_CUDA_ITEMS;
    uint64_t before = columns % TSR_CUDA_ITEMS ? TSR_CUDA_ITEMS - 1 : 0;
    uint64_t turns = (before + columns + per_turn - 1) / per_turn;
    uint64_t turn = (uint64_t)threads * TSR_CUDA_ITEMS * real * arrays;
    uint64_t fit = (threads > TSR_CUDA_THREADS ? most : (uint64_t)TSR_TEAM_KEEPS) / turn;
    return (turns < fit ? turns : fit) * turn;
}

#endif
