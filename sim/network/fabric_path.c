/* fabric_path.c: the links between two GPUs, in order: out through ports, PCIe tree and adapter, up
 * and down the tiers, in again; and the rings over them. A fabric is only read here.
 */
#include "sim/network/fabric.h"

#include <string.h>

struct path {
    uint32_t *links, n;
};

static void push(struct path *path, const struct tsr__fabric *f, int role, uint32_t index)
{
    path->links[path->n++] = f->first[role] + index;
}

static tsr_status no_rate(const struct tsr__fabric *f, const char *key, uint32_t src, uint32_t dst)
{
    return tsr_fail(TSR_ECONFIG,
                    "%s: node %s: key \"%s\": found null (unknown), allowed a number: ranks %u and "
                    "%u communicate",
                    f->cluster->path, f->cluster->node_name, key, src, dst);
}

/* ---- adapters -------------------------------------------------------------------------------- */

static uint32_t own_port(const struct tsr__fabric *f, uint32_t local)
{
    const struct tsr_places *places = &f->cluster->places;
    return places->nics_listed
               ? places->nic_of_gpu[local]
               : (uint32_t)((uint64_t)local * f->nic_ports_per_node / f->gpus_per_node);
}

static bool is_dead(const struct tsr__fabric *f, enum tsr_link_class class, uint32_t index)
{
    const struct tsr_conditions *c = f->conditions;
    for (size_t i = 0; i < c->faults.n_links; i++)
        if (c->faults.links[i].link == class && c->faults.links[i].index == index &&
            c->faults.links[i].share <= 0.0)
            return true;
    return false;
}

static tsr_status dead(const struct tsr__fabric *f, enum tsr_link_class class, uint32_t index,
                       uint32_t src, uint32_t dst)
{
    bool rails = class == TSR_LINK_NIC && f->nic_ports_per_node > 1;
    return tsr_fail(TSR_ECONFIG,
                    "faults: found %s %u dead, which ranks %u and %u communicate over: their "
                    "collectives fail; allowed: a share above 0%s",
                    tsr_link_class_name(class), index, src, dst,
                    rails && !f->conditions->reroute ? ", or sim.reroute: true"
                    : rails                          ? ", or one live adapter in the node"
                                                     : "");
}

/* The adapter that a rank's bytes take, counted over the cluster. */
static tsr_status nic_port(const struct tsr__fabric *f, uint32_t rank, uint32_t peer, uint32_t *out)
{
    uint32_t n = f->nic_ports_per_node, node = rank / f->gpus_per_node;
    uint32_t mine = own_port(f, rank % f->gpus_per_node);
    for (uint32_t i = 0; i < (f->conditions->reroute ? n : 1); i++) {
        *out = node * n + (mine + i) % n;
        if (!is_dead(f, TSR_LINK_NIC, *out))
            return TSR_OK;
    }
    return dead(f, TSR_LINK_NIC, node * n + mine, rank, peer);
}

/* ---- inside a node --------------------------------------------------------------------------- */

/* From one PCIe switch of a node to another, or through the root of one and back. */
static void pcie_tree(const struct tsr__fabric *f, uint32_t node, uint32_t from, uint32_t to,
                      struct path *path)
{
    const struct tsr_places *p = &f->cluster->places;
    push(path, f, TSR__SWITCH_OUT, node * p->switches + from);
    if (p->sockets && p->socket_of_switch[from] != p->socket_of_switch[to]) {
        push(path, f, TSR__SOCKET_OUT, node * p->sockets + p->socket_of_switch[from]);
        push(path, f, TSR__SOCKET_IN, node * p->sockets + p->socket_of_switch[to]);
    }
    push(path, f, TSR__SWITCH_IN, node * p->switches + to);
}

static void inside(const struct tsr__fabric *f, uint32_t src, uint32_t dst, struct path *path)
{
    const struct tsr_places *p = &f->cluster->places;
    push(path, f, TSR__PORT_OUT, src);
    if (f->pcie && p->switches) {
        uint32_t from = p->switch_of_gpu[src % f->gpus_per_node];
        uint32_t to = p->switch_of_gpu[dst % f->gpus_per_node];
        if (from != to || !p->peer_to_peer)
            pcie_tree(f, src / f->gpus_per_node, from, to, path);
    }
    push(path, f, TSR__PORT_IN, dst);
}

/* Between a GPU and its adapter: on NVSwitch nodes they are neighbours with a wide link. */
static void to_nic(const struct tsr__fabric *f, uint32_t rank, uint32_t nic, bool out,
                   struct path *path)
{
    const struct tsr_places *p = &f->cluster->places;
    if (!f->pcie)
        return;
    uint32_t gpu_at = p->switch_of_gpu[rank % f->gpus_per_node];
    uint32_t nic_at = p->switch_of_nic[nic % f->nic_ports_per_node];
    if (out)
        push(path, f, TSR__PORT_OUT, rank);
    if (p->switches && gpu_at != nic_at)
        pcie_tree(f, rank / f->gpus_per_node, out ? gpu_at : nic_at, out ? nic_at : gpu_at, path);
    if (!out)
        push(path, f, TSR__PORT_IN, rank);
}

/* ---- between nodes --------------------------------------------------------------------------- */

static uint32_t tier_group(const struct tsr__fabric *f, uint32_t tier, uint32_t rank, uint32_t nic)
{
    const struct tsr_tier *t = &f->tiers[tier];
    return rank / t->below_gpus * t->rails + nic % f->nic_ports_per_node % t->rails;
}

