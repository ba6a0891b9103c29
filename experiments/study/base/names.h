/* names.h: names of a document that are looked up while it is read: keys of its mappings, and
 * anchors. Private to yaml.c. A hash table with open addressing.
 */
#ifndef TSR_STUDY_NAMES_H
#define TSR_STUDY_NAMES_H

#include "experiments/study/base/yaml.h"

struct tsr_name {
    const struct tsr_yaml_node *map; /* whose key it is; NULL: an anchor */
    const char *text;                /* borrowed; NULL: a free slot */
    struct tsr_yaml_node *node;      /* of an anchor */
    size_t item;                     /* of a key: its place in the mapping */
    bool is_merged;                  /* it came with a merge: a key of its own replaces it */
};

/* Begin with {0}. */
struct tsr_names {
    struct tsr_name *slots;
    size_t n_slots, n; /* n_slots: a power of two */
};

/* NULL: there is none. Valid until the next put. */
const struct tsr_name *tsr__name_find(const struct tsr_names *names,
                                      const struct tsr_yaml_node *map, const char *text);
/* The name, made if it is not there; *is_new: it was not. NULL when out of memory. */
struct tsr_name *tsr__name_put(struct tsr_names *names, const struct tsr_yaml_node *map,
                               const char *text, bool *is_new);
void tsr__names_fini(struct tsr_names *names);

#endif
