/* measured.h: a run that was profiled (`tessera run --profile --out RUN`), beside simulations. */
#ifndef TSR_CLI_MEASURED_H
#define TSR_CLI_MEASURED_H

#include "experiments/study/job/result.h"

/* The row of RUN/measured/summary.json; its data files are copied to `out` (may be NULL). Errors:
 * TSR_ECONFIG when the folder has no profile. */
tsr_status tsr_measured_load(const char *run, const char *out, struct tsr_row *row) TSR_MUST_USE;

#endif
