/* tuner.c: NCCL's algorithms and protocols, and what each costs a collective.
 *
 * Constants: experiments/clusters/nccl-tuner-constants.json, that is NVIDIA/nccl
 * src/graph/tuning.cc at commit 5067397c. They rank algorithms in NCCL; here they are also the
 * latencies and the bytes on the wire.
 *
 * What crosses the links, per GPU, of S bytes over n members, L on each of N nodes, per unit share
 * of the rings' edges (inside a node (L-1)/L of it passes a port, between nodes 1/L a NIC):
 *   ring        2(n-1)/n S for an all-reduce, (n-1)/n S for the others: both media.
 *   tree        2S (N = 2: S) between nodes, the average of the double binary tree's two roles;
 *               up and down the chain inside a node 2S.
 *   nvls        the switch reduces and multicasts: S(n+1)/n through each port and direction.
 *   nvls_tree   S(L+1)/L through each port and direction, trees between equal ports of the nodes.
 *   pat         as the ring, in log2(n) rounds; one member on each node.
 *   copy_engine as the ring; no SM takes part.
 */
#include "sim/network/tuner.h"

#include <math.h>
#include <string.h>

enum { N_PROTOCOLS = TSR_PROTO_SIMPLE + 1 };

/* Microseconds: once per collective, and per hop over each medium; by protocol. A base of -1: the
 * algorithm has no such protocol. */
struct algorithm_row {
    double base_us[N_PROTOCOLS], nvlink_us[N_PROTOCOLS], pci_us[N_PROTOCOLS], net_us[N_PROTOCOLS];
};
static const struct algorithm_row rows[TSR_N_ALGORITHMS] = {
    [TSR_ALGO_RING] = {{-1, 6.6, 14.0, 8.4},
                       {0, 0.6, 1.9, 3.4},
                       {0, 1.0, 2.5, 5.7},
                       {0, 2.7, 4.0, 14.0}},
    [TSR_ALGO_TREE] = {{-1, 6.8, 14.0, 8.4},
                       {0, 0.6, 1.25, 4.0},
                       {0, 1.0, 1.9, 4.0},
                       {0, 5.0, 8.5, 14.0}},
    [TSR_ALGO_NVLS] = {{-1, -1, -1, 0.0}, {0, 0, 0, 25.0}, {0}, {0, 0, 0, 18.0}},
    [TSR_ALGO_NVLS_TREE] = {{-1, -1, -1, 0.0}, {0, 0, 0, 25.0}, {0}, {0, 0, 0, 20.9}},
    [TSR_ALGO_PAT] = {{-1, -1, -1, 8.0}, {0, 0, 0, 4.0}, {0, 0, 0, 4.0}, {0, 0, 0, 14.0}},
    /* Assumption: one launch and one hop, as of a ring. */
    [TSR_ALGO_COPY_ENGINE] = {{-1, -1, -1, 8.4}, {0, 0, 0, 3.4}, {0, 0, 0, 5.7}, {0}},
};

/* Bytes on the wire per byte of data. LL sends a 4-byte flag with 4 bytes of data, LL128 8 bytes of
 * flag with 120. */
static const double ring_wire[N_PROTOCOLS] = {0, 2.0, 128.0 / 120.0, 1.0};
/* The tuner's tree reaches 0.92 of the ring; its LL 1/3.8 of that, its LL128 15/16 (7/9 inside one
 * node). */
static const double TREE_SHARE = 0.92;
static const double tree_wire[2][N_PROTOCOLS] = {{0, 3.8, 9.0 / 7.0, 1.0},
                                                 {0, 3.8, 16.0 / 15.0, 1.0}};
/* And less at sizes in between: by log2 of size / 64 bytes (treeCorrectionFactor). */
enum { N_TREE_SIZES = 24 };
static const double tree_share[N_PROTOCOLS][N_TREE_SIZES] = {
    [TSR_PROTO_LL] = {1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
                      0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0},
    [TSR_PROTO_LL128] = {1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
                         0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0},
    [TSR_PROTO_SIMPLE] = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
                          0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9},
};
static const double PAT_SHARE = 0.75;
/* NVLS reaches less where it also feeds the network: two nodes of H100 (EFA, InfiniBand), against
 * the rings and NVLS of one node. */
