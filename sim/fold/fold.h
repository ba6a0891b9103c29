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

/* Owns the four arrays, one class for each rank, link, group and flow of the job; classes of a
 * kind are numbered from 0 on without a gap. */
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

/* ---- the job as it is simulated -------------------------------------------------------------- */

/* The job as it is simulated: one representative per class. Private to sim/. */

/* A flow class: `copies` equal flows over one route. */
struct tsr__qflow {
    uint32_t route, copies;
    double share, s_per_byte; /* s_per_byte: alone on the fabric (P2P) */
    uint8_t pattern, medium;
    bool to_device;
    uint16_t from_i, to_i;
};

struct tsr__qgroup {
    struct tsr__coll_group coll;
    uint32_t first_member, n_members; /* of members[]: one per rank class present */
    uint32_t first_flow, n_flows;
    bool relaxed; /* has the slow rank and its twin as members, in truth in two groups */
};

struct tsr__qroute {
    uint32_t links[TSR__MAX_PATH]; /* link classes */
    uint32_t n_links;
};

struct tsr__qrank {
    uint32_t rank, layout, weight;
    double slow; /* factor on kernel times */
};

/* Invariants: weights of `ranks` add up to the job's ranks, and the representative of a class is
 * its first member. The flows of a group lie together, flows[first_flow .. + n_flows). Every link
 * class is on some route, with the capacity at which the representatives' max-min rates are those
 * of the whole job. Unfolded it is the job itself: every class has one member. Constant after
 * tsr__quotient_build(); the child reads it, nobody writes. */
struct tsr__quotient {
    uint32_t n_ranks, n_links, n_groups, n_flows, n_routes, n_geometries, host_geometry;
    uint32_t slow, twin; /* ranks that must keep step, or TSR_NO_ID: see fold.h */
    struct tsr__coll_model model;
    double slowdown; /* share of speed that kernels lose beside a collective's kernel */
    struct tsr__qrank *ranks;
    double *capacity; /* [n_links] bytes per second */
    bool *fatpipe;    /* [n_links] not shared: each flow may have all of it; NULL: none is */
    struct tsr__qgroup *groups;
    uint32_t *members;
    struct tsr__qflow *flows; /* ordered by group */
    struct tsr__qroute *routes;
    uint32_t world;     /* ranks of the job */
    uint32_t *class_of; /* [world] index in `ranks` of the class of each rank */
    uint32_t *group_of; /* [rank][geometry] */
    uint32_t *index_of; /* [rank][geometry]: member index of the representative */
    double *sent;       /* [rank][geometry][pattern][medium]: share that the rank sends */
};

/* Errors: TSR_EUNSUPPORTED when the classes share a link in proportions that one representative
 * cannot have (the caller then simulates unfolded). */
tsr_status tsr__quotient_build(const struct tsr__net *net, const struct tsr__partition *partition,
                               struct tsr__quotient *out) TSR_MUST_USE;
void tsr__quotient_fini(struct tsr__quotient *quotient);

static inline uint32_t tsr__quotient_group(const struct tsr__quotient *q, uint32_t rank,
                                           uint32_t geometry)
{
    return q->group_of[(size_t)rank * q->n_geometries + geometry];
}
static inline double tsr__quotient_sent(const struct tsr__quotient *q, uint32_t rank,
                                        uint32_t geometry, uint32_t pattern, uint32_t medium)
{
    size_t at = (size_t)rank * q->n_geometries + geometry;
    return q->sent[(at * TSR__N_PATTERNS + pattern) * 2 + medium];
}

#endif
