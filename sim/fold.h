/* fold.h: symmetry classes of ranks, links, groups and flows. Private to sim/.
 *
 * A partition is equitable when members of a class cannot be told apart by what they touch: every
 * link of a class carries the same number of flows of each class, every group has the same classes
 * of members and flows, every rank runs the same program in the same classes of groups. Max-min
 * rates and barriers see nothing else, so one representative per class reproduces the whole.
 */
#ifndef TSR_SIM_FOLD_H
#define TSR_SIM_FOLD_H

#include "net.h"

struct tsr__partition {
    uint32_t *rank, *link, *group, *flow; /* class of each; link: TSR_NO_ID if nothing crosses it */
    uint32_t n_ranks, n_links, n_groups, n_flows; /* classes */
};

/* Colour refinement down to the coarsest equitable partition. */
tsr_status tsr__fold_refine(const struct tsr__net *net, struct tsr__partition *out) TSR_MUST_USE;
/* Every rank, link, group and flow by itself. */
tsr_status tsr__fold_none(const struct tsr__net *net, struct tsr__partition *out) TSR_MUST_USE;
void tsr__partition_fini(struct tsr__partition *partition);

/* Verifies that the partition is equitable by counting, without the colours that made it. Errors:
 * TSR_EBACKEND with the first class that is not. */
tsr_status tsr__fold_check(const struct tsr__net *net,
                           const struct tsr__partition *partition) TSR_MUST_USE;

#endif
