/* block.h: sums and maxima over the threads of a block, in a fixed order: the result does not
 * depend on which thread comes first. Every thread of the block calls; every thread gets the
 * result.
 */
#ifndef TSR_CUDA_KERNELS_BLOCK_H
#define TSR_CUDA_KERNELS_BLOCK_H

#include "exec/cuda/kernels/code.h"

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

#endif
