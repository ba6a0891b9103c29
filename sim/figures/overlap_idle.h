/* overlap_idle.h: why the compute stream was idle, where no collective was the reason. Private to
 * sim/.
 */
#ifndef TSR_SIM_OVERLAP_IDLE_H
#define TSR_SIM_OVERLAP_IDLE_H

#include "sim/figures/intervals.h"
#include "sim/figures/overlap_graph.h"

/* Disjoint: what the compute stream had to do next was not issued because the host was slow, or
 * because it was held up until memory was free; or it was issued and waited for no event, but the
 * device had another order. */
struct tsr__idle {
    struct tsr__set late, limited, order;
};

/* Errors: TSR_ENOMEM. On failure nothing is to be freed. */
tsr_status tsr__idle_init(struct tsr__idle *idle, const struct tsr__graph *graph) TSR_MUST_USE;
void tsr__idle_fini(struct tsr__idle *idle);

#endif
