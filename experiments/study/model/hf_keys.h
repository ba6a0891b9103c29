/* hf_keys.h: keys of a config.json, read one by one. What nobody asked for, and is not known to be
 * harmless (hf_keys.c has the list), is an error: a model is never another one than its file says.
 * Every failure is TSR_ECONFIG, with the place of the key, its value and what is allowed.
 */
#ifndef TSR_STUDY_HF_KEYS_H
#define TSR_STUDY_HF_KEYS_H

#include "experiments/study/model/model.h"

#define TSR_HF_MAX_SIZE UINT64_C(1073741824) /* of any size in a config: 2^30 */

enum { TSR_HF_MOST_ASKED = 160 };
struct tsr_asked_keys {
    size_t n;
    struct tsr_asked_key {
        const struct tsr_yaml_node *map;
        const char *key; /* NULL: all of its keys, which mean nothing here */
    } keys[TSR_HF_MOST_ASKED];
};

/* The value of a key, which from now on counts as read; NULL if `map` has none. */
const struct tsr_yaml_node *tsr_hf_ask(const struct tsr_model *model,
                                       const struct tsr_yaml_node *map, const char *key);
/* Once all is read: no key is left over. */
tsr_status tsr_hf_check_keys(const struct tsr_model *model) TSR_MUST_USE;

/* ---- of the file's top level --------------------------------------------------------------- */

tsr_status tsr_hf_size(const struct tsr_model *model, const char *key, uint64_t *out) TSR_MUST_USE;
/* Absent or null: `fallback`. */
tsr_status tsr_hf_size_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                          uint64_t *out) TSR_MUST_USE;
/* As tsr_hf_size_or(), and 0 is a value. */
tsr_status tsr_hf_count_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                           uint64_t *out) TSR_MUST_USE;
tsr_status tsr_hf_bool_or(const struct tsr_model *model, const char *key, bool fallback,
                          bool *out) TSR_MUST_USE;
/* Which of the words; where the key is absent or null: the first. */
tsr_status tsr_hf_word_or(const struct tsr_model *model, const char *key,
                          const char *const *allowed, size_t *which) TSR_MUST_USE;
/* `whole`, which is the value of `key`, is a multiple of `part`. */
tsr_status tsr_hf_divides(const struct tsr_model *model, const char *key, uint64_t whole,
                          const char *part_key, uint64_t part) TSR_MUST_USE;

/* ---- of any mapping; NULL: of none ----------------------------------------------------------- */

/* A positive number; absent or null: *out stays. */
tsr_status tsr_hf_number_or(const struct tsr_model *model, const struct tsr_yaml_node *map,
                            const char *key, double *out) TSR_MUST_USE;
/* A key that has to be absent, null, or this word: another value is another model. `where`: before
 * the key in messages. */
tsr_status tsr_hf_only(const struct tsr_model *model, const struct tsr_yaml_node *map,
                       const char *where, const char *key, const char *word) TSR_MUST_USE;
tsr_status tsr_hf_only_number(const struct tsr_model *model, const struct tsr_yaml_node *map,
                              const char *where, const char *key, double value) TSR_MUST_USE;

#endif
