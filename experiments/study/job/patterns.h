/* patterns.h: patterns of a file that name nothing of its model are mistakes, not silence. */
#ifndef TSR_STUDY_JOB_PATTERNS_H
#define TSR_STUDY_JOB_PATTERNS_H

#include "engine/tessera.h"
#include "experiments/study/base/yaml.h"

enum tsr_pattern_of { TSR_PATTERN_MODULES, TSR_PATTERN_PARAMS };

/* What of a list must name something. */
enum tsr_pattern_need {
    TSR_PATTERN_EACH,  /* every pattern */
    TSR_PATTERN_SHARED /* one of them, and every name without *: the list is for several models */
};

/* `list`: a pattern, a list of them, or a list of lists that begin with one; NULL: nothing to say.
 * `key` and `model` are for the message. A tied parameter has its first name only. Errors:
 * TSR_ECONFIG at the pattern, with the nearest names; TSR_ENOMEM. */
tsr_status tsr_check_patterns(struct tsr_engine *engine, const struct tsr_yaml_node *list,
                              enum tsr_pattern_of of, enum tsr_pattern_need need, const char *key,
                              const char *model) TSR_MUST_USE;

#endif
