/* permutation.h: a pseudo-random order of 0 ... n-1 of which any element is computed by itself.
 *
 * A Feistel network of 8 rounds permutes 0 ... 4^h - 1, with h the least, from 3 on, for which this
 * holds n numbers; a result that is not below n is put in again until one is (cycle walking), which
 * takes fewer than 4 turns on average (for n > 16). Nothing is stored, so the place in the order is
 * one integer, and every rank can compute every other's part. Not cryptographic.
 */
#ifndef TSR_PERMUTATION_H
#define TSR_PERMUTATION_H

#include <stdint.h>

enum { TSR_PERMUTATION_ROUNDS = 8 };

struct tsr_permutation {
    uint64_t n;
    uint32_t half_bits; /* h, 3 to 32 */
    uint64_t keys[TSR_PERMUTATION_ROUNDS];
};

/* The order of `epoch` under `seed`. n is at least 1. */
void tsr_permutation_init(struct tsr_permutation *out, uint64_t n, uint64_t seed, uint64_t epoch);
/* What stands at place i < n: a number below n, another one for each i. */
uint64_t tsr_permutation_at(const struct tsr_permutation *permutation, uint64_t i);

#endif
