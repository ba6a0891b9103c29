/* words.h: the word that a user probably meant. */
#ifndef TSR_BASE_WORDS_H
#define TSR_BASE_WORDS_H

#include <stddef.h>

/* Edit distance (insert, delete, replace, swap of neighbours). */
size_t tsr_edit_distance(const char *a, const char *b);
/* The nearest of `words` (NULL-terminated); NULL if none is near enough to be meant. */
const char *tsr_nearest(const char *word, const char *const *words);

#endif
