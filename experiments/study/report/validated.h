/* validated.h: how far predicted times were off where they have been measured: the error of the
 * class of configurations that is nearest to a job, or that none is known. tsr_time_error_of()
 * alone decides that, for every table, page and file.
 *
 * A class is an API, a type of GPU, a stack, and whether a job is larger than one node. Its error
 * is that of a job which differs from it in keys; beyond that (tsr_decisive_differences()) a
 * prediction is extrapolated, and no figure stands beside it. The figures are in
 * validation/errors.json, which experiments/validation/errors.py makes out of `tessera validate`;
 * it is looked for like models are: beside the experiment and above it, in the installed data, in
 * the source tree.
 */
#ifndef TSR_STUDY_VALIDATED_H
#define TSR_STUDY_VALIDATED_H

#include <jansson.h>
#include <stdio.h>

#include "experiments/study/job/job.h"
#include "experiments/study/job/result.h"

struct tsr_measured_classes;

/* Rows from which on an error is claimed; below it is only reported. */
enum { TSR_VALIDATED_CLAIM = 10 };

/* Where the times of a job's kernels and collectives come from, in one line without an end. *out
 * belongs to `arena`. Errors: TSR_ENOMEM. */
tsr_status tsr_time_sources(const struct tsr_job *job, struct tsr_arena *arena,
                            const char **out) TSR_MUST_USE;

/* Reads the classes that were measured; `experiment` is the file beside and above which they are
 * looked for. Without a file there are none. The caller frees *out with tsr_measured_close(), after
 * the experiment that borrows it (tsr_experiment.measured). Errors: TSR_ECONFIG (a file that is no
 * such file, with line and key; a stack that there is not), TSR_ENOMEM. */
tsr_status tsr_measured_open(const char *experiment,
                             struct tsr_measured_classes **out) TSR_MUST_USE;
void tsr_measured_close(struct tsr_measured_classes *all); /* may be NULL */

/* Decides what is known of the error of the job's time. Nothing is, if the experiment borrows no
 * classes or the job has no cluster (is_predicted is false then). */
void tsr_time_error_of(const struct tsr_job *job, struct tsr_time_error *out);
/* "measured", "extrapolated, no error known"; "" of what was not predicted. */
const char *tsr_time_error_word(const struct tsr_time_error *e);
/* Returns the class that is nearest, one without rows if there is none. */
const struct tsr_measured_class *tsr_measured_class(const struct tsr_measured_classes *all,
                                                    const struct tsr_time_error *error);

/* Puts the errors into groups for reports, in the order of the first of each; *out belongs to
 * `arena`. Errors: TSR_ENOMEM. */
tsr_status tsr_validated_group(const struct tsr_measured_classes *all,
                               const struct tsr_time_error *errors, size_t n,
                               struct tsr_arena *arena, const struct tsr_validated **out,
                               size_t *n_out) TSR_MUST_USE;
/* Groups the errors of the jobs of one experiment. Errors: TSR_ENOMEM. */
tsr_status tsr_validated_of(const struct tsr_job *jobs, size_t n, struct tsr_arena *arena,
                            const struct tsr_validated **out, size_t *n_out) TSR_MUST_USE;

/* ---- beside a comparison --------------------------------------------------------------------- */

/* Prints to `out` one line on the error of time for each group of strategies in the study. To
 * `notes` (NULL: nowhere) go the sources of times, and the class that was measured nearest to what
 * is extrapolated. */
void tsr_put_validated(FILE *out, FILE *notes, const struct tsr_study_info *info);
/* The line on the error of one row's time; nothing of a row whose time was not predicted. */
void tsr_put_validated_row(FILE *out, const struct tsr_study_info *info, const struct tsr_row *row);
/* [{"api", "gpu", "nodes": "one|many", "time_error": tsr_time_error_word(), "error": {"rows",
 * "median", "p90", "max", "source", "claimed"} or null, "nearest": {"api", "gpu", "nodes", "stack",
 * "models", "gpus": [least, most], "error"} or null, "beyond": [...], "differs": [...],
 * "some_differ": [...], "assumptions": [{"key", "value", "nodes", "slowest_node_takes_longer_by"}],
 * "text": the sentence of tsr_put_validated()}], one for each group; "error" is that of the nearest
 * class if nothing differs, and what is extrapolated has neither. NULL when out of memory. */
json_t *tsr_validated_json(const struct tsr_study_info *info);

#endif
