/* shingles.c: hashes of runs of words. */
#include "exec/data/shingles.h"

#include <ctype.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The hash of each word, in order. */
static tsr_status words_of(const uint8_t *text, uint64_t bytes, uint64_t **out, size_t *n)
{
    size_t cap = 0;
    for (uint64_t i = 0; i < bytes;) {
        uint64_t begin = i;
        while (i < bytes && !isspace(text[i]))
            i++;
        if (i > begin &&
            !TSR_PUSH(*out, *n, cap,
                      tsr_hash_bytes(TSR_HASH_INIT, text + begin, (size_t)(i - begin))))
            return tsr_no_memory("a corpus");
        while (i < bytes && isspace(text[i]))
            i++;
    }
    return TSR_OK;
}

tsr_status tsr_shingles_of(const uint8_t *text, uint64_t bytes, unsigned n_words,
                           struct tsr_shingles *out)
{
    uint64_t *words = NULL;
    size_t n = 0;
    *out = (struct tsr_shingles){0, NULL};
    tsr_status status = words_of(text, bytes, &words, &n);
    if (status != TSR_OK || n == 0) {
        free(words);
        return status;
    }
    size_t n_runs = n < n_words ? 1 : n - n_words + 1;
    for (size_t i = 0; i < n_runs; i++) { /* the run that begins here replaces its first word */
        uint64_t hash = TSR_HASH_INIT;
        for (size_t k = i; k < n && k < i + n_words; k++)
            hash = tsr_hash_u64(hash, words[k]);
        words[i] = hash;
    }
    qsort(words, n_runs, sizeof *words, compare);
    size_t kept = 0;
    for (size_t i = 0; i < n_runs; i++)
        if (i == 0 || words[i] != words[i - 1])
            words[kept++] = words[i];
    *out = (struct tsr_shingles){kept, words};
    return TSR_OK;
}

void tsr_shingles_fini(struct tsr_shingles *shingles)
{
    free(shingles->hashes);
    *shingles = (struct tsr_shingles){0, NULL};
}

bool tsr_shingles_have(const struct tsr_shingles *s, uint64_t hash)
{
    return s->n > 0 && bsearch(&hash, s->hashes, s->n, sizeof *s->hashes, compare);
}
