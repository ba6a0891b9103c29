/* values.h: helpers of values.c and wrap_value.c. */
#ifndef TSR_STUDY_VALUES_H
#define TSR_STUDY_VALUES_H

#include "experiments/study/config/settings.h"

/* `text` as a YAML scalar. Errors: TSR_ECONFIG if it does not fit. */
tsr_status tsr_yaml_quote(const char *text, char *out, size_t size) TSR_MUST_USE;
bool tsr_reshard_of(const struct tsr_yaml_node *node, struct tsr_reshard_value *out);

/* The shortest decimal that reads back as the same number. */
void tsr_format_double(double value, char *out, size_t size);

/* The keys sim.faults and sim.traffic (conditions_value.c). *ok false: the caller says what is
 * allowed. */
extern const char *const tsr_faults_allowed, *const tsr_traffic_allowed;
tsr_status tsr_faults_read(struct tsr_arena *arena, const char *path,
                           const struct tsr_yaml_node *node, struct tsr_faults *out,
                           bool *ok) TSR_MUST_USE;
tsr_status tsr_faults_format(const struct tsr_faults *faults, char *out, size_t size) TSR_MUST_USE;
tsr_status tsr_traffic_read(struct tsr_arena *arena, const char *path,
                            const struct tsr_yaml_node *node, struct tsr_traffic_list *out,
                            bool *ok) TSR_MUST_USE;
tsr_status tsr_traffic_format(const struct tsr_traffic_list *traffic, char *out,
                              size_t size) TSR_MUST_USE;

/* A list of {modules, group, reshard_after_forward}. *ok false: the caller says what is allowed. */
tsr_status tsr_wrap_read(struct tsr_arena *arena, const char *path,
                         const struct tsr_yaml_node *node, struct tsr_wrap_value *out,
                         bool *ok) TSR_MUST_USE;
tsr_status tsr_wrap_format(const struct tsr_wrap_value *wrap, char *out, size_t size) TSR_MUST_USE;

#endif
