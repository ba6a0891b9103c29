/* hf_keys.h: single keys of a config.json: their values, and what to say of a wrong one. Private to
 * the files that read model configurations.
 *
 * Each fails with TSR_ECONFIG and the place of the key, its value and what is allowed.
 */
#ifndef TSR_STUDY_HF_KEYS_H
#define TSR_STUDY_HF_KEYS_H

#include "experiments/study/model/model.h"

tsr_status tsr_hf_size(const struct tsr_model *model, const char *key, uint64_t *out) TSR_MUST_USE;
/* Absent or null: `fallback`. */
tsr_status tsr_hf_size_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                          uint64_t *out) TSR_MUST_USE;
/* As tsr_hf_size_or(), and 0 is a value. */
tsr_status tsr_hf_count_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                           uint64_t *out) TSR_MUST_USE;
tsr_status tsr_hf_bool_or(const struct tsr_model *model, const char *key, bool fallback,
                          bool *out) TSR_MUST_USE;
/* One of the words, or the family's default where the key is absent or null. */
tsr_status tsr_hf_word_or(const struct tsr_model *model, const char *key,
                          const char *const *allowed) TSR_MUST_USE;
/* A number of `map`; *out stays as it is where the key is absent or null. */
tsr_status tsr_hf_number_or(const struct tsr_yaml_node *map, const char *key,
                            double *out) TSR_MUST_USE;
/* `whole`, which is the value of `key`, is a multiple of `part`. */
tsr_status tsr_hf_divides(const struct tsr_model *model, const char *key, uint64_t whole,
                          const char *part_key, uint64_t part) TSR_MUST_USE;

/* The family of llm-foundry (hf_mpt.c). */
tsr_status tsr_hf_read_mpt(struct tsr_model *model) TSR_MUST_USE;

#endif
