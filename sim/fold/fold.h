/* fold.h: symmetry classes of ranks, links, groups and flows. Private to sim/.
 *
 * A partition is equitable when members of a class cannot be told apart by what they touch: every
 * link of a class carries the same number of flows of each class, every group has the same classes
 * of members and flows, every rank runs the same program in the same classes of groups. Max-min
 * rates and barriers see nothing else, so one representative per class reproduces the whole.
 *
 * [Note: the twin of a slow GPU] Taken literally, a slow GPU makes its own group of every
 * communicator special, and through shared NICs many others. But a rank that waits for its shard
 * group before it enters another collective enters it together with its group mates. So the slow
 * rank may be told apart in one geometry only (the strict one); in the others it counts as its
 * twin, a mate with the same program. That is right as long as both reach the collectives of the
 * other geometries at the same time, which the replay checks each time; if they do not, the
 * simulation is done again with the literal partition. Copies to the host are the rank's own doing:
 * they stay strict, and must have their links for themselves, else there is no twin.
 */
#ifndef TSR_SIM_FOLD_H
#define TSR_SIM_FOLD_H

#include "sim/tape/net.h"

struct tsr__partition {
    uint32_t *rank, *link, *group, *flow; /* class of each; link: TSR_NO_ID if nothing crosses it */
    uint32_t n_ranks, n_links, n_groups, n_flows; /* classes */
    uint32_t slow_class, twin_class, strict, own; /* see the note; TSR_NO_ID: literal. own: the
                                                     geometry of copies to the host */
};

/* Colour refinement down to the coarsest equitable partition. `twin`: try the note's. */
tsr_status tsr__fold_refine(const struct tsr__net *net, bool twin,
                            struct tsr__partition *out) TSR_MUST_USE;
/* Every rank, link, group and flow by itself. */
tsr_status tsr__fold_none(const struct tsr__net *net, struct tsr__partition *out) TSR_MUST_USE;
void tsr__partition_fini(struct tsr__partition *partition);
/* True if the slow rank counts as its twin in this geometry. */
static inline bool tsr__partition_relaxed(const struct tsr__partition *p, uint32_t geometry)
{
    return p->twin_class != TSR_NO_ID && geometry != p->strict && geometry != p->own;
}

/* Verifies that the partition is equitable by counting, without the colours that made it. Errors:
 * TSR_EBACKEND with the first class that is not. */
tsr_status tsr__fold_check(const struct tsr__net *net,
                           const struct tsr__partition *partition) TSR_MUST_USE;

#endif
