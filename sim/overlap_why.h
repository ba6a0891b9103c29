/* overlap_why.h: charges the exposed seconds of a collective to what held it up. Private to sim/.
 */
#ifndef TSR_SIM_OVERLAP_WHY_H
#define TSR_SIM_OVERLAP_WHY_H

#include "intervals.h"
#include "overlap_graph.h"

/* Fills item->why from item->exposed. `compute`: when the compute stream works, united; `low`: the
 * start of the window. */
void tsr__overlap_why(const struct tsr__graph *graph, const struct tsr__set *compute, double low,
                      uint32_t at, struct tsr_overlap_item *item);

#endif
