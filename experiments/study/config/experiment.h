/* experiment.h: an experiment file with its strategies, sweeps expanded; and strategies with
 * some keys changed. */
#ifndef TSR_STUDY_EXPERIMENT_H
#define TSR_STUDY_EXPERIMENT_H

#include <stdio.h>

#include "experiments/study/config/request.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/config/stack.h"

/* What messages and files call an experiment that was given as a text. */
#define TSR_TEXT_NAME "<text>"

struct tsr_strategy {
    const char *name; /* "fsdp@batch=2" */
    const char *base; /* "fsdp": as written in the file */
    const struct tsr_yaml_node
        *at;                   /* the strategy in the file; the whole file without `strategies` */
    const char *const *picked; /* [n_picked] "batch=2": what `sweeps` gave it, as --set takes it */
    size_t n_picked;
    struct tsr_settings settings;
};

struct tsr_kernel_store;

struct tsr_experiment {
    struct tsr_doc doc;
    struct tsr_kernel_store *kernels; /* measured tables of the cards of its jobs; owned */
    const char *path, *title;         /* in the arena of `doc` */
    const char *given; /* likewise: the sets that change jobs, "batch=2, wrap=root"; NULL: none */
    struct tsr_settings top;  /* what strategies start from */
    bool has_sweeps;          /* in the file itself, not only by a set */
    struct tsr_stacks stacks; /* that top and strategies rest on */
    size_t n;
    struct tsr_strategy *strategies;
    const struct tsr_measured_classes *measured; /* what was measured (report/validated.h), lives as
                                                    long; NULL: it was not asked for */
};

/* Reads path or text, overrides by the sets, validates, expands; `only` and `strategy` are left to
 * the caller. Errors: TSR_ECONFIG, one line. On failure *out needs no tsr_experiment_fini(). */
tsr_status tsr_experiment_open(const struct tsr_study_request *request,
                               struct tsr_experiment *out) TSR_MUST_USE;
/* The same of a file. */
tsr_status tsr_experiment_load(const char *path, const char *const *sets, size_t n_sets,
                               struct tsr_experiment *out) TSR_MUST_USE;
void tsr_experiment_fini(struct tsr_experiment *experiment);

/* Keeps the strategies that a comma-separated list names (a whole name, or the name before '@').
 * Errors: TSR_ECONFIG for a name that there is not. */
tsr_status tsr_experiment_only(struct tsr_experiment *experiment, const char *names) TSR_MUST_USE;
/* The one strategy of this name. */
tsr_status tsr_experiment_find(const struct tsr_experiment *experiment, const char *name,
                               const struct tsr_strategy **out) TSR_MUST_USE;

/* The place where a value of a strategy was given. A file without `strategies` is one strategy: its
 * keys are the strategy's own. */
enum tsr_setting_source {
    TSR_FROM_DEFAULT,
    TSR_FROM_STACK,
    TSR_FROM_HEAD,     /* the keys above `strategies` */
    TSR_FROM_HEAD_SET, /* the same by --set */
    TSR_FROM_STRATEGY,
    TSR_FROM_SET,  /* --set strategies.NAME.KEY=VALUE */
    TSR_FROM_SWEEP /* a value of `sweeps`, or a change that a study tries */
};
enum tsr_setting_source tsr_setting_source(const struct tsr_experiment *experiment,
                                           const struct tsr_strategy *strategy, size_t key);

/* Bytes of a strategy's name, including one that `sweeps` composed. */
enum { TSR_MAX_STRATEGY_NAME = 95 };

/* Multiplies the strategies by `sweeps`. */
tsr_status tsr_experiment_sweep(struct tsr_experiment *experiment,
                                const struct tsr_yaml_node *sweeps) TSR_MUST_USE;

/* The complete configuration as YAML that reads back as the same strategies, also in another
 * folder: relative paths become absolute. The result is malloc()ed. */
tsr_status tsr_experiment_print(struct tsr_experiment *experiment, char **out) TSR_MUST_USE;

/* ---- variants -------------------------------------------------------------------------------- */

/* A strategy with some keys set to other values: what searches and what-ifs try. */

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
