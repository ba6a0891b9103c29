/* overlap.h: which collectives of a step are exposed, why, and what would hide them. */
#ifndef TSR_STUDY_OVERLAP_H
#define TSR_STUDY_OVERLAP_H

#include "experiments/study/detail/report_overlap.h"

struct tsr_job;
struct tsr_experiment;
struct json_t; /* of jansson */

enum { TSR_OVERLAP_SETS = 3 };

/* What a change is besides a setting. */
enum tsr_overlap_effect {
    TSR_OVERLAP_NONE,
    TSR_OVERLAP_NUMBERS, /* other numbers come out of the training */
    TSR_OVERLAP_BATCH,   /* more tokens a step */
    TSR_OVERLAP_IMAGINED /* no setting, but a bound: an infinitely fast host, ... */
};

/* A change of the strategy, simulated. */
struct tsr_overlap_change {
    const char *words; /* "prefetch one group in forward"; static */
    enum tsr_overlap_effect effect;
    size_t n_sets;
    char sets[TSR_OVERLAP_SETS][128]; /* "forward_prefetch=1" */
    bool failed;                      /* it is not possible: failure says why */
    char failure[256];
    double step_s, exposed_s; /* seconds; of exposed communication */
    double gain; /* of tokens per second, as a share of those of the strategy; -1: unknown */
    int fits;    /* enum tsr_fits */
};

/* Owns what it points to: tsr_overlap_result_fini(). */
struct tsr_overlap_result {
    struct tsr_overlap_table table; /* every collective, and sums */
    bool has_changes;               /* they were asked for, of a strategy */
    double step_s, exposed_s;       /* the strategy's own, as the changes count them */
    uint64_t tokens_per_rank;       /* of one iteration */
    struct tsr_overlap_change
        *changes; /* [n_changes]: the one that gains most first, failed ones last */
    size_t n_changes;
    char *view; /* the folder that has what report.html shows of the step; NULL: none */
};
void tsr_overlap_result_fini(struct tsr_overlap_result *overlap);

/* The overlap of a run: the folder of a strategy, or a folder that has some (`strategy` names one
 * of them; NULL: there is one). Errors: TSR_ECONFIG. On failure nothing is to be freed. */
tsr_status tsr_overlap_load(const char *folder, const char *strategy,
                            struct tsr_overlap_result *out) TSR_MUST_USE;

/* Simulates the strategy with each change that may hide communication; `row` is the strategy's own.
 * Errors: of the machine only. */
tsr_status tsr_overlap_what_if(struct tsr_experiment *experiment, const struct tsr_job *job,
                               const struct tsr_row *row, uint64_t jobs,
                               struct tsr_overlap_result *out) TSR_MUST_USE;

/* Writes DIR/report.html. `info`: of the experiment; NULL: it is of a run, a folder. */
tsr_status tsr_overlap_page(const char *dir, const char *run, const struct tsr_study_info *info,
                            const struct tsr_overlap_result *overlap) TSR_MUST_USE;

/* All of it as an object. `run` is what the user named. NULL when out of memory. */
struct json_t *tsr_overlap_json(const char *run, const struct tsr_overlap_result *overlap);

#endif
