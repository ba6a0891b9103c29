/* quantile.c: sorting, and reading between two places of what is sorted. */
#include "sim/base/quantile.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void tsr_sort_ascending(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
}

double tsr_quantile(const double *ascending, size_t n, double q)
{
    if (n == 0)
        return (double)NAN;
    double at = q * (double)(n - 1);
    size_t below = (size_t)at;
    if (below + 1 >= n)
        return ascending[n - 1];
    return ascending[below] + (at - (double)below) * (ascending[below + 1] - ascending[below]);
}
