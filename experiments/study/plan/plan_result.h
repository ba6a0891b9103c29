/* plan_result.h: what a search is asked for, and what it finds: plain data for its users. */
#ifndef TSR_STUDY_PLAN_RESULT_H
#define TSR_STUDY_PLAN_RESULT_H

#include "experiments/study/job/result.h"

struct tsr_plan_options {
    const char
        *strategy;   /* whose settings are changed; NULL: the first that shards, else the first */
    uint64_t jobs;   /* configurations at a time, each in a process of its own; at least 1 */
    uint64_t top;    /* how many of the fastest; the Pareto front comes besides */
    bool exhaustive; /* emit and simulate everything; finds the same */
    bool resume;     /* go on with what an interrupted search left in `dir` */
    const char *dir; /* of the results; NULL: none, nothing is left for --resume */
};

/* What a report for people shows besides. */
struct tsr_plan_view {
    bool commands; /* of every row the command that simulates it again */
    uint32_t gpus; /* of this machine, for `tessera run --on cuda`; 0: that is not built */
};

enum { TSR_PLAN_WORDS = 512, TSR_PLAN_MAX_AXES = 16 };

/* A configuration that fits, of those that are shown. Texts of `sets` belong to the plan. */
struct tsr_plan_row {
    char settings[TSR_PLAN_WORDS];       /* "batch=4, checkpoint.every=full"; "as in the file" */
    size_t n_sets;                       /* what is set over the strategy */
    const char *sets[TSR_PLAN_MAX_AXES]; /* "strategies.fsdp.batch=4" */
    double step_s;                       /* seconds */
    double tokens_per_s;                 /* of one GPU */
    double mfu;                          /* share of the peak; negative: unknown */
    double exposed_s;                    /* of communication, in the step */
    uint64_t allocated;                  /* bytes at the peak */
    uint64_t needed; /* bytes that the card must have: reserved, context, libraries, NCCL */
    int fits;        /* enum tsr_fits: TSR_FITS_YES or TSR_FITS_RETRIES */
    bool front;      /* nothing else that fits and has no mark is as fast and as small */
    unsigned needs;  /* set of 1 << enum tsr_need (config/needs.h): what the strategy lacks */
    bool is_marked;  /* some of that was not asked for: ranked behind those without a mark */
    size_t alike;    /* other configurations with the same figures */
    const char *time_error; /* tsr_time_error_word() */
    double unknown_share; /* of the step, in kernels of a trace that the cost model does not know */
};

struct tsr_plan;
/* The k-th of those that are shown: those without a mark, the fastest first, then the marked. */
void tsr_plan_row_of(const struct tsr_plan *plan, size_t k, struct tsr_plan_row *out);

/* What became of all configurations. */
struct tsr_plan_counts {
    size_t impossible, too_large, beaten, emitted, distinct, fitting, simulated;
    size_t repeats;       /* combinations that are others again: not counted as configurations */
    size_t taken;         /* emitted or simulated by the search that this one resumes */
    size_t left;          /* of an interrupted search: nothing is known of them yet */
    int interrupted;      /* by this signal; 0: the search ended by itself */
    double emit_s, sim_s; /* wall time of this machine */
};

enum tsr_plan_size { TSR_PLAN_BATCH, TSR_PLAN_SEQ, TSR_PLAN_LAYERS };

/* The largest value of a size that fits. It is a boundary: the next one does not fit. */
struct tsr_plan_probe {
    uint64_t value;
    bool known; /* emitted to its end, so that its need is known */
    bool fits;
    struct tsr_row row; /* memory only: nothing is simulated */
};

enum { TSR_PLAN_MAX_PROBES = 64, TSR_PLAN_EVEN = 128 };

/* The largest value of a size that fits, found by doubling, then halving: probes[best] fits, and
 * probes[next], one unit above, does not. */
struct tsr_plan_largest {
    const char *what;        /* "batch", "seq" or "layers" */
    const char *key, *words; /* "model.layers", "number of layers" */
    uint64_t unit;           /* values are multiples of it */
    uint64_t budget;         /* bytes */
    uint64_t even; /* seq: the largest multiple of TSR_PLAN_EVEN that fits; 0: none, or the
                      largest is one */
    size_t n, best,
        next; /* indices of probes; next: SIZE_MAX where `best` is all that is allowed */
    struct tsr_plan_probe probes[TSR_PLAN_MAX_PROBES]; /* in the order of the search */
};

#endif
