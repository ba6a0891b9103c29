/* validate_stats.c: quantiles of errors, and the rank correlation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/validate/validate.h"
#include "sim/base/quantile.h"

static bool belongs(const struct tsr_point *point, const struct tsr_point_class *which)
{
    if (!point->counts)
        return false;
    return (!which->quantity || !strcmp(which->quantity, point->quantity)) &&
           (!which->gpu || !strcmp(which->gpu, point->gpu)) && point->gpus >= which->min_gpus &&
           (!which->max_gpus || point->gpus <= which->max_gpus);
}

static double *room(const struct tsr_validation *v, size_t each)
{
    return calloc(each * v->n_points + 1, sizeof(double));
}

tsr_status tsr_error_stats_of(const struct tsr_validation *v, const struct tsr_point_class *which,
                              struct tsr_error_stats *out)
{
    double *errors = room(v, 2), sum = 0;
    *out = (struct tsr_error_stats){0};
    if (!errors)
        return tsr_no_memory(NULL);
    double *bias = errors + v->n_points;
    size_t n = 0, n_bias = 0;
    for (size_t i = 0; i < v->n_points; i++) {
        const struct tsr_point *p = &v->points[i];
        if (!belongs(p, which))
            continue;
        sum += errors[n++] = p->error;
        if (p->status == TSR_POINT_PREDICTED)
            bias[n_bias++] = p->predicted / p->measured - 1;
        else
            out->not_modelled++;
    }
    tsr_sort_ascending(errors, n);
    tsr_sort_ascending(bias, n_bias);
    out->n = n;
    out->mean = n ? sum / (double)n : NAN;
    out->median = tsr_quantile(errors, n, 0.5);
    out->p90 = tsr_quantile(errors, n, 0.9);
    out->max = tsr_quantile(errors, n, 1);
    out->bias = tsr_quantile(bias, n_bias, 0.5);
    free(errors);
    return TSR_OK;
}

/* Ranks from 1; equal values share the mean of theirs. */
static void ranks_of(const double *values, size_t n, double *ranks)
{
    for (size_t i = 0; i < n; i++) {
        double below = 0, equal = 0;
        for (size_t k = 0; k < n; k++) {
            below += values[k] < values[i];
            equal += values[k] <= values[i] && values[k] >= values[i];
        }
        ranks[i] = below + (equal + 1) / 2;
    }
}

static double correlation(const double *a, const double *b, size_t n)
{
    double mean = ((double)n + 1) / 2, ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (a[i] - mean) * (b[i] - mean);
        aa += (a[i] - mean) * (a[i] - mean);
        bb += (b[i] - mean) * (b[i] - mean);
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

tsr_status tsr_rank_correlation(const struct tsr_validation *v, const struct tsr_point_class *which,
                                double *out)
{
    double *values = room(v, 4);
    *out = NAN;
    if (!values)
        return tsr_no_memory(NULL);
    double *predicted = values + v->n_points, *ranks = predicted + v->n_points;
    size_t n = 0;
    for (size_t i = 0; i < v->n_points; i++) {
        const struct tsr_point *p = &v->points[i];
        if (!belongs(p, which) || p->mfu_measured <= 0)
            continue;
        values[n] = p->mfu_measured;
        predicted[n++] = p->mfu_predicted;
    }
    ranks_of(values, n, ranks);
    ranks_of(predicted, n, ranks + n);
    if (n >= 3)
        *out = correlation(ranks, ranks + n, n);
    free(values);
    return TSR_OK;
}
