/* tensor.h: the elements of an operand, on the host and in CUDA code: where element i lies, and
 * runs of elements as floats or doubles and back, rounded once.
 */
#ifndef TSR_EXEC_TENSOR_H
#define TSR_EXEC_TENSOR_H

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
/* ---- eight elements -------------------------------------------------------------------------- */

/* Eight elements in the hands of a thread of CUDA, in 16 bytes at a time where they
 * lie together at a multiple of that. Part of tensor.h where TSR_BLOCK is 8. */

/* Four words at p, a multiple of 16. */
TSR_ANYWHERE void tsr_get_words(const unsigned char *p, uint32_t *word)
{
#ifdef __CUDACC__
    uint4 all = *(const uint4 *)p;
    word[0] = all.x;
    word[1] = all.y;
    word[2] = all.z;
    word[3] = all.w;
#else
    memcpy(word, p, 16);
#endif
}

TSR_ANYWHERE void tsr_put_words(unsigned char *p, const uint32_t *word)
{
#ifdef __CUDACC__
    uint4 all = {word[0], word[1], word[2], word[3]};
    *(uint4 *)p = all;
#else
    memcpy(p, word, 16);
#endif
}

/* Eight elements of 2 or 4 bytes as they are: in four words, or eight. */
TSR_ANYWHERE void tsr_get_raw(const unsigned char *p, unsigned item, uint32_t *word)
{
    tsr_get_words(p, word);
    if (item == 4)
        tsr_get_words(p + 16, word + 4);
}

/* ---- spread eights ----------------------------------------------------------------------------
 */
/* Threads side by side have blocks of eight elements side by side. Of f32 that is two accesses of
 * 16 bytes with gaps between the threads', which leave every sector of the cache half written.
 * Spread, block b has two fours instead, 128 elements apart, and every access of a warp is one run
 * of memory. It is the same elements over 32 blocks, so all of these must be there: blocks below
 * tsr_spread_blocks(n). */

TSR_ANYWHERE uint64_t tsr_spread_blocks(uint64_t n)
{
    return n / 256 * 32;
}

/* The first element of a block's first four. */
TSR_ANYWHERE uint64_t tsr_spread(uint64_t block)
{
    return block / 32 * 256 + block % 32 * 4;
}

/* Elements of 2 or 4 bytes as they are. p: where the first one lies. */
TSR_ANYWHERE void tsr_get_spread(const unsigned char *p, unsigned item, uint32_t (*word)[4])
{
    TSR_UNROLL
    for (unsigned half = 0; half < 2; half++, p += 128 * item) {
        if (item == 4) {
            tsr_get_words(p, word[half]);
            continue;
        }
        word[half][2] = word[half][3] = 0;
#ifdef __CUDACC__
        uint2 pair = *(const uint2 *)p;
        word[half][0] = pair.x;
        word[half][1] = pair.y;
#else
        memcpy(word[half], p, 8);
#endif
    }
}

TSR_ANYWHERE void tsr_of_spread(uint32_t (*const word)[4], unsigned dtype, float *out)
{
    TSR_UNROLL
    for (unsigned i = 0; i < 8; i++) {
        const uint32_t *w = word[i / 4];
        uint32_t pair = w[i % 4 / 2];
        if (dtype == TSR_F32)
            out[i] = tsr_bits_float(w[i % 4]);
        else if (dtype == TSR_BF16)
            out[i] = tsr_bits_float(i % 2 ? pair & UINT32_C(0xffff0000) : pair << 16);
        else
            out[i] = tsr_from_f16((uint16_t)(i % 2 ? pair >> 16 : pair));
    }
}

TSR_ANYWHERE void tsr_put_spread(unsigned char *p, unsigned dtype, const float *in)
{
    TSR_UNROLL
    for (unsigned half = 0; half < 2; half++, in += 4, p += 128 * (dtype == TSR_F32 ? 4 : 2)) {
        if (dtype == TSR_F32) {
            const uint32_t word[4] = {tsr_float_bits(in[0]), tsr_float_bits(in[1]),
                                      tsr_float_bits(in[2]), tsr_float_bits(in[3])};
            tsr_put_words(p, word);
            continue;
        }
        const uint32_t pair[2] = {
            dtype == TSR_BF16 ? tsr_to_bf16_pair(in[0], in[1])
                              : tsr_to_f16(in[0]) | (uint32_t)tsr_to_f16(in[1]) << 16,
            dtype == TSR_BF16 ? tsr_to_bf16_pair(in[2], in[3])
                              : tsr_to_f16(in[2]) | (uint32_t)tsr_to_f16(in[3]) << 16};
#ifdef __CUDACC__
        uint2 both = {pair[0], pair[1]};
        *(uint2 *)p = both;
#else
        memcpy(p, pair, 8);
#endif
    }
}

/* Where elements [at, at + n) begin if they lie one behind the other, else NULL. */
TSR_ANYWHERE unsigned char *tsr_elems_together(const struct tsr_elems *e, uint64_t at, uint64_t n)
{
    if (e->width != 0 && tsr_elems_run(e, at, n) < n)
        return NULL;
    return e->data + e->item * tsr_elems_place(e, at);
}

/* True if the n elements at p are eight that whole accesses reach. */
TSR_ANYWHERE bool tsr_are_words(const struct tsr_elems *e, const unsigned char *p, uint64_t n)
{
    bool known =
        e->dtype == TSR_F32 || e->dtype == TSR_BF16 || e->dtype == TSR_F16 || e->dtype == TSR_F64;
    return n == 8 && ((uintptr_t)p & 15) == 0 && known;
}

/* True if every eight elements of rows of `columns` are such, and of 2 or 4 bytes. */
TSR_ANYWHERE bool tsr_rows_are_words(const struct tsr_elems *e, uint64_t columns)
{
    return e->width == 0 && columns % 8 == 0 && e->dtype != TSR_F64 && tsr_are_words(e, e->data, 8);
}

/* True if elements from `at` on, a multiple of 8, may be read and written so. */
TSR_ANYWHERE bool tsr_may_spread(const struct tsr_elems *e, uint64_t at)
{
    return e->width == 0 && e->dtype != TSR_F64 && tsr_are_words(e, e->data + e->item * at, 8);
}
#endif /* TSR_BLOCK */

#define TSR_REAL_F64 0
#include "exec/kernels/tensor/tensor_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/tensor/tensor_real.h"
#undef TSR_REAL_F64

#endif
