/* html_pack.h: numbers packed into text, for what a page has thousands of: each number takes as
 * many groups of 7 bits as it needs, the lowest first, and the bytes are written as base64. Texts
 * are kept once, and written without the letters that they share with the one before. */
#ifndef TSR_STUDY_HTML_PACK_H
#define TSR_STUDY_HTML_PACK_H

#include <stdio.h>

#include "engine/program/base.h"
#include "engine/program/map.h"

/* Zeroed: empty. Owns data. */
struct tsr__pack {
    uint8_t *data;
    size_t n, cap;
    bool failed; /* no memory was left: what is in it is of no use */
};
void tsr__pack_put(struct tsr__pack *pack, uint64_t number);
/* Small whatever the sign: 0, -1, 1, -2, ... become 0, 1, 2, 3, ... */
void tsr__pack_put_signed(struct tsr__pack *pack, int64_t number);
/* As a JSON string. */
void tsr__pack_write(FILE *out, const struct tsr__pack *pack);
void tsr__pack_fini(struct tsr__pack *pack);

/* Zeroed: empty. Owns all of it. */
struct tsr__words {
    struct tsr_arena arena;
    const char **texts; /* [n] in the order in which they came */
    uint32_t *next;     /* [n] the one before of the same hash */
    size_t n, cap, next_cap, n_next;
    struct tsr_map first;
    bool failed;
};
/* The number of a text, which is added if it is new. */
uint32_t tsr__words_of(struct tsr__words *words, const char *text);
/* [[letters shared with the one before, "rest"], ...] */
void tsr__words_write(FILE *out, const struct tsr__words *words);
void tsr__words_fini(struct tsr__words *words);

#endif
