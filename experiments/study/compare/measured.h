/* measured.h: runs of `tessera run --profile` next to simulations (`compare --measured DIR`). */
#ifndef TSR_STUDY_MEASURED_H
#define TSR_STUDY_MEASURED_H

#include "experiments/study/simulate/open.h"

/* Checks that the run and the simulation of its strategy (of any, if the study lacks that) have the
 * same number of ranks on the same device, so that their times can be compared. Errors: TSR_ECONFIG
 * with both sides and the keys that make them alike. */
tsr_status tsr_measured_is_alike(const struct tsr_study *study, const char *run,
                                 const struct tsr_row *row) TSR_MUST_USE;

/* Reads the row of a run from its folder `run` (the --out of `run --profile`). */
tsr_status tsr_measured_load(const char *run, struct tsr_row *row) TSR_MUST_USE;
/* Copies the files behind the row of a run into the folder `out`. */
tsr_status tsr_measured_copy(const char *run, const struct tsr_row *row,
                             const char *out) TSR_MUST_USE;

/* Emits the step program that a run of the measured strategy executes today, compares its hash with
 * the measured one, and tells the listener whether they are equal. A run's program has a few
 * instructions more than the simulated one: loss and gradient norm go to the host. Without a
 * strategy of that name in the study it tells nothing. */
tsr_status tsr_measured_check(const struct tsr_study *study,
                              const struct tsr_row *row) TSR_MUST_USE;

#endif
