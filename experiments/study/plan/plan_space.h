/* plan_space.h: the configurations that `tessera plan` searches: every combination of the values of
 * some keys, on top of one strategy of the experiment file.
 *
 * A configuration is what the program makes of the file with some --set more, so that the command
 * in the report repeats it exactly.
 */
#ifndef TSR_STUDY_PLAN_SPACE_H
#define TSR_STUDY_PLAN_SPACE_H

#include "experiments/study/job/job.h"
#include "experiments/study/plan/plan_result.h"

enum { TSR_PLAN_MAX_POINTS = 16384 };

struct tsr_plan_value {
    const char *text;  /* YAML: "bf16", "[2, 4]" */
    const char *set;   /* "strategies.fsdp.precision.reduce=bf16" */
    bool is_base;      /* what the strategy has anyway: nothing to set */
    uint64_t size;     /* of batch and seq */
    size_t rank;       /* by size: 0 is the smallest of the axis */
    bool was_possible; /* some configuration with it could be built */
};

struct tsr_plan_axis {
    const char *key;
    const struct tsr_yaml_node *at; /* the list in the file; NULL: a default */
    bool is_size;                   /* batch, seq: more of it never needs less memory */
    size_t n;
    struct tsr_plan_value *values;
};

struct tsr_plan_space {
    bool is_default;
    size_t n_axes, n; /* n: combinations */
    struct tsr_plan_axis axes[TSR_PLAN_MAX_AXES];
};

/* The space of `plan.space`, or the default one for the strategy of `job`. Memory comes from the
 * experiment. Errors: TSR_ECONFIG with the place. */
tsr_status tsr_plan_space_read(struct tsr_experiment *experiment, const struct tsr_job *job,
                               struct tsr_plan_space *out) TSR_MUST_USE;
/* plan_default.c: the documented default space. */
tsr_status tsr_plan_space_default(struct tsr_experiment *experiment, const struct tsr_job *job,
                                  struct tsr_plan_space *out) TSR_MUST_USE;
/* Adds an axis of `n` values given as YAML; finds out which are those of the strategy. */
tsr_status tsr_plan_add_axis(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                             const char *key, const char *const *texts, size_t n,
                             struct tsr_plan_space *out) TSR_MUST_USE;
/* "strategies.fsdp.batch=4", or "batch=4" where the strategy has no value of its own: what --set
 * needs. NULL when out of memory. */
const char *tsr_plan_set(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                         const char *key, const char *text);

/* Which value of axis `k` combination `i` has; the last axis changes fastest. */
size_t tsr_plan_pick(const struct tsr_plan_space *space, size_t i, size_t k);
/* The combination that differs from `i` in axis `k` alone, with that value. */
size_t tsr_plan_with(const struct tsr_plan_space *space, size_t i, size_t k, size_t value);
/* The --set of combination `i`, at most TSR_PLAN_MAX_AXES; returns how many. */
size_t tsr_plan_sets(const struct tsr_plan_space *space, size_t i, const char **out);
/* "batch=4, checkpoint.every=full"; "as in the file" without changes. */
void tsr_plan_words(const struct tsr_plan_space *space, size_t i, char *out, size_t size);

#endif
