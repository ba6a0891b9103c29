/* validate.h: published tables against the simulator (`tessera validate`).
 *
 * A table is a CSV file of one of the known kinds (validate_table.c). What it does not say about a
 * run is in experiments/validation/conditions.yaml (validate_conditions.c): rules that turn the
 * columns of a row into keys of an experiment. Each row then goes the way of every experiment
 * (validate_run.c), and what comes out is set against what was measured (validate_points.c).
 */
#ifndef TSR_STUDY_VALIDATE_H
#define TSR_STUDY_VALIDATE_H

#include <stdio.h>

#include "experiments/study/base/csv.h"
#include "experiments/study/config/experiment.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/result.h"
#include "experiments/study/validate/validation.h"

/* ---- tables ------------------------------------------------------------------------------ */

/* What a column with a measured figure says. */
enum tsr_figure {
    TSR_FIGURE_RATE,     /* tokens per second and GPU */
    TSR_FIGURE_RATE_ALL, /* tokens per second of all GPUs */
    TSR_FIGURE_STEP,     /* seconds per step */
    TSR_FIGURE_TFLOPS,   /* executed by matrix products and attention, per second and GPU */
    TSR_FIGURE_RESERVED, /* peak memory that the allocator reserves */
    TSR_FIGURE_SECONDS,  /* of a collective */
    TSR_FIGURE_BUSBW     /* of a collective, as nccl-tests defines it */
};

struct tsr_measured_column {
    const char *column;
    enum tsr_figure figure;
    const char *quantity, *unit; /* of the prediction and the figure */
    double scale;                /* the column times this is the figure in that unit */
    bool beside;                 /* also of rows that have a figure before this one in the list */
};

struct tsr_table_kind {
    const char *name;
    const char *const *columns; /* all that are known; NULL-terminated */
    size_t n_needed;            /* the first ones: every table of the kind has them */
    const struct tsr_measured_column *measured; /* ends with column NULL */
    const char *gpus;                           /* column with a number of GPUs, or a range */
};

struct tsr_table {
    struct tsr_csv csv;
    const struct tsr_table_kind *kind;
    bool strict; /* a cell that cannot be read is an error of the table, not only of its row */
};

/* Reads a table and finds its kind. Columns that no table of the kind has are not read. Errors:
 * TSR_ECONFIG with file, line, column (none of the known kinds, a column that is nearly a known
 * one; strict: any unknown column, and every cell that holds no value of its column). On failure
 * *out needs no tsr_table_close(). */
tsr_status tsr_table_open(const char *path, bool strict, struct tsr_table *out) TSR_MUST_USE;
void tsr_table_close(struct tsr_table *table);
/* The kind of this name; NULL if there is none. */
const struct tsr_table_kind *tsr_table_kind_find(const char *name);

/* A column without which the row cannot be predicted, and that is empty there; NULL: none. */
const char *tsr_table_missing(const struct tsr_table *table, const struct tsr_csv_row *row);

/* Whether column number i is one that tables of this kind have. */
bool tsr_table_knows(const struct tsr_table *table, size_t i);
/* The first cell of a row, but for measured figures, that holds no value of its column: TSR_ECONFIG
 * with file, line, column, what was found and what is allowed. */
tsr_status tsr_table_check_row(const struct tsr_table *table,
                               const struct tsr_csv_row *row) TSR_MUST_USE;
/* The last failure without file and line: "column tp: found "two"; allowed: ...". */
const char *tsr_table_reason(const struct tsr_table *table);

/* GPUs of a row: [0] the fewest, [1] the most ("128-512"); equal for a plain number. Errors:
 * TSR_ECONFIG with file, line and column. */
tsr_status tsr_table_gpus(const struct tsr_table *table, const struct tsr_csv_row *row,
                          uint32_t out[2]) TSR_MUST_USE;

/* ---- conditions -------------------------------------------------------------------------- */

/* A row as an experiment. */
struct tsr_recipe {
    size_t n_sets;
    const char **sets;     /* "key=value", for tsr_experiment_load() */
    const char *model;     /* text of a config.json; NULL: a set names the model */
    const char *refuse;    /* why the row is not modelled; NULL: it is */
    uint64_t accumulation; /* micro-batches, of a key that is not among the sets */
    /* The keys "collective.*": the row is one call; NULL kind: it is training. */
    struct {
        const char *kind;
        uint64_t gpus, nodes, bytes;
    } collective;
};

struct tsr_rules {
    struct tsr_doc doc;
    char path[1024];
};

/* Finds (beside the table, installed, or in the source tree) and checks the file. `path` NULL: that
 * search; else this file. Errors: TSR_ECONFIG with file, line, column. */
tsr_status tsr_rules_open(const char *path, struct tsr_rules *out) TSR_MUST_USE;
void tsr_rules_close(struct tsr_rules *conditions);
/* Applies every rule that matches. Texts belong to `arena`. Errors: TSR_ENOMEM, TSR_ECONFIG. */
tsr_status tsr_rules_apply(const struct tsr_rules *conditions, const struct tsr_table *table,
                           const struct tsr_csv_row *row, uint32_t gpus, struct tsr_arena *arena,
                           struct tsr_recipe *out) TSR_MUST_USE;

/* A row that is not modelled, whatever the rules. Errors: TSR_ENOMEM. */
tsr_status tsr_rules_refuse(struct tsr_arena *arena, const char *reason,
                            struct tsr_recipe *out) TSR_MUST_USE;

/* ---- predictions ------------------------------------------------------------------------- */

/* What came out of one simulated recipe. Plain data. */
struct tsr_outcome {
    char failure[256]; /* "": it was simulated */
    char gpu[64];
    struct tsr_measured_class class; /* of training; api "": a collective */
    uint32_t world;
    double step_s;
    double compute_s, comm_s, exposed_s; /* of it: kernels run, collectives run, they alone do */
    double tokens;                       /* per GPU and step */
    double flops, model_flops;           /* per GPU and step */
    double mfu;                          /* negative: unknown */
    double reserved_bytes;
    double seconds, busbw; /* of a collective; busbw: bytes/s */
};

/* Simulates the step of a recipe. Steps of many micro-batches are not simulated whole: from the
 * second on, each adds the same time, so two short steps tell the long one (validate_run.c). `sets`
 * (as --set) come after those of the recipe. */
void tsr_outcome_of(const struct tsr_rules *conditions, const struct tsr_recipe *recipe,
                    const char *const *sets, size_t n_sets, struct tsr_outcome *out);

/* What is wrong with `sets` themselves, whatever the row. Errors: TSR_ECONFIG. */
tsr_status tsr_outcome_check_sets(const char *const *sets, size_t n_sets) TSR_MUST_USE;

/* Predicts every row, `jobs` at a time. Borrows its arguments. On failure nothing is to be freed.
 */
tsr_status tsr_validate(const struct tsr_table *table, const struct tsr_rules *conditions,
                        const char *const *sets, size_t n_sets, uint64_t jobs,
                        struct tsr_validation *out) TSR_MUST_USE;

/* ---- reports ----------------------------------------------------------------------------- */

/* "7b 2048 x 8 x 4, a100_80gb": the cells that tell a point's row from others. */
void tsr_validation_describe(const struct tsr_validation *validation, const struct tsr_point *point,
                             char *out, size_t size);
/* The quantity that is drawn: of the most figures that are predicted; NULL if none is. */
const char *tsr_validation_drawn(const struct tsr_validation *validation);
/* validate_page.c: writes DIR/report.html. */
tsr_status tsr_validation_page(const char *dir,
                               const struct tsr_validation *validation) TSR_MUST_USE;

#endif
