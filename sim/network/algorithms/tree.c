/* tree.c: double binary trees: 2S (of two nodes: S) between nodes, the average of a tree's two
 * roles; up and down the chain inside a node 2S.
 */
#include "sim/network/algorithms/algorithm.h"

/* The tuner's tree reaches 0.92 of the ring; its LL 1/3.8 of that, its LL128 15/16 (7/9 inside one
 * node). */
static const double TREE_SHARE = 0.92;
static const double tree_wire[2][TSR__N_PROTOCOLS] = {{0, 3.8, 9.0 / 7.0, 1.0},
                                                      {0, 3.8, 16.0 / 15.0, 1.0}};
/* And less at sizes in between: by log2 of size / 64 bytes (treeCorrectionFactor). */
enum { N_TREE_SIZES = 24 };
static const double tree_share[TSR__N_PROTOCOLS][N_TREE_SIZES] = {
    [TSR_PROTO_LL] = {1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
                      0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0},
    [TSR_PROTO_LL128] = {1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
                         0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0},
    [TSR_PROTO_SIMPLE] = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
                          0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9},
};

static bool exists(const struct tsr__question *q, bool forced)
{
    (void)forced;
    return q->kind == TSR_ALL_REDUCE;
}

static void count_hops(const struct tsr__question *q, double *intra, double *inter)
{
    *intra = 2.0 * (tsr__local_members(q->group) - 1.0);
    *inter = 2.0 * tsr__floor_log2(q->group->domains);
}

static void count_bytes(const struct tsr__question *q, double bytes, double out[2])
{
    const struct tsr__coll_group *g = q->group;
    double wire = tsr__ring_wire[q->protocol], trees = g->domains > 2 ? 2.0 : 1.0;
    if (g->domains > 1)
        out[TSR__INTRA] = 2.0 * bytes * wire;
    out[TSR__INTER] = trees * bytes * wire;
}

static double reach(const struct tsr__question *q, int medium, uint64_t bytes)
{
    double size = tsr__floor_log2(bytes / 64);
    double medium_sizes = size < N_TREE_SIZES ? tree_share[q->protocol][(int)size] : 1.0;
    (void)medium;
    return TREE_SHARE * medium_sizes * tsr__ring_wire[q->protocol] /
           tree_wire[q->group->domains > 1][q->protocol];
}

const struct tsr__algorithm tsr__algorithm_tree = {.base_us = {-1, 6.8, 14.0, 8.4},
                                                   .nvlink_us = {0, 0.6, 1.25, 4.0},
                                                   .pci_us = {0, 1.0, 1.9, 4.0},
                                                   .net_us = {0, 5.0, 8.5, 14.0},
                                                   .takes_sms = true,
                                                   .buffers = TSR__NCCL_TREES,
                                                   .exists = exists,
                                                   .count_hops = count_hops,
                                                   .count_bytes = count_bytes,
                                                   .reach = reach};
