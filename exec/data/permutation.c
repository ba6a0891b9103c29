/* permutation.c: a Feistel network with cycle walking. */
#include "exec/data/permutation.h"

#include "engine/program/base.h"

/* The finalizer of splitmix64: every bit of the input changes every bit of the output. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void tsr_permutation_init(struct tsr_permutation *out, uint64_t n, uint64_t seed, uint64_t epoch)
{
    TSR_CHECK(n > 0);
    uint32_t half_bits = 3; /* with fewer, some orders of 5 or 6 things come up more often */
    while (half_bits < 32 && (n - 1) >> 2 * half_bits != 0)
        half_bits++;
    *out = (struct tsr_permutation){.n = n, .half_bits = half_bits};
    uint64_t state = mix(mix(seed) ^ epoch);
    for (int i = 0; i < TSR_PERMUTATION_ROUNDS; i++)
        out->keys[i] = state = mix(state);
}

static uint64_t feistel(const struct tsr_permutation *p, uint64_t x)
{
    uint64_t mask = (UINT64_C(1) << p->half_bits) - 1;
    uint64_t left = x >> p->half_bits, right = x & mask;
    for (int i = 0; i < TSR_PERMUTATION_ROUNDS; i++) {
        /* The upper bits of the mix are as good as any, and there are always 32 of them. */
        uint64_t next = left ^ (mix(right ^ p->keys[i]) >> 32 & mask);
        left = right;
        right = next;
    }
    return left << p->half_bits | right;
}

uint64_t tsr_permutation_at(const struct tsr_permutation *p, uint64_t i)
{
    TSR_CHECK(i < p->n);
    do
        i = feistel(p, i);
    while (i >= p->n);
    return i;
}
