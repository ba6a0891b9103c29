/* quantile.h: order statistics of a sample. The one definition of a quantile in the project: what
 * reports call median, p5 or p90 is this.
 */
#ifndef TSR_SIM_QUANTILE_H
#define TSR_SIM_QUANTILE_H

#include <stddef.h>

/* Puts the smallest first. No value may be NaN. */
void tsr_sort_ascending(double *values, size_t n);

/* The q-quantile, 0 <= q <= 1, of n ascending values: the one at place q * (n - 1), counted from 0,
 * on a line between its neighbours where the place is no integer (Hyndman and Fan's type 7, the
 * default of R and NumPy). So q = 0 is the smallest value, 0.5 the median, 1 the largest. NaN if n
 * is 0. */
double tsr_quantile(const double *ascending, size_t n, double q);

#endif
