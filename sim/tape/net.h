/* net.h: every flow that the collectives of a job can make, unfolded. Private to sim/.
 *
 * Groups: instances of communicators, numbered densely geometry by geometry. If a program copies
 * between host and device, one more geometry of size 1 holds each rank's two flows to its host.
 * So does one for the traffic of others, by its sender; from_i is then its number in the options.
 */
#ifndef TSR_SIM_NET_H
#define TSR_SIM_NET_H

#include "sim/network/fabric.h"
#include "sim/network/tuner.h"
#include "sim/tape/tape.h"

enum { TSR__HOST_PATTERN = TSR__N_PATTERNS, TSR__TRAFFIC_PATTERN };

/* What one member sends to another in one pattern of a group: over `links`, its part `share` of
 * the pattern's bytes per member. */
struct tsr__net_flow {
    uint32_t group, src, dst; /* global ranks; host copies: src = dst */
    uint32_t links[TSR__MAX_PATH];
    uint8_t n_links, pattern, medium;
    bool to_device;        /* host copies */
    uint16_t from_i, to_i; /* P2P: member indexes */
    double share;
};

/* Owns first_group and flows; all else is borrowed and outlives it. Groups of geometry g are
 * first_group[g] .. first_group[g + 1] - 1. */
struct tsr__net {
    const struct tsr__fabric *fabric;
    const struct tsr__tapes *tapes;
    const struct tsr_sim_job *job;
    const struct tsr_sim_options *options;
    uint32_t n_geometries;       /* with the host geometry, if there is one */
    uint32_t host_geometry;      /* TSR_NO_ID: none */
    uint32_t traffic_geometry;   /* TSR_NO_ID: none */
    uint32_t *first_group;       /* [n_geometries + 1] */
    struct tsr__net_flow *flows; /* ordered by group */
    size_t n_flows, cap;
};

tsr_status tsr__net_build(const struct tsr__fabric *fabric, const struct tsr__tapes *tapes,
                          const struct tsr_sim_job *job, const struct tsr_sim_options *options,
                          struct tsr__net *net) TSR_MUST_USE;
void tsr__net_fini(struct tsr__net *net);

struct tsr__geometry tsr__net_geometry(const struct tsr__net *net, uint32_t geometry);
/* Dense group id of `rank`. */
uint32_t tsr__net_group(const struct tsr__net *net, uint32_t geometry, uint32_t rank);
/* Lowest rank of group number `i` of a geometry; member k is k strides on. */
uint32_t tsr__net_base(const struct tsr__net *net, uint32_t geometry, uint32_t i);
static inline uint32_t tsr__net_groups(const struct tsr__net *net)
{
    return net->first_group[net->n_geometries];
}
/* Factor on the kernels of a rank, without noise. */
double tsr__net_slowness(const struct tsr__net *net, uint32_t rank);
/* The one rank that is slow (or fast); TSR_NO_ID: none, or several. */
uint32_t tsr__net_only_slow(const struct tsr__net *net);
static inline bool tsr__net_is_slow(const struct tsr__net *net, uint32_t rank)
{
    return tsr__net_slowness(net, rank) != 1.0;
}

#endif
