/* tensor.h: the elements of an operand, on the host and in CUDA code: where element i lies, and
 * runs of elements as floats or doubles and back, rounded once.
 */
#ifndef TSR_KERNELS_TENSOR_H
#define TSR_KERNELS_TENSOR_H

#include <stdbool.h>

#include "engine/program/base.h"
#include "exec/kernels/tensor/elements.h"

/* How many elements a kernel has in hand at once: enough to make dispatch by dtype cheap on the
 * host, 16 bytes in a thread of CUDA. */
#ifndef TSR_BLOCK
#ifdef __CUDACC__
#define TSR_BLOCK 8
#else
#define TSR_BLOCK 256
#endif
#endif

/* Loops over the n elements in hand. In a thread of CUDA they have a known length, without which
 * the elements would not stay in registers: TSR_EACH_OF leaves those behind n out, TSR_LANES does
 * not, where it does no harm to compute them too. */
#ifdef __CUDACC__
#define TSR_UNROLL    _Pragma("unroll")
#define TSR_NO_UNROLL _Pragma("unroll 1")
#else
#define TSR_UNROLL
#define TSR_NO_UNROLL
#endif
#if TSR_BLOCK == 8
#define TSR_LANES(i, n)   TSR_UNROLL for (unsigned i = 0; i < 8 + 0 * (n); i++)
#define TSR_EACH_OF(i, n) TSR_UNROLL for (unsigned i = 0; i < 8; i++) if (i < (n))
#else
#define TSR_LANES(i, n)   for (unsigned i = 0; i < (n); i++)
#define TSR_EACH_OF(i, n) for (unsigned i = 0; i < (n); i++)
#endif

struct tsr_elems {
    unsigned char *data;
    uint64_t n;
    uint64_t width, pitch; /* elements; width 0: one behind the other */
    uint8_t dtype;         /* enum tsr_dtype; bytes are U8 */
    uint8_t item;          /* bytes of an element */
};

/* Place of element i in memory, in elements from data. */
TSR_ANYWHERE uint64_t tsr_elems_place(const struct tsr_elems *e, uint64_t i)
{
    if (e->width == 0)
        return i;
    uint64_t row = i / e->width, column = i % e->width;
    return row * e->pitch + (e->pitch < e->width ? column % e->pitch : column);
}

/* How many elements from i on lie one behind the other, at most n. */
TSR_ANYWHERE uint64_t tsr_elems_run(const struct tsr_elems *e, uint64_t i, uint64_t n)
{
    if (e->width == 0)
        return n;
    uint64_t column = i % e->width, left = e->width - column;
    if (e->pitch < e->width) {
        uint64_t same = e->pitch - column % e->pitch;
        left = same < left ? same : left;
    }
    return left < n ? left : n;
}

/* Element i of a tensor of integers. */
TSR_ANYWHERE int64_t tsr_elems_i64(const struct tsr_elems *e, uint64_t i)
{
    const unsigned char *at = e->data + 8 * tsr_elems_place(e, i);
#ifdef __CUDACC__ /* a copy from bytes is eight accesses there */
    return *(const int64_t *)at;
#else
    int64_t value;
    memcpy(&value, at, 8);
    return value;
#endif
}

#if TSR_BLOCK == 8
#include "exec/kernels/tensor/tensor_eight.h"
#endif

#define TSR_REAL_F64 0
#include "exec/kernels/tensor/tensor_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/tensor/tensor_real.h"
#undef TSR_REAL_F64

#endif
