/* study.h: studies of training strategies, for programs in C: what `tessera compare`, `explain`,
 * `overlap`, `diff`, `plan`, `validate`, `goodput`, `jobs` and `collectives` compute, as structs.
 * This is the one header to include; what it includes are the results.
 *
 *     struct tsr_study_request request = {.path = "experiment.yaml"};
 *     struct tsr_study *study;
 *     struct tsr_comparison rows;
 *     if (tsr_study_open(&request, &study) != TSR_OK)
 *         fprintf(stderr, "%s\n", tsr_error_text());
 *     ...
 *     if (tsr_study_compare(study, &(struct tsr_compare_options){.jobs = 2}, &rows) == TSR_OK) ...
 *
 * Units: names ending in _s are seconds; sizes are bytes; rates are per second; shares are 0 to 1.
 * What is not known is negative where a member says so (mfu, context_bytes, fits), else 0.
 *
 * Errors: functions return a tsr_status; tsr_error_text() then is one line, for people. TSR_ECONFIG
 * is a mistake in what was given, with the place ("experiment.yaml:12:5: ...", "<text>:12:5: ...",
 * "--set batch=x: ..."); TSR_EOOM: a strategy does not fit; TSR_EIO, TSR_ENOMEM, TSR_EBACKEND: the
 * machine failed; TSR_EDEFECT: we did. After a failure the result of a call needs no _fini.
 *
 * Ownership: a result owns what it points to, until its _fini, unless its type says that texts
 * belong to the study, which then is closed last. What a request points to is borrowed until the
 * study is closed.
 *
 * Processes: work is done in child processes, `jobs` at a time (0: one); stdio buffers are flushed
 * before. Nothing is printed; see tsr_listen(). No signal is handled unless tsr_interrupt_handle()
 * was called. Not to be used from several threads at a time.
 *
 * What collectives of some sizes take is tsr_collectives_predict(), of a cluster alone.
 */
#ifndef TSR_STUDY_STUDY_H
#define TSR_STUDY_STUDY_H

#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/config/request.h"
#include "experiments/study/diff/diff.h"
#include "experiments/study/explain/explain.h"
#include "experiments/study/goodput/collectives.h"
#include "experiments/study/goodput/goodput_month.h"
#include "experiments/study/goodput/tenants.h"
#include "experiments/study/job/result.h"
#include "experiments/study/overlap/overlap.h"
#include "experiments/study/plan/plan_result.h"
#include "experiments/study/validate/validation.h"

/* ---- an experiment ------------------------------------------------------------------------- */

struct tsr_study;

/* Reads the experiment, applies the sets, expands sweeps, keeps the strategies that are asked for.
 * On failure *out is NULL. */
tsr_status tsr_study_open(const struct tsr_study_request *request,
                          struct tsr_study **out) TSR_MUST_USE;
/* NULL is allowed. */
void tsr_study_close(struct tsr_study *study);

/* The strategies, in the order of the file. Names belong to the study. */
size_t tsr_study_n_strategies(const struct tsr_study *study);
const char *tsr_study_strategy(const struct tsr_study *study, size_t i);

/* The complete configuration as YAML, which reads back as the same strategies. *out is malloc()ed.
 */
tsr_status tsr_study_print(struct tsr_study *study, char **out) TSR_MUST_USE;

/* Resolves every strategy and builds it once, so that all mistakes are found before anything is
 * simulated; what needs it does it by itself. Then tsr_study_info() says what the first strategy's
 * names stand for; NULL before. */
tsr_status tsr_study_check(struct tsr_study *study) TSR_MUST_USE;
const struct tsr_study_info *tsr_study_info(const struct tsr_study *study);

/* ---- all strategies ------------------------------------------------------------------------ */

struct tsr_compare_options {
    uint64_t jobs;        /* strategies at a time */
    const char *measured; /* the folder of a profiled run, whose row comes last; NULL: none */
};

struct tsr_comparison {
    size_t n;
    struct tsr_row *rows; /* [n] in the order of the strategies */
};

/* Simulates every strategy. One that does not fit has a row all the same, with failure and fits;
 * any other failure is that of the call. With request.out the files of each strategy are written
 * there. */
tsr_status tsr_study_compare(struct tsr_study *study, const struct tsr_compare_options *options,
                             struct tsr_comparison *out) TSR_MUST_USE;
void tsr_comparison_fini(struct tsr_comparison *comparison);
/* Writes the tables and pictures of a comparison to request.out. */
tsr_status tsr_study_write(const struct tsr_study *study,
                           const struct tsr_comparison *comparison) TSR_MUST_USE;

/* Each strategy as what makes PyTorch do it, a file in the folder `dir`, with what `comparison` has
 * predicted: format "torch" (Python), "torchtitan" (its TOML) or "accelerate" (its YAML). */
