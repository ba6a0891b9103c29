/* nvls.c: the switch reduces and multicasts (NVLink SHARP).
 *
 *   nvls        S(n+1)/n through each port and direction.
 *   nvls_tree   S(L+1)/L through each port and direction, trees between equal ports of the nodes.
 */
#include "sim/network/algorithms/algorithm.h"

/* NVLS reaches less where it also feeds the network: two nodes of H100 (EFA, InfiniBand), against
 * the rings and NVLS of one node. */
static const double NVLS_TREE_SHARE = 0.93;
/* Rings were chosen up to 4 GPUs behind NVSwitch, NVLS from 5 (published on H200, NCCL 2.27). */
enum { NVLS_MEMBERS = 5 };

static void count_hops(const struct tsr__question *q, double *intra, double *inter)
{
    *intra = 1.0;
    *inter = 2.0 * tsr__floor_log2(q->group->domains);
}

/* ---- one node -------------------------------------------------------------------------------- */

/* All-gathers ran as rings where published; NVLS has them. */
static bool exists(const struct tsr__question *q, bool forced)
{
    const struct tsr__coll_group *g = q->group;
    return g->domains == 1 && q->model->nvls_share > 0.0 &&
           (q->kind == TSR_ALL_REDUCE ? g->size >= NVLS_MEMBERS || forced
                                      : forced && tsr__gathers_or_scatters(q->kind));
}

static void count_bytes(const struct tsr__question *q, double bytes, double out[2])
{
    double n = q->group->size;
    out[TSR__INTRA] = (q->kind == TSR_ALL_REDUCE ? (n + 1.0) / n : 1.0) * bytes;
}

static double reach(const struct tsr__question *q, int medium, uint64_t bytes)
{
    (void)medium;
    (void)bytes;
    return q->model->nvls_share;
}

const struct tsr__algorithm tsr__algorithm_nvls = {.base_us = {-1, -1, -1, 0.0},
                                                   .nvlink_us = {0, 0, 0, 25.0},
                                                   .net_us = {0, 0, 0, 18.0},
                                                   .takes_sms = true,
                                                   .buffers = TSR__NCCL_NVLS,
                                                   .exists = exists,
                                                   .count_hops = count_hops,
                                                   .count_bytes = count_bytes,
                                                   .reach = reach};

/* ---- several nodes --------------------------------------------------------------------------- */

static bool tree_exists(const struct tsr__question *q, bool forced)
{
    const struct tsr__coll_group *g = q->group;
    (void)forced;
    return g->domains > 1 && g->size >= 2 * g->domains && q->model->nvls_share > 0.0 &&
           q->kind == TSR_ALL_REDUCE;
}

/* (local-1)/local of it passes a port. */
static void count_tree_bytes(const struct tsr__question *q, double bytes, double out[2])
{
    double local = tsr__local_members(q->group), trees = q->group->domains > 2 ? 2.0 : 1.0;
    out[TSR__INTRA] = (local + 1.0) / (local - 1.0) * bytes;
    out[TSR__INTER] = trees * bytes;
}

static double tree_reach(const struct tsr__question *q, int medium, uint64_t bytes)
{
    (void)bytes;
    return medium == TSR__INTRA ? q->model->nvls_share * NVLS_TREE_SHARE : 1.0;
}

const struct tsr__algorithm tsr__algorithm_nvls_tree = {.base_us = {-1, -1, -1, 0.0},
                                                        .nvlink_us = {0, 0, 0, 25.0},
                                                        .net_us = {0, 0, 0, 20.9},
                                                        .takes_sms = true,
                                                        .buffers = TSR__NCCL_NVLS_TREES,
                                                        .exists = tree_exists,
                                                        .count_hops = count_hops,
                                                        .count_bytes = count_tree_bytes,
                                                        .reach = tree_reach};