static const double NVLS_TREE_SHARE = 0.93;
/* NCCL's rounds of PAT overlap, but each member costs something. */
static const double PAT_OVERLAP = 3.5, PAT_MEMBER_US = 2.8;
/* Rings were chosen up to 4 GPUs behind NVSwitch, NVLS from 5 (published on H200, NCCL 2.27). */
enum { NVLS_MEMBERS = 5 };

/* [Note: fill] Large transfers are pipelines of chunks. Until the first chunk has gone all the way
 * links idle: at most fill_s, and for transfers of few chunks about FILL_SHARE of the time on the
 * wire. LL moves lines, not chunks. The shape was chosen on published nccl_busbw tables. */
static const double FILL_SHARE = 1.5;

/* llMaxBw of two nodes, and of more (hosts with Intel processors). */
static const double LL_RATE_TWO_NODES = 39.0e9, LL_RATE_MORE_NODES = 20.4e9;

void tsr__coll_model_init(struct tsr__coll_model *m, const struct tsr_cluster *c,
                          const struct tsr_sim_options *o)
{
    const double *value = c->gpu.calibration.value;
    double rate = (o->intra_bw > 0.0 ? o->intra_bw : c->intra_bw);
    *m = (struct tsr__coll_model){.algorithm = o->algorithm,
                                  .protocol = o->protocol,
                                  .latency_scale = o->latency_scale,
                                  .base_s = value[TSR_CAL_COLLECTIVE_BASE],
                                  .hop_s = c->nic_latency_s,
                                  .fill_s = {value[TSR_CAL_COLLECTIVE_FILL], c->nic_fill_s},
                                  .pcie = c->intra == TSR_INTRA_PCIE};
    if (c->n_collectives && !o->infinite_bandwidth)
        m->timed = c;
    if (rate > 0.0 && !o->infinite_bandwidth)
        m->own_s_per_byte = value[TSR_CAL_COLLECTIVE_OWN] / rate;
    m->nvls_share = c->multicast ? c->gpu.traits.nvls_efficiency : 0.0;
    m->ll_rate = c->gpu.traits.ll_max_bw;
}

enum tsr__pattern tsr__coll_pattern(uint8_t kind)
{
    if (kind == TSR_SEND || kind == TSR_RECV)
        return TSR__P2P;
    return kind == TSR_ALL_TO_ALL ? TSR__PAIRS : TSR__RING;
}

/* ---- one algorithm and protocol ---------------------------------------------------------- */

struct question {
    const struct tsr__coll_model *model;
    const struct tsr__coll_group *group;
    uint8_t kind;
    bool inter; /* P2P */
    enum tsr_algorithm algorithm;
    enum tsr_protocol protocol;
};

static double floor_log2(uint64_t value)
{
    double log = 0.0;
    for (; value >= 2; value /= 2)
        log += 1.0;
    return log;
}

static double local_members(const struct tsr__coll_group *group)
{
    return (double)group->size / group->domains;
}

static bool is_all_reduce(uint8_t kind)
{
    return kind == TSR_ALL_REDUCE;
}

static bool gathers_or_scatters(uint8_t kind)
{
    return kind == TSR_ALL_GATHER || kind == TSR_REDUCE_SCATTER;
}

/* Whether NCCL has it for this collective of this group; `forced`: it was asked for by name. */
static bool algorithm_exists(const struct question *q, bool forced)
{
    const struct tsr__coll_group *g = q->group;
    switch (q->algorithm) {
    case TSR_ALGO_RING:
        return true;
    case TSR_ALGO_TREE:
        return is_all_reduce(q->kind);
    case TSR_ALGO_NVLS: /* all-gathers ran as rings where published; NVLS has them */
        return g->domains == 1 && q->model->nvls_share > 0.0 &&
               (is_all_reduce(q->kind) ? g->size >= NVLS_MEMBERS || forced
                                       : forced && gathers_or_scatters(q->kind));
    case TSR_ALGO_NVLS_TREE:
        return g->domains > 1 && g->size >= 2 * g->domains && q->model->nvls_share > 0.0 &&
               is_all_reduce(q->kind);
    case TSR_ALGO_PAT:
        return g->domains == g->size && gathers_or_scatters(q->kind);
    case TSR_ALGO_COPY_ENGINE:
        return forced && g->domains == 1 &&
               (q->kind == TSR_ALL_GATHER || q->kind == TSR_ALL_TO_ALL);
    default:
        return false;
    }
}

