/* rings.h: the edges of the rings of a collective. Private to sim/.
 *
 * Every algorithm's bytes go over the same edges, in amounts of its own by medium (tuner.h): trees,
 * NVLS and PAT load each port and NIC as evenly as rings do, so members stay alike and fold.
 * Between pods that is an approximation: a tree or PAT crosses them more often than a ring.
 */
#ifndef TSR_SIM_RINGS_H
#define TSR_SIM_RINGS_H

#include "sim/network/fabric.h"

/* One flow between two members. `share` is a part of the pattern's bytes per member. */
struct tsr__edge {
    uint32_t src, dst; /* global ranks */
    double share;
};

/* Edges of the rings through `members` (ascending global ranks, n > 1): with L members on each node
 * L rings leave it through L ports (uneven: the smallest L), so the NIC of a member carries 1/L and
 * its NVLink port (L-1)/L. Writes at most tsr__ring_max_edges() edges; returns how many. */
size_t tsr__ring_max_edges(uint32_t n);
size_t tsr__ring_edges(const struct tsr__fabric *fabric, const uint32_t *members, uint32_t n,
                       struct tsr__edge *edges);

#endif