tsr_status tsr_study_code(const struct tsr_study *study, const struct tsr_comparison *comparison,
                          const char *format, const char *dir) TSR_MUST_USE;
/* Before work is done for it: is there such a format, and can the folder be made and written to?
 * Errors: TSR_ECONFIG. */
tsr_status tsr_code_prepare(const char *format, const char *dir) TSR_MUST_USE;

/* Simulates the jobs that share a cluster (key `jobs` of the experiment): each alone, then all at
 * once.
 */
tsr_status tsr_study_jobs(struct tsr_study *study, struct tsr_tenants *out) TSR_MUST_USE;

/* ---- one strategy -------------------------------------------------------------------------- */
/* Of a study with a single strategy: the file has one, or request.strategy names it. Else
 * TSR_ECONFIG. */

struct tsr_reason_options {
    uint64_t jobs;   /* what-ifs at a time */
    bool no_what_if; /* only what is */
    bool deep;       /* explain: pairs and triples of what-ifs as well */
    bool time;       /* explain: simulate single what-ifs, too */
    bool has_rank;   /* overlap: show `rank` and not the slowest one */
    uint32_t rank;
};

/* Why memory peaks, and what would lower it. Needs no cluster unless `time` is asked for. */
tsr_status tsr_study_explain(struct tsr_study *study, const struct tsr_reason_options *options,
                             struct tsr_explanation *out) TSR_MUST_USE;

/* Which collectives of the steady step are exposed, and what would hide them. */
tsr_status tsr_study_overlap(struct tsr_study *study, const struct tsr_reason_options *options,
                             struct tsr_overlap_result *out) TSR_MUST_USE;

/* What a month is worth with failures. The study is to be opened with the set TSR_GOODPUT_PHASES,
 * or with phases that have a save. Texts belong to the study. */
tsr_status tsr_study_goodput(struct tsr_study *study, struct tsr_month *out) TSR_MUST_USE;

/* ---- two runs ------------------------------------------------------------------------------ */

/* Where the memory and the exposed communication of two runs part. Each is a strategy of a request,
 * or what its path names besides: "FILE:STRATEGY", a folder that compare wrote, its memory.csv, a
 * recording of PyTorch. */
tsr_status tsr_study_diff(const struct tsr_study_request *a, const struct tsr_study_request *b,
                          struct tsr_diff *out) TSR_MUST_USE;

/* ---- searches ------------------------------------------------------------------------------ */

/* The fastest settings that fit, and the Pareto front of time and memory. Keys `plan` of the
 * experiment say what is tried; sweeps are left out. That nothing fits is TSR_EOOM. With
 * request.out files are left there. On failure *out is NULL. */
tsr_status tsr_study_plan(struct tsr_study *study, const struct tsr_plan_options *options,
                          struct tsr_plan **out) TSR_MUST_USE;
/* How many were found, for tsr_plan_row_of(). */
size_t tsr_plan_n(const struct tsr_plan *plan);
void tsr_plan_counts_of(const struct tsr_plan *plan, size_t *space, struct tsr_plan_counts *out);
/* What was found as tsr_study_code() writes it: STRATEGY_1 is the fastest. */
tsr_status tsr_plan_code(const struct tsr_plan *plan, const char *format,
                         const char *dir) TSR_MUST_USE;
/* Writes an experiment file with the strategy of the search and, named STRATEGY-K, the k-th that
 * was found (from 0; K: k + 1). Errors: TSR_EIO, TSR_ENOMEM. */
tsr_status tsr_plan_experiment(const struct tsr_plan *plan, size_t k,
                               const char *path) TSR_MUST_USE;
void tsr_plan_free(struct tsr_plan *plan); /* NULL is allowed */

/* The largest batch, sequence or number of layers that fits: *plan is what it was found with, to be
 * freed. On failure it is NULL. */
tsr_status tsr_study_largest(struct tsr_study *study, const struct tsr_plan_options *options,
                             enum tsr_plan_size size, struct tsr_plan **plan,
                             struct tsr_plan_largest *out) TSR_MUST_USE;

/* ---- published tables ---------------------------------------------------------------------- */

struct tsr_validate_options {
    const char *table;      /* a CSV file of one of the known kinds */
    const char *conditions; /* what it does not say of its runs; NULL: the file that is installed */
    const char *const *sets; /* [n_sets] over every row's settings */
    size_t n_sets;
    uint64_t jobs;   /* rows at a time */
    const char *out; /* a folder to check before the work; NULL: none */
    bool strict;     /* a cell that cannot be read is an error, not a row that is not modelled */
};

/* Predicts every row of a table. *out is freed by tsr_study_validation_free(); on failure it is
 * NULL. */
tsr_status tsr_study_validate(const struct tsr_validate_options *options,
                              struct tsr_validation **out) TSR_MUST_USE;
void tsr_study_validation_free(struct tsr_validation *validation);

#endif