static bool exists(const struct question *q, bool algorithm_forced, bool protocol_forced)
{
    if (rows[q->algorithm].base_us[q->protocol] < 0.0 || !algorithm_exists(q, algorithm_forced))
        return false;
    /* LL128 needs stores of 128 bytes to arrive whole: not over PCIe. */
    return q->protocol != TSR_PROTO_LL128 || !q->model->pcie || protocol_forced;
}

/* Hops over each medium, one after the other. */
static void count_hops(const struct question *q, double *intra, double *inter)
{
    const struct tsr__coll_group *g = q->group;
    double laps = is_all_reduce(q->kind) ? 2.0 : 1.0;
    *intra = *inter = 0.0;
    if (tsr__coll_pattern(q->kind) != TSR__RING || q->algorithm == TSR_ALGO_COPY_ENGINE) {
        bool far = q->kind == TSR_ALL_TO_ALL ? g->domains > 1 : q->inter;
        *(far && q->algorithm != TSR_ALGO_COPY_ENGINE ? inter : intra) = 1.0;
        return;
    }
    switch (q->algorithm) {
    case TSR_ALGO_TREE:
        *intra = 2.0 * (local_members(g) - 1.0);
        *inter = 2.0 * floor_log2(g->domains);
        return;
    case TSR_ALGO_NVLS:
    case TSR_ALGO_NVLS_TREE:
        *intra = 1.0;
        *inter = 2.0 * floor_log2(g->domains);
        return;
    case TSR_ALGO_PAT:
        *inter = floor_log2(g->size) / PAT_OVERLAP;
        return;
    default:
        *inter = laps * (g->domains - 1.0);
        *intra = laps * (g->size - 1.0) - *inter;
    }
}

static double hops_s(const struct question *q)
{
    const struct algorithm_row *row = &rows[q->algorithm];
    double intra, inter;
    count_hops(q, &intra, &inter);
    double us = row->base_us[q->protocol] + inter * row->net_us[q->protocol] +
                intra * (q->model->pcie ? row->pci_us : row->nvlink_us)[q->protocol];
    if (q->algorithm == TSR_ALGO_PAT)
        us += q->group->size * PAT_MEMBER_US;
    return us * 1e-6 + inter * q->model->hop_s;
}

/* A broadcast is a pipeline along the ring; the edge back to the root is kept, which keeps members
 * alike and changes no time. A custom collective counts as one pass of the ring. */
static double ring_bytes(uint8_t kind, double n, double bytes)
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

/* Bytes per unit of an edge's share; the header of this file says what they stand for. */
static void sent_bytes(const struct question *q, double bytes, double out[2])
{
    const struct tsr__coll_group *g = q->group;
    double n = g->size, local = local_members(g), wire = ring_wire[q->protocol];
    double trees = g->domains > 2 ? 2.0 : 1.0;
    double ring = ring_bytes(q->kind, n, bytes) * wire;
    out[TSR__INTRA] = out[TSR__INTER] = ring;
    switch (q->algorithm) {
    case TSR_ALGO_TREE:
        out[TSR__INTRA] = g->domains > 1 ? 2.0 * bytes * wire : ring;
        out[TSR__INTER] = trees * bytes * wire;
        return;
    case TSR_ALGO_NVLS:
        out[TSR__INTRA] = (is_all_reduce(q->kind) ? (n + 1.0) / n : 1.0) * bytes;
        return;
    case TSR_ALGO_NVLS_TREE: /* (local-1)/local of it passes a port */
        out[TSR__INTRA] = (local + 1.0) / (local - 1.0) * bytes;
        out[TSR__INTER] = trees * bytes;
        return;
    default:
        return;
    }
}

