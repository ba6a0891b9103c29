/* fabric.h: the links of a cluster and the way between two GPUs. Private to sim/.
 *
 * Every port is two links, one per direction. Link ids are dense over the ranks of the job, whole
 * (unfolded); folding picks representatives of them later. Capacities are bytes per second with
 * the reachable share, the overrides of the options, the traffic of others and faults applied.
 */
#ifndef TSR_SIM_FABRIC_H
#define TSR_SIM_FABRIC_H

#include "sim/cluster/cluster.h"
#include "sim/cluster/routes.h"
#include "sim/input/job.h"
#include "sim/network/algorithms/algorithm.h"

enum tsr__role {
    TSR__PORT_OUT,   /* GPU to NVSwitch, or to its PCIe switch */
    TSR__SWITCH_OUT, /* PCIe switch to socket */
    TSR__SOCKET_OUT, /* socket to the other sockets */
    TSR__NIC_OUT,
    TSR__TIER_OUT, /* uplinks, one role per tier from the nodes up */
    TSR__TIER_IN = TSR__TIER_OUT + TSR_MAX_TIERS,
    TSR__NIC_IN = TSR__TIER_IN + TSR_MAX_TIERS,
    TSR__SOCKET_IN,
    TSR__SWITCH_IN,
    TSR__PORT_IN,
    TSR__HOST_OUT, /* GPU to host memory; on PCIe nodes the GPU's port is used instead */
    TSR__HOST_IN,
    TSR__PLATFORM, /* of the user's own SimGrid platform: either direction, or both */
    TSR__N_ROLES
};

/* Two ports, two adapters, a PCIe tree on each side, up and down every tier. Hops: of a route of
 * the user's platform in place of the tiers. */
enum { TSR__MAX_PATH = 12 + 2 * TSR_MAX_TIERS, TSR__MAX_HOPS = 2 + 2 * TSR_MAX_TIERS };

/* Invariants: first[role] + i is the i-th link of a role and first[TSR__N_ROLES] the number of all;
 * a role of which the job has none (first[role + 1] == first[role]) is on no path. capacity[role]
 * is that of each of its links, undisturbed: what faults leave is worked out when a link is asked
 * for. Constant after tsr__fabric_init(). */
struct tsr__fabric {
    const struct tsr_cluster *cluster;       /* borrowed */
    const struct tsr_conditions *conditions; /* borrowed */
    uint32_t world;
    uint32_t span; /* GPUs up to the last node that the job uses; links are numbered over them */
    const uint32_t *node_of;             /* borrowed; NULL: rank r is GPU r */
    uint32_t gpus_per_node, domain_gpus; /* domain: what NVLink (or PCIe) spans */
    uint32_t nic_ports_per_node;         /* adapters that GPUs share, or one port per GPU */
    uint32_t n_tiers;                    /* those that can hinder this job */
    struct tsr_tier tiers[TSR_MAX_TIERS];
    struct tsr__routes routes;        /* of the user's platform; n_hosts 0: there is none */
    bool pcie, ideal;                 /* ideal: infinite bandwidth, capacities are not used */
    double capacity[TSR__N_ROLES];    /* of an undisturbed link */
    uint32_t first[TSR__N_ROLES + 1]; /* first link id of each role */
};

tsr_status tsr__fabric_init(struct tsr__fabric *fabric, const struct tsr_cluster *cluster,
                            const struct tsr_sim_options *options, uint32_t world) TSR_MUST_USE;
void tsr__fabric_fini(struct tsr__fabric *fabric);
static inline uint32_t tsr__fabric_links(const struct tsr__fabric *fabric)
{
    return fabric->first[TSR__N_ROLES];
}
enum tsr__role tsr__link_role(const struct tsr__fabric *fabric, uint32_t link);
/* Bytes per second of one link, with its faults. */
double tsr__link_capacity(const struct tsr__fabric *fabric, uint32_t link);
/* False: every flow may have all of it. */
bool tsr__link_is_shared(const struct tsr__fabric *fabric, uint32_t link);
/* Links from GPU `src` to GPU `dst` (global ranks), in order; returns how many. Errors: TSR_ECONFIG
 * when the cluster file does not know a rate that is needed, or a link on the way is dead. */
tsr_status tsr__fabric_path(const struct tsr__fabric *fabric, uint32_t src, uint32_t dst,
                            uint32_t links[TSR__MAX_PATH], uint32_t *n_links,
                            enum tsr__medium *medium) TSR_MUST_USE;
/* The link between a GPU and the memory of its host. */
tsr_status tsr__fabric_host_link(const struct tsr__fabric *fabric, uint32_t rank, bool to_device,
                                 uint32_t *link) TSR_MUST_USE;

/* ---- rings ----------------------------------------------------------------------------------- */

/* The edges of the rings of a collective. Private to sim/.
 *
 * Every algorithm's bytes go over the same edges, in amounts of its own by medium (tuner.h): trees,
 * NVLS and PAT load each port and NIC as evenly as rings do, so members stay alike and fold.
 * Between pods that is an approximation: a tree or PAT crosses them more often than a ring. */

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
