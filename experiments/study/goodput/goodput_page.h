/* goodput_page.h: report.html of a month, and how its times are written. */
#ifndef TSR_STUDY_GOODPUT_PAGE_H
#define TSR_STUDY_GOODPUT_PAGE_H

#include "experiments/study/goodput/goodput_month.h"
#include "sim/base/text.h"

/* "18.8 h", and from 72 hours "4.17 days"; for an argument of printf(). */
#define TSR_DAYS_FROM_S (72 * 3600.0)
struct tsr_shown tsr_hours(double seconds);
/* The time between two checkpoints: "15.4 min", from four hours as above. */
struct tsr_shown tsr_interval(double seconds);

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
