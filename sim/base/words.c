/* words.c: edit distances (words.h). */
#include "sim/base/words.h"

#include <string.h>

/* BEGINNING: what begins with the word is as near as two slips of the pen. */
enum { MAX_WORD = 64, BEGINNING = 2 };

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Longer words are cut: what differs after 64 letters is no slip of the pen. */
size_t tsr_edit_distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    n_a = n_a < MAX_WORD ? n_a : MAX_WORD;
    n_b = n_b < MAX_WORD ? n_b : MAX_WORD;
    size_t row[3][MAX_WORD + 1]; /* two rows back, the last row, this row */
    memset(row, 0, sizeof row);
    size_t *older = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= n_b; j++)
        last[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t replace = last[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = min3(last[j] + 1, now[j - 1] + 1, replace);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                older[j - 2] + 1 < now[j])
                now[j] = older[j - 2] + 1;
        }
        size_t *spare = older;
        older = last;
        last = now;
        now = spare;
    }
    return last[n_b];
}

const char *tsr_nearest(const char *word, const char *const *words)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 2 + 1;
    for (size_t i = 0; words[i]; i++) {
        size_t distance = tsr_edit_distance(word, words[i]);
        if (distance > BEGINNING && strlen(word) > BEGINNING &&
            !strncmp(words[i], word, strlen(word)))
            distance = BEGINNING;
        if (*words[i] && distance < best_distance) {
            best = words[i];
            best_distance = distance;
        }
    }
    return best;
}
