/* values.h: helpers of values.c and wrap_value.c. */
#ifndef TSR_CLI_VALUES_H
#define TSR_CLI_VALUES_H

#include "settings.h"

/* "a, b or c". */
void tsr_join_words(const char *const *words, char *out, size_t size);
/* `text` as a YAML scalar. Errors: TSR_ECONFIG if it does not fit. */
tsr_status tsr_yaml_quote(const char *text, char *out, size_t size) TSR_MUST_USE;
bool tsr_reshard_of(const struct tsr_node *node, struct tsr_reshard_value *out);

/* A list of {modules, group, reshard_after_forward}. *ok false: the caller says what is allowed. */
tsr_status tsr_wrap_read(struct tsr_arena *arena, const char *path, const struct tsr_node *node,
                         struct tsr_wrap_value *out, bool *ok) TSR_MUST_USE;
tsr_status tsr_wrap_format(const struct tsr_wrap_value *wrap, char *out, size_t size) TSR_MUST_USE;

#endif
