/* simulate.h: one strategy from its settings to the row of the table and its files; or, without
 * a simulation, to its memory. */
#ifndef TSR_STUDY_SIMULATE_H
#define TSR_STUDY_SIMULATE_H

#include "experiments/study/job/emit.h"
#include "experiments/study/job/result.h"
#include "sim/cluster/cluster.h"

/* Simulates a strategy and fills its row. With `dir`, its files are written to dir/STRATEGY. A
 * failure is also told by row->failure and row->failure_status. */
tsr_status tsr_simulate(const struct tsr_job *job, const struct tsr_study_info *info,
                        const char *dir, struct tsr_row *row) TSR_MUST_USE;

/* Looks at the programs and times of one rank while they are there. */
typedef tsr_status (*tsr_look_fn)(void *user, const struct tsr_detail *detail);
enum { TSR_SLOWEST_RANK = UINT32_MAX };
/* Simulates what was emitted and fills the times of a row that was begun; they are those of the
 * slowest rank. `look` (may be NULL) is then called once, with the programs and times of `rank`, or
 * of the slowest rank. Errors: TSR_ECONFIG if the job has no such rank. */
tsr_status tsr_simulate_times(const struct tsr_job *job, const struct tsr_emission *emission,
                              struct tsr_row *row, uint32_t rank, tsr_look_fn look,
                              void *user) TSR_MUST_USE;

/* Fills row->failure from the last error. */
void tsr_row_fail(struct tsr_row *row, tsr_status status);
/* Name and words of the strategy. */
void tsr_row_begin(struct tsr_row *row, const struct tsr_job *job);

/* ---- memory alone ---------------------------------------------------------------------------- */

/* Measured by emitting a strategy and replaying its programs: this is what searches use. */

/* Fills the memory fields of a row (peaks in bytes, largest over the rank classes, also by
 * section; what is alive at the peak; host memory; context, libraries and NCCL; fits) from programs
 * that were emitted. */
tsr_status tsr_peak_of(const struct tsr_job *job, const struct tsr_emission *emission,
                       struct tsr_row *row) TSR_MUST_USE;

/* Emits a strategy and fills a row with its memory. A failure is also told by row->failure and
 * row->failure_status (TSR_EOOM: the allocator's limit was reached). */
tsr_status tsr_peak_measure(const struct tsr_job *job, struct tsr_row *row) TSR_MUST_USE;

#endif
