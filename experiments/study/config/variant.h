/* variant.h: a strategy with some keys set to other values: what searches and what-ifs try. */
#ifndef TSR_STUDY_VARIANT_H
#define TSR_STUDY_VARIANT_H

#include "experiments/study/config/experiment.h"

enum { TSR_MAX_CHANGES = 8 };

/* Keys and their values as they would be written after --set; texts belong to the caller. */
struct tsr_variant {
    size_t n;
    struct {
        const char *key;   /* "precision.reduce" */
        const char *value; /* YAML: "bf16", "[2, 4]" */
    } set[TSR_MAX_CHANGES];
};

/* Copies `from` to *out and applies the changes; the name becomes "from@key=value". Memory comes
 * from the experiment's arena. Errors: TSR_ECONFIG (unknown key or value not allowed). */
tsr_status tsr_variant_apply(struct tsr_experiment *experiment, const struct tsr_strategy *from,
                             const struct tsr_variant *variant,
                             struct tsr_strategy *out) TSR_MUST_USE;

#endif
