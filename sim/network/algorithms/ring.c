/* ring.c: rings: 2(n-1)/n S for an all-reduce, (n-1)/n S for the others, over both media. */
#include "sim/network/algorithms/algorithm.h"

const double tsr__ring_wire[TSR__N_PROTOCOLS] = {0, 2.0, 128.0 / 120.0, 1.0};

enum tsr__pattern tsr__coll_pattern(uint8_t kind)
{
    if (kind == TSR_SEND || kind == TSR_RECV)
        return TSR__P2P;
    return kind == TSR_ALL_TO_ALL ? TSR__PAIRS : TSR__RING;
}

/* A broadcast is a pipeline along the ring; the edge back to the root is kept, which keeps members
 * alike and changes no time. A custom collective counts as one pass of the ring. */
double tsr__ring_bytes(uint8_t kind, double n, double bytes)
{
    switch (kind) {
    case TSR_ALL_REDUCE:
        return 2.0 * (n - 1.0) / n * bytes;
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_CUSTOM_COLLECTIVE:
        return (n - 1.0) / n * bytes;
    default: /* broadcast, all-to-all (shares are 1/n), send */
        return bytes;
    }
}

static bool exists(const struct tsr__question *q, bool forced)
{
    (void)q;
    (void)forced;
    return true;
}

static void count_hops(const struct tsr__question *q, double *intra, double *inter)
{
    double laps = q->kind == TSR_ALL_REDUCE ? 2.0 : 1.0;
    *inter = laps * (q->group->domains - 1.0);
    *intra = laps * (q->group->size - 1.0) - *inter;
}

const struct tsr__algorithm tsr__algorithm_ring = {.base_us = {-1, 6.6, 14.0, 8.4},
                                                   .nvlink_us = {0, 0.6, 1.9, 3.4},
                                                   .pci_us = {0, 1.0, 2.5, 5.7},
                                                   .net_us = {0, 2.7, 4.0, 14.0},
                                                   .takes_sms = true,
                                                   .buffers = TSR__NCCL_RINGS,
                                                   .exists = exists,
                                                   .count_hops = count_hops};
