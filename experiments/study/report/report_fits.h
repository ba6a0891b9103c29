/* report_fits.h: the verdicts of fit.h and host_fit.h in words: in a cell, and below a table. */
#ifndef TSR_STUDY_REPORT_FITS_H
#define TSR_STUDY_REPORT_FITS_H

#include <stdio.h>

#include "experiments/study/job/result.h"

/* "yes", "yes, retries", "?", "NO" (the GPU), "NO (host)" or "NO (GPU, host)". */
const char *tsr__fits_text(const struct tsr_row *row);
/* "804.16 GiB of 465.66 GiB in load (node 0: 8 ranks, rank 0 alone 445.49 GiB)" */
void tsr__host_words(const struct tsr_host_fit *host, char *out, size_t size);
/* One line for each verdict among the rows that does not explain itself, with who has it; then an
 * empty one. Nothing if there is none. */
void tsr__put_fits(FILE *out, const struct tsr_row *rows, size_t n);

#endif
