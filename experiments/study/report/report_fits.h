/* report_fits.h: the verdict of fit.h in words, below a table. Private to the report. */
#ifndef TSR_STUDY_REPORT_FITS_H
#define TSR_STUDY_REPORT_FITS_H

#include <stdio.h>

#include "experiments/study/job/result.h"

/* One line for each verdict among the rows that does not explain itself, with who has it; then an
 * empty one. Nothing if there is none. */
void tsr__put_fits(FILE *out, const struct tsr_row *rows, size_t n);

#endif
