/* quotient.h: the job as it is simulated: one representative per class. Private to sim/. */
#ifndef TSR_SIM_QUOTIENT_H
#define TSR_SIM_QUOTIENT_H

#include "sim/fold/fold.h"

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
