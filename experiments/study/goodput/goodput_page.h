/* goodput_page.h: report.html of a month. */
#ifndef TSR_STUDY_GOODPUT_PAGE_H
#define TSR_STUDY_GOODPUT_PAGE_H

#include "experiments/study/goodput/goodput_month.h"

/* Goodput by interval; borrowed, seconds. */
struct tsr_month_curve {
    const double *interval_s;     /* [n] rising */
    const struct tsr_goodput *at; /* [n] */
    size_t n;
};

/* Writes DIR/report.html. Errors: TSR_EIO, TSR_ENOMEM. */
tsr_status tsr_month_page(const struct tsr_month *month, const struct tsr_study_info *info,
                          const struct tsr_month_curve *curve, const char *dir) TSR_MUST_USE;

#endif
