/* overlap.h: the report of `tessera overlap`: from a table of collectives (report_overlap.h) to
 * JSON, and from that to text, so that both formats say the same.
 */
#ifndef TSR_CLI_OVERLAP_H
#define TSR_CLI_OVERLAP_H

#include <jansson.h>
#include <stdio.h>

#include "experiments/study/detail/report_overlap.h"
#include "experiments/study/job/job.h"

/* The overlap of a run: the folder of a strategy, or a folder that has some (`strategy` names one
 * of them; NULL: there is one). Errors: TSR_ECONFIG. On failure nothing is to be freed. */
tsr_status tsr_overlap_load(const char *folder, const char *strategy,
                            struct tsr_overlap_table *out) TSR_MUST_USE;

/* Sums, and every collective. `run` is what the user named. NULL when out of memory. */
json_t *tsr_overlap_json(const char *run, const struct tsr_overlap_table *table);

/* Simulates the strategy with each change that may hide communication; `row` is the strategy's own.
 * The changes are ordered by the time per token that they save. Errors: of the machine only. */
tsr_status tsr_overlap_what_if(struct tsr_experiment *experiment, const struct tsr_job *job,
                               const struct tsr_row *row, uint64_t jobs, json_t **out) TSR_MUST_USE;

/* `top`: collectives and changes at most. */
void tsr_overlap_print(FILE *out, const json_t *report, size_t top);

#endif
