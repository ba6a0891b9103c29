/* tensor_eight.h: eight elements in the hands of a thread of CUDA, in 16 bytes at a time where they
 * lie together at a multiple of that. Part of tensor.h where TSR_BLOCK is 8.
 */
#ifndef TSR_KERNELS_TENSOR_EIGHT_H
#define TSR_KERNELS_TENSOR_EIGHT_H

#include "tensor.h"

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

TSR_ANYWHERE double tsr_double_of_words(uint32_t low, uint32_t high)
{
    uint64_t bits = (uint64_t)high << 32 | low;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TSR_ANYWHERE uint64_t tsr_double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
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

#endif
