/* collective.h: which flows a collective makes and which protocol carries it. Private to sim/. */
#ifndef TSR_SIM_COLLECTIVE_H
#define TSR_SIM_COLLECTIVE_H

#include "fabric.h"

/* How bytes travel. A collective is one of these patterns times a factor (tsr__coll_factor()). */
enum tsr__pattern { TSR__RING, TSR__PAIRS, TSR__P2P, TSR__N_PATTERNS };

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

/* A communicator as the protocol choice sees it. */
struct tsr__coll_group {
    uint32_t size;    /* members */
    uint32_t domains; /* NVLink domains (nodes) that they live in */
    bool pcie;        /* inside a node they talk over PCIe */
    /* Seconds per byte of the pattern alone on the fabric (largest share over capacity of a link),
     * by pattern; 0: infinite bandwidth. */
    double s_per_byte[TSR__N_PATTERNS];
};

enum tsr__pattern tsr__coll_pattern(uint8_t kind);
/* Bytes that the pattern moves per member, for `bytes` of the instruction. */
double tsr__coll_bytes(uint8_t kind, uint32_t size, uint64_t bytes);

struct tsr__coll_choice {
    enum tsr_protocol protocol;
    double latency_s;   /* paid once, before the flows */
    double wire_factor; /* bytes on the wire per byte of data */
};
/* AUTO takes the least estimated time of the collective alone on the fabric, so that more bandwidth
 * never makes a collective slower. `inter`: for SEND and RECV, whether the peer is elsewhere. */
struct tsr__coll_choice tsr__coll_choose(const struct tsr__coll_group *group, uint8_t kind,
                                         uint64_t bytes, bool inter,
                                         const struct tsr_sim_options *options);

#endif
