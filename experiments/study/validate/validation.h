/* validation.h: predictions beside published measurements, and how far they are from each other. */
#ifndef TSR_STUDY_VALIDATION_H
#define TSR_STUDY_VALIDATION_H

#include <stdio.h>

#include "engine/program/base.h"
#include "experiments/study/job/result.h"

struct tsr_table;
struct tsr_rules;
struct tsr_csv_row;

enum tsr_point_status { TSR_POINT_PREDICTED, TSR_POINT_NOT_MODELLED };

/* One measured figure of a row, and its prediction. Texts belong to the validation. */
struct tsr_point {
    const char *row_id, *quantity, *unit, *reason;
    enum tsr_point_status status;
    const struct tsr_csv_row *row;
    char gpu[64];                    /* "": not modelled */
    struct tsr_measured_class class; /* api "": not modelled, or no training */
    uint32_t gpus;  /* of the prediction that is shown: of a range, the worse end */
    bool duplicate; /* the table has the measurement twice: not counted */
    bool counts;    /* in the quantiles: measured, and no duplicate */
    bool beside;    /* not the row's main figure */
    bool small;     /* a collective that latency decides: a quantity of its own */
    bool has_measured;
    double measured, predicted;
    double step_s, compute_s, comm_s, exposed_s; /* as of an outcome; 0: not simulated */
    double error; /* |predicted - measured| / measured; 1 if it is not modelled */
    double mfu_measured, mfu_predicted; /* 0: unknown */
};

/* What became of a table: owns its points and their texts; table, conditions and sets are borrowed
 * and outlive it. */
struct tsr_validation {
    struct tsr_arena arena;
    const struct tsr_table *table;
    const struct tsr_rules *conditions;
    const char *const *sets;
    size_t n_sets;
    size_t n_points, n_simulated;
    struct tsr_point *points;
};
void tsr_validation_fini(struct tsr_validation *validation);

/* ---- statistics -------------------------------------------------------------------------- */

struct tsr_error_stats {
    size_t n;            /* rows that count */
    size_t not_modelled; /* of them */
    double mean, median, p90, max,
        bias; /* of errors; bias: median of predicted over measured - 1 */
};

/* A set of points by what they have in common. NULL and 0: any. */
struct tsr_point_class {
    const char *quantity, *gpu;
    uint32_t min_gpus, max_gpus;
};

/* Errors: TSR_ENOMEM. */
tsr_status tsr_error_stats_of(const struct tsr_validation *validation,
                              const struct tsr_point_class *which,
                              struct tsr_error_stats *out) TSR_MUST_USE;
/* Spearman's rank correlation of measured and predicted MFU; NAN below 3 points. */
tsr_status tsr_rank_correlation(const struct tsr_validation *validation,
                                const struct tsr_point_class *which, double *out) TSR_MUST_USE;
/* ---- reports ----------------------------------------------------------------------------- */

tsr_status tsr_validation_print(FILE *out, const struct tsr_validation *validation) TSR_MUST_USE;
tsr_status tsr_validation_json(FILE *out, const struct tsr_validation *validation) TSR_MUST_USE;
tsr_status tsr_validation_csv(FILE *out, const struct tsr_validation *validation) TSR_MUST_USE;
/* DIR/validate.csv, summary.json, and the picture validate.svg and .png. */
tsr_status tsr_validation_write(const char *dir,
                                const struct tsr_validation *validation) TSR_MUST_USE;

#endif
