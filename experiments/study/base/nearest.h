/* nearest.h: the word that a user probably meant, and the words that are allowed. */
#ifndef TSR_STUDY_NEAREST_H
#define TSR_STUDY_NEAREST_H

#include "experiments/study/base/yaml.h"

/* Edit distance (insert, delete, replace, swap of neighbours). */
size_t tsr_edit_distance(const char *a, const char *b);
/* The nearest of `words` (NULL-terminated); NULL if none is near enough to be meant. */
const char *tsr_nearest(const char *word, const char *const *words);
/* "a, b or c" of those `words` (NULL-terminated) that are not empty. */
void tsr_join_words(const char *const *words, char *out, size_t size);
/* Fails with "PATH: unknown key "KEY"; nearest: ...; allowed: ...". */
tsr_status tsr_unknown_key(const struct tsr_yaml_node *node, const char *path,
                           const char *const *allowed);

#endif
