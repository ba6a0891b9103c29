/* collective.c: rings over rails, and NCCL's protocols (collective.h).
 *
 * Constants: experiments/clusters/nccl-tuner-constants.json, that is NVIDIA/nccl
 * src/graph/tuning.cc at commit 5067397c, algorithm ring. They rank protocols in NCCL; here they
 * are also the latencies.
 */
#include "collective.h"

/* Microseconds: once per collective, and per step over each medium. Wire: bytes sent per byte of
 * data. LL sends a 4-byte flag with 4 bytes of data; LL128 8 bytes of flag with 120 of data. */
struct protocol_row {
    double base_us, nvlink_us, pci_us, net_us, wire;
};
static const struct protocol_row rows[] = {
    [TSR_PROTO_LL] = {6.6, 0.6, 1.0, 2.7, 2.0},
    [TSR_PROTO_LL128] = {14.0, 1.9, 2.5, 4.0, 128.0 / 120.0},
    [TSR_PROTO_SIMPLE] = {8.4, 3.4, 5.7, 14.0, 1.0},
};

/* ---- rings ------------------------------------------------------------------------------- */

/* Members of one domain: [first, first+n) of the member list. */
struct block {
    uint32_t first, n;
};

static uint32_t next_block(const struct tsr__fabric *f, const uint32_t *members, uint32_t n,
                           uint32_t at, struct block *block)
{
    uint32_t domain = members[at] / f->domain_gpus, end = at;
    while (end < n && members[end] / f->domain_gpus == domain)
        end++;
    *block = (struct block){at, end - at};
    return end;
}

static uint32_t smallest_block(const struct tsr__fabric *f, const uint32_t *members, uint32_t n)
{
    uint32_t least = n;
    struct block block;
    for (uint32_t at = 0; at < n;) {
        at = next_block(f, members, n, at, &block);
        least = block.n < least ? block.n : least;
    }
    return least;
}

/* Where ring j of `rings` enters and leaves the block at position `index`. Even blocks are walked
 * upwards, odd ones downwards: a ring then leaves a node on the rail on which it enters the next.
 */
static uint32_t ring_door(const struct block *block, uint32_t index, uint32_t j, uint32_t rings,
                          bool entry)
{
    uint32_t at = (uint32_t)((uint64_t)j * block->n / rings);
    uint32_t before = (at + block->n - 1) % block->n;
    return block->first + (entry == (index % 2 == 0) ? at : before);
}

/* Flows inside a block: each member sends to its neighbour for every ring that does not leave the
 * node at it. */
static size_t inside_edges(const uint32_t *members, const struct block *block, uint32_t index,
                           uint32_t rings, struct tsr__edge *edges)
{
    size_t n = 0;
    for (uint32_t i = 0; i < block->n && block->n > 1; i++) {
        uint32_t leaving = 0;
        for (uint32_t j = 0; j < rings; j++)
            leaving += ring_door(block, index, j, rings, false) == block->first + i;
        uint32_t step = index % 2 == 0 ? 1 : block->n - 1;
        uint32_t to = (i + step) % block->n;
        if (leaving < rings)
            edges[n++] = (struct tsr__edge){members[block->first + i], members[block->first + to],
                                            (double)(rings - leaving) / rings};
    }
    return n;
}

size_t tsr__ring_max_edges(uint32_t n)
{
    return 2 * (size_t)n;
}

size_t tsr__ring_edges(const struct tsr__fabric *f, const uint32_t *members, uint32_t n,
                       struct tsr__edge *edges)
{
    size_t n_edges = 0;
    uint32_t rings = smallest_block(f, members, n), index = 0;
    struct block first, block, next;
    uint32_t at = next_block(f, members, n, 0, &first);
    if (at == n) { /* one domain: every ring takes the same way */
        for (uint32_t i = 0; i < n; i++)
            edges[n_edges++] = (struct tsr__edge){members[i], members[(i + 1) % n], 1.0};
        return n_edges;
    }
    for (block = first;; block = next, index++) {
        bool last = at == n;
        if (last)
            next = first;
        else
            at = next_block(f, members, n, at, &next);
        n_edges += inside_edges(members, &block, index, rings, edges + n_edges);
        for (uint32_t j = 0; j < rings; j++) {
            uint32_t out = ring_door(&block, index, j, rings, false);
            uint32_t in = ring_door(&next, last ? 0 : index + 1, j, rings, true);
            edges[n_edges++] = (struct tsr__edge){members[out], members[in], 1.0 / rings};
        }
        if (last)
            return n_edges;
    }
}

/* ---- protocols --------------------------------------------------------------------------- */

enum tsr__pattern tsr__coll_pattern(uint8_t kind)
{
    if (kind == TSR_SEND || kind == TSR_RECV)
        return TSR__P2P;
    return kind == TSR_ALL_TO_ALL ? TSR__PAIRS : TSR__RING;
}

/* A broadcast is a pipeline along the ring; the edge back to the root is kept, which keeps members
 * alike and changes no time. A custom collective counts as one pass of the ring. */
double tsr__coll_bytes(uint8_t kind, uint32_t size, uint64_t bytes)
{
    double n = size, s = (double)bytes;
    switch (kind) {
    case TSR_ALL_REDUCE:
        return 2.0 * (n - 1.0) / n * s;
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_CUSTOM_COLLECTIVE:
        return (n - 1.0) / n * s;
    default: /* broadcast, all-to-all (shares are 1/n), send */
        return s;
    }
}

/* Steps of the ring, and how many of them cross the network. */
static void count_steps(const struct tsr__coll_group *group, uint8_t kind, bool inter,
                        double *steps, double *net)
{
    double laps = kind == TSR_ALL_REDUCE ? 2.0 : 1.0;
    if (tsr__coll_pattern(kind) == TSR__RING) {
        *steps = laps * (group->size - 1.0);
        *net = laps * (group->domains - 1.0);
        return;
    }
    *steps = 1.0;
    *net = (kind == TSR_ALL_TO_ALL ? group->domains > 1 : inter) ? 1.0 : 0.0;
}

struct tsr__coll_choice tsr__coll_choose(const struct tsr__coll_group *group, uint8_t kind,
                                         uint64_t bytes, bool inter,
                                         const struct tsr_sim_options *options)
{
    struct tsr__coll_choice best = {.protocol = TSR_PROTO_AUTO};
    double steps, net, best_s = 0.0;
    double wire_s =
        tsr__coll_bytes(kind, group->size, bytes) * group->s_per_byte[tsr__coll_pattern(kind)];
    count_steps(group, kind, inter, &steps, &net);
    for (int p = TSR_PROTO_LL; p <= TSR_PROTO_SIMPLE; p++) {
        const struct protocol_row *row = &rows[p];
        double inside_us = group->pcie ? row->pci_us : row->nvlink_us;
        double us = row->base_us + (steps - net) * inside_us + net * row->net_us;
        double latency_s = us * 1e-6 * options->latency_scale;
        double time_s = latency_s + row->wire * wire_s;
        if (options->protocol != TSR_PROTO_AUTO && (int)options->protocol != p)
            continue;
        /* On a tie the protocol with fewer bytes, which is the later one. */
        if (best.protocol == TSR_PROTO_AUTO || time_s <= best_s) {
            best = (struct tsr__coll_choice){(enum tsr_protocol)p, latency_s, row->wire};
            best_s = time_s;
        }
    }
    return best;
}
