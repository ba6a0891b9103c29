/* pat.c: parallel aggregated trees: the bytes of the ring in log2(n) rounds; one member on each
 * node.
 */
#include "sim/network/algorithms/algorithm.h"

static const double PAT_SHARE = 0.75;
/* NCCL's rounds of PAT overlap, but each member costs something (member_us). */
static const double PAT_OVERLAP = 3.5;

static bool exists(const struct tsr__question *q, bool forced)
{
    (void)forced;
    return q->group->domains == q->group->size && tsr__gathers_or_scatters(q->kind);
}

static void count_hops(const struct tsr__question *q, double *intra, double *inter)
{
    *intra = 0.0;
    *inter = tsr__floor_log2(q->group->size) / PAT_OVERLAP;
}

static double reach(const struct tsr__question *q, int medium, uint64_t bytes)
{
    (void)q;
    (void)medium;
    (void)bytes;
    return PAT_SHARE;
}

const struct tsr__algorithm tsr__algorithm_pat = {.base_us = {-1, -1, -1, 8.0},
                                                  .nvlink_us = {0, 0, 0, 4.0},
                                                  .pci_us = {0, 0, 0, 4.0},
                                                  .net_us = {0, 0, 0, 14.0},
                                                  .member_us = 2.8,
                                                  .takes_sms = true,
                                                  .buffers = TSR__NCCL_PAT,
                                                  .exists = exists,
                                                  .count_hops = count_hops,
                                                  .reach = reach};
