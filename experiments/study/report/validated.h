/* validated.h: how far the simulator was off where somebody has measured: the error of the class of
 * configurations that is nearest to a study, beside every comparison, and in what the study
 * differs.
 *
 * A class is an API, a type of GPU, a stack, and whether a job is larger than one node. The figures
 * are in validation/errors.json, which experiments/validation/errors.py makes out of `tessera
 * validate`; it is looked for like models are: beside the experiment and above it, in the installed
 * data, in the source tree.
 */
#ifndef TSR_STUDY_VALIDATED_H
#define TSR_STUDY_VALIDATED_H

#include <jansson.h>
#include <stdio.h>

#include "experiments/study/job/job.h"
#include "experiments/study/job/result.h"

/* Rows from which on an error is claimed; below it is only reported. */
enum { TSR_VALIDATED_CLAIM = 10 };

/* Where the times of a job's kernels and collectives come from, in one line without an end. *out
 * belongs to `arena`. Errors: TSR_ENOMEM. */
tsr_status tsr_time_sources(const struct tsr_job *job, struct tsr_arena *arena,
                            const char **out) TSR_MUST_USE;

/* For the classes of `jobs` (API, card, one node or more) in the order of their first job, each
 * once, the nearest one that was measured. Errors: TSR_ECONFIG (a file that is no such file, with
 * line and key; a stack that there is not), TSR_ENOMEM. No file: nothing was measured. *out belongs
 * to `arena`. */
tsr_status tsr_validated_of(const struct tsr_job *jobs, size_t n, struct tsr_arena *arena,
                            const struct tsr_validated **out, size_t *n_out) TSR_MUST_USE;

/* ---- beside a comparison --------------------------------------------------------------------- */

/* One line on the sources of times, one for each class of configuration in the study. */
void tsr_put_validated(FILE *out, const struct tsr_study_info *info);
/* [{"api", "gpu", "nodes": "one|many", "error": {"rows", "median", "p90", "max", "source",
 * "claimed"} or null, "nearest": {"api", "gpu", "nodes", "stack", "models", "gpus": [least, most],
 * "error"} or null, "differs": [...], "some_differ": [...], "text": the sentence of
 * tsr_put_validated()}], one for each class in the study;
 * "error" is that of the nearest class if nothing differs. NULL when out of memory. */
json_t *tsr_validated_json(const struct tsr_study_info *info);

#endif
