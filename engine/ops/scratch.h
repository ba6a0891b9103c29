/* scratch.h: bytes that library kernels take for themselves while they run.
 *
 * Each is what PyTorch 2.11's host code asks the allocator for on a part with 132 multiprocessors
 * of 2048 threads (sm_90): documented choices of the libraries, not fitted numbers. Formulas:
 * golden-memory/operators.md, sections 6, 7, 9 and 11.
 */
#ifndef TSR_SCRATCH_H
#define TSR_SCRATCH_H

#include "engine/program/base.h"

enum {
    TSR_MULTIPROCESSORS = 132,
    TSR_CUBLAS_WORKSPACE = 33554432,  /* per cuBLAS handle and stream */
    TSR_CUBLASLT_WORKSPACE = 1048576, /* per thread that runs a biased product */
    TSR_SORTED_TOKENS = 3072          /* more tokens: the embedding's backward sorts them */
};

/* Reduction of an [n_in, out] matrix to [out] with fp32 accumulation (bias gradients): partial sums
 * and semaphores; both 0 where one pass is enough. */
struct tsr_column_sum {
    uint64_t partial, semaphores;
};
struct tsr_column_sum tsr__column_sum_scratch(uint64_t n_in, uint64_t out);

/* Into how many pieces flash attention cuts the keys to fill the device; 1: no scratch. */
uint64_t tsr__flash_splits(uint64_t batch, uint64_t heads, uint64_t seq, uint64_t head_dim);

/* Head size as flash attention's fp32 accumulators have it. */
uint64_t tsr__flash_head_dim(uint64_t head_dim);

/* The dQ accumulator of the memory-efficient backward; `wide`: fp32 inputs. */
uint64_t tsr__efficient_accumulator(uint64_t batch, uint64_t heads, uint64_t seq, uint64_t head_dim,
                                    bool wide);

/* Temporaries of cub's radix sort and scan as the embedding's backward calls them. */
uint64_t tsr__sort_scratch(uint64_t tokens);
uint64_t tsr__scan_scratch(uint64_t n);
enum { TSR_PARTITION_SCRATCH = 1279 }; /* holds up to 65536 tokens, grows slowly above */

#endif
