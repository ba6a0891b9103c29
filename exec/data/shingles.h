/* shingles.h: sets of hashed runs of words, to see how much of one text stands in another. */
#ifndef TSR_SHINGLES_H
#define TSR_SHINGLES_H

#include "engine/program/base.h"

/* Hashes, sorted, none twice. */
struct tsr_shingles {
    size_t n;
    uint64_t *hashes;
};

/* The runs of n_words words of a text; a text with fewer words is one run. */
tsr_status tsr_shingles_of(const uint8_t *text, uint64_t bytes, unsigned n_words,
                           struct tsr_shingles *out) TSR_MUST_USE;
void tsr_shingles_fini(struct tsr_shingles *shingles);
bool tsr_shingles_have(const struct tsr_shingles *shingles, uint64_t hash);

#endif
