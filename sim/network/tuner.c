/* tuner.c: what each algorithm and protocol of NCCL costs a collective, and which is taken. The
 * algorithms are rows (algorithms/); what is here holds for all of them.
 */
#include "sim/network/tuner.h"

#include <math.h>

static const struct tsr__algorithm *const algorithms[TSR_N_ALGORITHMS] = {
#define X(id, word, row) [TSR_ALGO_##id] = &tsr__algorithm_##row,
    TSR_ALGORITHMS(X)
#undef X
};

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

/* ---- one algorithm and protocol ---------------------------------------------------------- */

static bool exists(const struct tsr__question *q, bool algorithm_forced, bool protocol_forced)
{
    const struct tsr__algorithm *a = algorithms[q->algorithm];
    if (a->base_us[q->protocol] < 0.0 || !a->exists(q, algorithm_forced))
        return false;
    /* LL128 needs stores of 128 bytes to arrive whole: not over PCIe. */
    return q->protocol != TSR_PROTO_LL128 || !q->model->pcie || protocol_forced;
}

/* Hops over each medium, one after the other. What does not go along the ring has one. */
static void count_hops(const struct tsr__question *q, double *intra, double *inter)
{
    bool far = q->kind == TSR_ALL_TO_ALL ? q->group->domains > 1 : q->inter;
    *intra = *inter = 0.0;
    if (tsr__coll_pattern(q->kind) == TSR__RING || q->algorithm == TSR_ALGO_COPY_ENGINE)
        algorithms[q->algorithm]->count_hops(q, intra, inter);
    else
        *(far ? inter : intra) = 1.0;
}

static double hops_s(const struct tsr__question *q)
{
    const struct tsr__algorithm *a = algorithms[q->algorithm];
    double intra, inter;
    count_hops(q, &intra, &inter);
    double us = a->base_us[q->protocol] + inter * a->net_us[q->protocol] +
                intra * (q->model->pcie ? a->pci_us : a->nvlink_us)[q->protocol];
    us += q->group->size * a->member_us;
    return us * 1e-6 + inter * q->model->hop_s;
}

/* Bytes per unit of an edge's share (algorithm.h). */
static void sent_bytes(const struct tsr__question *q, double bytes, double out[2])
{
    const struct tsr__algorithm *a = algorithms[q->algorithm];
    out[TSR__INTRA] = out[TSR__INTER] =
        tsr__ring_bytes(q->kind, q->group->size, bytes) * tsr__ring_wire[q->protocol];
    if (a->count_bytes)
        a->count_bytes(q, bytes, out);
}

static double reach(const struct tsr__question *q, int medium, uint64_t bytes)
{
    const struct tsr__algorithm *a = algorithms[q->algorithm];
    return a->reach ? a->reach(q, medium, bytes) : 1.0;
}

/* Seconds of the bytes alone on the fabric. Over PCIe both media share the GPU's port. */
static double wire_s(const struct tsr__question *q, const double bytes[2])
{
    const double *s_per_byte = q->group->s_per_byte[tsr__coll_pattern(q->kind)];
    double intra = bytes[TSR__INTRA] * s_per_byte[TSR__INTRA];
    double inter = bytes[TSR__INTER] * s_per_byte[TSR__INTER];
    if (q->model->pcie)
        return intra + inter;
    return intra > inter ? intra : inter;
}

/* Bytes/s of the bus that LL reaches at most; 0: no limit. */
static double ll_rate(const struct tsr__question *q)
{
    if (q->group->domains <= 1 && !q->inter)
        return q->model->ll_rate;
    return q->group->domains > 2 ? LL_RATE_MORE_NODES : LL_RATE_TWO_NODES;
}

/* Time in which no bytes cross the links: [Note: fill], and what LL lacks to the links' rate. */
static double idle_s(const struct tsr__question *q, double bytes, double wire)
{
    const struct tsr__coll_model *m = q->model;
    int medium = q->group->domains > 1 || q->inter ? TSR__INTER : TSR__INTRA;
    double fill = m->fill_s[medium] * m->latency_scale;
    if (q->protocol == TSR_PROTO_LL) {
        double rate = ll_rate(q);
        double least = rate > 0.0 ? tsr__ring_bytes(q->kind, q->group->size, bytes) / rate : 0.0;
        return wire > 0.0 && least > wire ? least - wire : 0.0;
    }
    return fill > 0.0 ? fill * FILL_SHARE * wire / (fill + FILL_SHARE * wire) : 0.0;
}

/* A rank's own part of the data: copied by a gather; read, summed and written by a reduction. */
static double own_s(const struct tsr__question *q, double bytes)
{
    bool copies = q->kind == TSR_ALL_GATHER || q->kind == TSR_ALL_TO_ALL;
    if (tsr__coll_pattern(q->kind) == TSR__P2P || q->kind == TSR_BROADCAST)
        return 0.0;
    return (copies ? 1.0 : 2.0) * bytes / q->group->size * q->model->own_s_per_byte;
}

/* Prices `bytes`; returns the seconds alone on the fabric. */
static double price(const struct tsr__question *q, uint64_t bytes, struct tsr__coll_choice *out)
{
    double size = (double)bytes;
    *out = (struct tsr__coll_choice){.algorithm = q->algorithm,
                                     .protocol = q->protocol,
                                     .takes_sms = algorithms[q->algorithm]->takes_sms};
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
static bool cheapest(struct tsr__question *q, bool any_algorithm, bool any_protocol, uint64_t bytes,
                     struct tsr__coll_choice *best)
{
    const struct tsr__coll_model *m = q->model;
    double best_s = -1.0;
    for (int a = TSR_ALGO_RING; a < TSR_N_ALGORITHMS; a++)
        for (int p = TSR_PROTO_LL; p < TSR__N_PROTOCOLS; p++) {
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

static const struct tsr_measured_collective *find_timed(const struct tsr__question *q)
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
static bool choose_timed(struct tsr__question *q, uint64_t bytes, struct tsr__coll_choice *out)
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
    struct tsr__question q = {.model = model, .group = group, .kind = kind, .inter = inter};
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

unsigned tsr__coll_buffers(enum tsr_algorithm algorithm)
{
    return algorithms[algorithm]->buffers;
}
