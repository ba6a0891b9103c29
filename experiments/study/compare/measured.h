/* measured.h: runs of `tessera run --profile` next to simulations (`compare --measured DIR`). */
#ifndef TSR_STUDY_MEASURED_H
#define TSR_STUDY_MEASURED_H

#include "experiments/study/simulate/open.h"

/* Reads the row of a run from its folder `run` (the --out of `run --profile`) and copies the files
 * behind it into `out` (NULL: nowhere). */
tsr_status tsr_measured_load(const char *run, const char *out, struct tsr_row *row) TSR_MUST_USE;

/* Emits the step program that a run of the measured strategy executes today, compares its hash with
 * the measured one, and tells the listener whether they are equal. A run's program has a few
 * instructions more than the simulated one: loss and gradient norm go to the host. Without a
 * strategy of that name in the study it tells nothing. */
tsr_status tsr_measured_check(const struct tsr_study *study,
                              const struct tsr_row *row) TSR_MUST_USE;

#endif