/* From host to host of the user's platform. */
static tsr_status platform_route(const struct tsr__fabric *f, uint32_t src, uint32_t dst,
                                 struct path *path)
{
    const uint32_t *hops;
    uint32_t n = tsr__routes_get(&f->routes, src / f->gpus_per_node, dst / f->gpus_per_node, &hops);
    if (n > TSR__MAX_HOPS)
        return tsr_fail(TSR_ECONFIG, "%s: found a route of %u links, allowed up to %d",
                        f->cluster->platform, n, (int)TSR__MAX_HOPS);
    for (uint32_t i = 0; i < n; i++)
        push(path, f, TSR__PLATFORM, hops[i]);
    return TSR_OK;
}

/* The hosts of a platform have what links them in their routes; a node file may add adapters. */
static tsr_status over_platform(const struct tsr__fabric *f, uint32_t src, uint32_t dst,
                                struct path *path)
{
    uint32_t from = 0, to = 0;
    bool nics = f->nic_ports_per_node && f->capacity[TSR__NIC_OUT] > 0.0;
    if (nics) {
        TSR_TRY(nic_port(f, src, dst, &from));
        TSR_TRY(nic_port(f, dst, src, &to));
        to_nic(f, src, from, true, path);
        push(path, f, TSR__NIC_OUT, from);
    }
    TSR_TRY(platform_route(f, src, dst, path));
    if (nics) {
        push(path, f, TSR__NIC_IN, to);
        to_nic(f, dst, to, false, path);
    }
    return TSR_OK;
}

static tsr_status between(const struct tsr__fabric *f, uint32_t src, uint32_t dst,
                          struct path *path)
{
    uint32_t from, to;
    if (f->routes.n_hosts)
        return over_platform(f, src, dst, path);
    if (!f->nic_ports_per_node || (!f->ideal && f->capacity[TSR__NIC_OUT] <= 0.0))
        return no_rate(f, "nics.bandwidth_bytes_per_s_per_direction", src, dst);
    TSR_TRY(nic_port(f, src, dst, &from));
    TSR_TRY(nic_port(f, dst, src, &to));
    to_nic(f, src, from, true, path);
    push(path, f, TSR__NIC_OUT, from);
    for (uint32_t i = 0; i < f->n_tiers; i++)
        if (tier_group(f, i, src, from) != tier_group(f, i, dst, to))
            push(path, f, TSR__TIER_OUT + (int)i, tier_group(f, i, src, from));
    for (uint32_t i = f->n_tiers; i-- > 0;)
        if (tier_group(f, i, src, from) != tier_group(f, i, dst, to))
            push(path, f, TSR__TIER_IN + (int)i, tier_group(f, i, dst, to));
    push(path, f, TSR__NIC_IN, to);
    to_nic(f, dst, to, false, path);
    return TSR_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* A dead adapter was avoided or refused before. */
static tsr_status check_alive(const struct tsr__fabric *f, uint32_t src, uint32_t dst,
                              const struct path *path)
{
    for (uint32_t i = 0; i < path->n && f->conditions->faults.n_links; i++) {
        enum tsr__role role = tsr__link_role(f, path->links[i]);
        uint32_t index = path->links[i] - f->first[role];
        bool port = role == TSR__PORT_OUT || role == TSR__PORT_IN;
        bool uplink = role == TSR__TIER_OUT || role == TSR__TIER_IN;
        if (port && is_dead(f, TSR_LINK_PORT, index))
            return dead(f, TSR_LINK_PORT, index, src, dst);
        if (uplink && is_dead(f, TSR_LINK_UPLINK, index))
            return dead(f, TSR_LINK_UPLINK, index, src, dst);
    }
    return TSR_OK;
}

/* The GPU of the cluster that a rank has. */
static uint32_t gpu_of(const struct tsr__fabric *f, uint32_t rank)
{
    return f->node_of
               ? f->node_of[rank / f->gpus_per_node] * f->gpus_per_node + rank % f->gpus_per_node
               : rank;
}

tsr_status tsr__fabric_path(const struct tsr__fabric *f, uint32_t src, uint32_t dst,
                            uint32_t links[TSR__MAX_PATH], uint32_t *n, enum tsr__medium *medium)
{
    struct path path = {.links = links};
    *n = 0;
    src = gpu_of(f, src);
    dst = gpu_of(f, dst);
    *medium = src / f->domain_gpus == dst / f->domain_gpus ? TSR__INTRA : TSR__INTER;
    if (!f->ideal && f->capacity[TSR__PORT_OUT] <= 0.0 && (*medium == TSR__INTRA || f->pcie))
        return no_rate(f, "intra_node.bandwidth_bytes_per_s_per_gpu_per_direction", src, dst);
    if (*medium == TSR__INTER)
        TSR_TRY(between(f, src, dst, &path));
    else
        inside(f, src, dst, &path);
    TSR_TRY(check_alive(f, src, dst, &path));
    *n = path.n;
    return TSR_OK;
}

tsr_status tsr__fabric_host_link(const struct tsr__fabric *f, uint32_t rank, bool to_device,
                                 uint32_t *link)
{
    enum tsr__role port = to_device ? TSR__PORT_IN : TSR__PORT_OUT;
    enum tsr__role host = to_device ? TSR__HOST_IN : TSR__HOST_OUT;
    *link = f->first[f->pcie ? port : host] + gpu_of(f, rank);
    if (!f->ideal && f->capacity[f->pcie ? port : host] <= 0.0)
        return tsr_fail(TSR_ECONFIG,
                        "%s: key \"pcie.bandwidth_bytes_per_s_per_direction\": found null "
                        "(unknown), allowed a number: a copy between host and device needs it",
                        f->cluster->gpu.path);
    return TSR_OK;
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* Rings over rails: which member sends to which, and how much of a collective. */

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