/* Share of the rings' rate that the algorithm reaches over a medium. */
static double reach(const struct question *q, int medium, uint64_t bytes)
{
    double size = floor_log2(bytes / 64), nvls = q->model->nvls_share;
    double medium_sizes = size < N_TREE_SIZES ? tree_share[q->protocol][(int)size] : 1.0;
    switch (q->algorithm) {
    case TSR_ALGO_TREE:
        return TREE_SHARE * medium_sizes * ring_wire[q->protocol] /
               tree_wire[q->group->domains > 1][q->protocol];
    case TSR_ALGO_NVLS:
        return nvls;
    case TSR_ALGO_NVLS_TREE:
        return medium == TSR__INTRA ? nvls * NVLS_TREE_SHARE : 1.0;
    case TSR_ALGO_PAT:
        return PAT_SHARE;
    default:
        return 1.0;
    }
}

/* Seconds of the bytes alone on the fabric. Over PCIe both media share the GPU's port. */
static double wire_s(const struct question *q, const double bytes[2])
{
    const double *s_per_byte = q->group->s_per_byte[tsr__coll_pattern(q->kind)];
    double intra = bytes[TSR__INTRA] * s_per_byte[TSR__INTRA];
    double inter = bytes[TSR__INTER] * s_per_byte[TSR__INTER];
    if (q->model->pcie)
        return intra + inter;
    return intra > inter ? intra : inter;
}

/* Bytes/s of the bus that LL reaches at most; 0: no limit. */
static double ll_rate(const struct question *q)
{
    if (q->group->domains <= 1 && !q->inter)
        return q->model->ll_rate;
    return q->group->domains > 2 ? LL_RATE_MORE_NODES : LL_RATE_TWO_NODES;
}

/* Time in which no bytes cross the links: [Note: fill], and what LL lacks to the links' rate. */
static double idle_s(const struct question *q, double bytes, double wire)
{
    const struct tsr__coll_model *m = q->model;
    int medium = q->group->domains > 1 || q->inter ? TSR__INTER : TSR__INTRA;
    double fill = m->fill_s[medium] * m->latency_scale;
    if (q->protocol == TSR_PROTO_LL) {
        double rate = ll_rate(q);
        double least = rate > 0.0 ? ring_bytes(q->kind, q->group->size, bytes) / rate : 0.0;
        return wire > 0.0 && least > wire ? least - wire : 0.0;
    }
    return fill > 0.0 ? fill * FILL_SHARE * wire / (fill + FILL_SHARE * wire) : 0.0;
}

/* A rank's own part of the data: copied by a gather; read, summed and written by a reduction. */
static double own_s(const struct question *q, double bytes)
{
    bool copies = q->kind == TSR_ALL_GATHER || q->kind == TSR_ALL_TO_ALL;
    if (tsr__coll_pattern(q->kind) == TSR__P2P || q->kind == TSR_BROADCAST)
        return 0.0;
    return (copies ? 1.0 : 2.0) * bytes / q->group->size * q->model->own_s_per_byte;
}

/* Prices `bytes`; returns the seconds alone on the fabric. */
static double price(const struct question *q, uint64_t bytes, struct tsr__coll_choice *out)
{
    double size = (double)bytes;
    *out = (struct tsr__coll_choice){.algorithm = q->algorithm,
                                     .protocol = q->protocol,
                                     .takes_sms = q->algorithm != TSR_ALGO_COPY_ENGINE};
    sent_bytes(q, size, out->sent);
    for (int medium = TSR__INTRA; medium <= TSR__INTER; medium++)
        out->bytes[medium] = out->sent[medium] / reach(q, medium, bytes);
    double wire = wire_s(q, out->bytes);
    out->latency_s = (hops_s(q) + q->model->base_s) * q->model->latency_scale +
                     idle_s(q, size, wire) + own_s(q, size);
    return out->latency_s + wire;
}

/* ---- choice ------------------------------------------------------------------------------ */

