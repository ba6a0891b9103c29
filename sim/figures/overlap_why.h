/* overlap_why.h: charges the exposed seconds of a collective to what held it up. Private to sim/.
 */
#ifndef TSR_SIM_OVERLAP_WHY_H
#define TSR_SIM_OVERLAP_WHY_H

#include "sim/figures/intervals.h"
#include "sim/figures/overlap_graph.h"
#include "sim/figures/overlap_idle.h"

struct tsr__overlap_window {
    const struct tsr__graph *graph;
    const struct tsr__idle *idle;
    const struct tsr__set *compute; /* when the compute stream works, united */
    double low;                     /* the start of the window */
};

/* Charges idle seconds of [from, to) to the collective `at`, which runs all the time, where the
 * reason is not its lateness: what compute had to do next was not launched, or another rank had
 * not come. */
void tsr__overlap_charge_idle(const struct tsr__overlap_window *window, double from, double to,
                              uint32_t at, struct tsr_overlap_item *item);
/* Charges the exposed seconds of the collective `at` that have no reason yet. */
void tsr__overlap_why(const struct tsr__overlap_window *window, uint32_t at,
                      struct tsr_overlap_item *item);

#endif