/* The cheapest of what is allowed; false if there is none. On a tie the protocol with fewer bytes,
 * which is the later one. */
static bool cheapest(struct question *q, bool any_algorithm, bool any_protocol, uint64_t bytes,
                     struct tsr__coll_choice *best)
{
    const struct tsr__coll_model *m = q->model;
    double best_s = -1.0;
    for (int a = TSR_ALGO_RING; a < TSR_N_ALGORITHMS; a++)
        for (int p = TSR_PROTO_LL; p < N_PROTOCOLS; p++) {
            struct tsr__coll_choice choice;
            q->algorithm = (enum tsr_algorithm)a;
            q->protocol = (enum tsr_protocol)p;
            if ((!any_algorithm && q->algorithm != m->algorithm) ||
                (!any_protocol && q->protocol != m->protocol) ||
                !exists(q, q->algorithm == m->algorithm, q->protocol == m->protocol))
                continue;
            double seconds = price(q, bytes, &choice);
            if (best_s >= 0.0 && seconds > best_s)
                continue;
            best_s = seconds;
            *best = choice;
        }
    return best_s >= 0.0;
}

/* ---- timed ------------------------------------------------------------------------------- */

static const struct tsr_measured_collective *find_timed(const struct question *q)
{
    const struct tsr_cluster *c = q->model->timed;
    for (uint32_t i = 0; c && i < c->n_collectives && q->group->domains == 1; i++)
        if (c->collectives[i].kind == q->kind && c->collectives[i].ranks == q->group->size)
            return &c->collectives[i];
    return NULL;
}

/* Between two sizes on the line through their logarithms. Below the smallest a collective takes as
 * long as that one; above the largest the time grows with the bytes. */
static double timed_seconds(const struct tsr_measured_collective *t, double bytes)
{
    double at = bytes > 1.0 ? log(bytes) : 0.0;
    uint32_t i = 0, last = t->n - 1;
    if (at <= (double)t->bytes[0])
        return exp((double)t->seconds[0]);
    if (at >= (double)t->bytes[last])
        return exp((double)t->seconds[last] + at - (double)t->bytes[last]);
    while (at > (double)t->bytes[i + 1])
        i++;
    double part = (at - (double)t->bytes[i]) / ((double)t->bytes[i + 1] - (double)t->bytes[i]);
    return exp((double)t->seconds[i] + part * ((double)t->seconds[i + 1] - (double)t->seconds[i]));
}

/* All of it is one delay: what it shares with others is in the time. False: it was not timed. */
static bool choose_timed(struct question *q, uint64_t bytes, struct tsr__coll_choice *out)
{
    const struct tsr_measured_collective *timed = find_timed(q);
    if (!timed)
        return false;
    q->algorithm = TSR_ALGO_RING;
    q->protocol = TSR_PROTO_SIMPLE;
    *out = (struct tsr__coll_choice){.algorithm = TSR_ALGO_RING,
                                     .protocol = TSR_PROTO_SIMPLE,
                                     .latency_s = timed_seconds(timed, (double)bytes),
                                     .takes_sms = true};
    sent_bytes(q, (double)bytes, out->sent);
    return true;
}

struct tsr__coll_choice tsr__coll_choose(const struct tsr__coll_model *model,
                                         const struct tsr__coll_group *group, uint8_t kind,
                                         uint64_t bytes, uint64_t tuned, bool inter)
{
    struct question q = {.model = model, .group = group, .kind = kind, .inter = inter};
    struct tsr__coll_choice choice;
    if (choose_timed(&q, bytes, &choice))
        return choice;
    bool any_algorithm = model->algorithm == TSR_ALGO_AUTO;
    bool any_protocol = model->protocol == TSR_PROTO_AUTO;
    bool found = cheapest(&q, any_algorithm, any_protocol, tuned, &choice) ||
                 cheapest(&q, any_algorithm, true, tuned, &choice) ||
                 cheapest(&q, true, any_protocol, tuned, &choice);
    TSR_CHECK(found);
    q.algorithm = choice.algorithm;
    q.protocol = choice.protocol;
    price(&q, bytes, &choice);
    return choice;
}
