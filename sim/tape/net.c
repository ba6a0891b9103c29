/* net.c: lists the flows of a job, communicator by communicator, with the ways that they take. */
#include "sim/tape/net.h"

#include <stdlib.h>
#include <string.h>

#include "sim/network/fabric.h"
#include "sim/tape/tape.h"

enum { MAX_FLOWS = 1 << 23 };

static tsr_status no_memory(void)
{
    return tsr_no_memory("flows of a job");
}

struct tsr__geometry tsr__net_geometry(const struct tsr__net *net, uint32_t geometry)
{
    if (geometry == net->host_geometry || geometry == net->traffic_geometry)
        return (struct tsr__geometry){.size = 1, .stride = 1};
    return net->tapes->comms.geometries[geometry];
}

/* size x stride ranks in a row make `stride` groups, one beginning at each of the first ranks. */
uint32_t tsr__net_group(const struct tsr__net *net, uint32_t geometry, uint32_t rank)
{
    struct tsr__geometry g = tsr__net_geometry(net, geometry);
    return net->first_group[geometry] + rank / (g.size * g.stride) * g.stride + rank % g.stride;
}

uint32_t tsr__net_base(const struct tsr__net *net, uint32_t geometry, uint32_t i)
{
    struct tsr__geometry g = tsr__net_geometry(net, geometry);
    return i / g.stride * g.size * g.stride + i % g.stride;
}

double tsr__net_slowness(const struct tsr__net *net, uint32_t rank)
{
    const struct tsr_sim_options *o = net->options;
    double one = o->slow_factor != 0.0 && rank == o->slow_rank ? o->slow_factor : 1.0;
    return one * tsr_slowness(&o->conditions, rank);
}

uint32_t tsr__net_only_slow(const struct tsr__net *net)
{
    uint32_t found = TSR_NO_ID;
    for (uint32_t rank = 0; rank < net->job->world; rank++) {
        if (!tsr__net_is_slow(net, rank))
            continue;
        if (found != TSR_NO_ID)
            return TSR_NO_ID;
        found = rank;
    }
    return found;
}

static tsr_status push(struct tsr__net *net, struct tsr__net_flow flow)
{
    if (net->n_flows >= MAX_FLOWS)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "the collectives of this job make more than %u flows between %u ranks; "
                        "allowed: %sa smaller world",
                        (unsigned)MAX_FLOWS, (unsigned)net->job->world,
                        net->options->fold ? "" : "sim.fold: true, or ");
    return TSR_PUSH(net->flows, net->n_flows, net->cap, flow) ? TSR_OK : no_memory();
}

static tsr_status add(struct tsr__net *net, struct tsr__net_flow flow)
{
    enum tsr__medium medium;
    uint32_t n_links;
    TSR_TRY(tsr__fabric_path(net->fabric, flow.src, flow.dst, flow.links, &n_links, &medium));
    flow.n_links = (uint8_t)n_links;
    flow.medium = (uint8_t)medium;
    return push(net, flow);
}

static tsr_status add_ring(struct tsr__net *net, uint32_t group, const uint32_t *members,
                           uint32_t n, struct tsr__edge *edges)
{
    size_t n_edges = tsr__ring_edges(net->fabric, members, n, edges);
    for (size_t i = 0; i < n_edges; i++)
        TSR_TRY(add(net, (struct tsr__net_flow){.group = group,
                                                .src = edges[i].src,
                                                .dst = edges[i].dst,
                                                .pattern = TSR__RING,
                                                .share = edges[i].share}));
    return TSR_OK;
}

/* Each member keeps its own n-th of the bytes and sends one to every other. */
static tsr_status add_pairs(struct tsr__net *net, uint32_t group, const uint32_t *members,
                            uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            if (i != k)
                TSR_TRY(add(net, (struct tsr__net_flow){.group = group,
                                                        .src = members[i],
                                                        .dst = members[k],
                                                        .pattern = TSR__PAIRS,
                                                        .share = 1.0 / n}));
    return TSR_OK;
}

/* Only the pairs that some SEND names: all of them would be too many flows on a large job. One to
 * the sender itself crosses no link. */
static tsr_status add_sends(struct tsr__net *net, uint32_t geometry, uint32_t group,
                            const uint32_t *members, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct tsr__tape *tape = &net->tapes->items[net->job->class_of[members[i]]];
        for (size_t k = 0; k < tape->n_sends; k++) {
            uint16_t peer = tape->sends[k].peer;
            if (tape->sends[k].geometry != geometry || peer == i)
                continue;
            TSR_TRY(add(net, (struct tsr__net_flow){.group = group,
                                                    .src = members[i],
                                                    .dst = members[peer],
                                                    .pattern = TSR__P2P,
                                                    .from_i = (uint16_t)i,
                                                    .to_i = peer,
                                                    .share = 1.0}));
        }
    }
    return TSR_OK;
}

static tsr_status add_host_copies(struct tsr__net *net)
{
    for (uint32_t rank = 0; rank < net->job->world; rank++)
        for (int to_device = 0; to_device < 2; to_device++) {
            struct tsr__net_flow flow = {
                .group = tsr__net_group(net, net->host_geometry, rank),
                .src = rank,
                .dst = rank,
                .pattern = TSR__HOST_PATTERN,
                .to_device = to_device,
                .share = 1.0,
                .n_links = 1,
            };
            TSR_TRY(tsr__fabric_host_link(net->fabric, rank, to_device, &flow.links[0]));
            TSR_TRY(push(net, flow));
        }
    return TSR_OK;
}

/* Flows are ordered by group: rank by rank. */
static tsr_status add_traffic(struct tsr__net *net)
{
    const struct tsr_traffic_list *list = &net->options->conditions.traffic;
    if (list->n > UINT16_MAX)
        return tsr_fail(TSR_ECONFIG, "traffic: found %zu messages, allowed up to %u", list->n,
                        (unsigned)UINT16_MAX);
    for (uint32_t rank = 0; rank < net->job->world; rank++)
        for (size_t i = 0; i < list->n; i++)
            if (list->items[i].from == rank)
                TSR_TRY(add(net, (struct tsr__net_flow){
                                     .group = tsr__net_group(net, net->traffic_geometry, rank),
                                     .src = rank,
                                     .dst = list->items[i].to,
                                     .pattern = TSR__TRAFFIC_PATTERN,
                                     .from_i = (uint16_t)i,
                                     .share = 1.0}));
    return TSR_OK;
}

static tsr_status add_geometry(struct tsr__net *net, uint32_t geometry, uint32_t *members,
                               struct tsr__edge *edges)
{
    struct tsr__geometry g = tsr__net_geometry(net, geometry);
    for (uint32_t i = 0; i < net->job->world / g.size; i++) {
        uint32_t group = net->first_group[geometry] + i, base = tsr__net_base(net, geometry, i);
        for (uint32_t k = 0; k < g.size; k++)
            members[k] = base + k * g.stride;
        if (g.used[TSR__RING])
            TSR_TRY(add_ring(net, group, members, g.size, edges));
        if (g.used[TSR__PAIRS])
            TSR_TRY(add_pairs(net, group, members, g.size));
        if (g.used[TSR__P2P])
            TSR_TRY(add_sends(net, geometry, group, members, g.size));
    }
    return TSR_OK;
}

static tsr_status number_groups(struct tsr__net *net)
{
    net->n_geometries = (uint32_t)net->tapes->comms.n_geometries;
    for (uint32_t i = 0; i < net->tapes->n; i++)
        if (net->tapes->items[i].host_copies)
            net->host_geometry = net->n_geometries;
    if (net->host_geometry != TSR_NO_ID)
        net->n_geometries++;
    if (net->options->conditions.traffic.n)
        net->traffic_geometry = net->n_geometries++;
    net->first_group = calloc(net->n_geometries + 1u, sizeof *net->first_group);
    if (!net->first_group)
        return no_memory();
    for (uint32_t g = 0; g < net->n_geometries; g++)
        net->first_group[g + 1] =
            net->first_group[g] + net->job->world / tsr__net_geometry(net, g).size;
    return TSR_OK;
}

static tsr_status add_all(struct tsr__net *net, uint32_t *members, struct tsr__edge *edges)
{
    for (uint32_t g = 0; g < net->n_geometries; g++) {
        if (g == net->host_geometry)
            TSR_TRY(add_host_copies(net));
        else if (g == net->traffic_geometry)
            TSR_TRY(add_traffic(net));
        else
            TSR_TRY(add_geometry(net, g, members, edges));
    }
    return TSR_OK;
}

tsr_status tsr__net_build(const struct tsr__fabric *fabric, const struct tsr__tapes *tapes,
                          const struct tsr_sim_job *job, const struct tsr_sim_options *options,
                          struct tsr__net *net)
{
    *net = (struct tsr__net){.fabric = fabric,
                             .tapes = tapes,
                             .job = job,
                             .options = options,
                             .host_geometry = TSR_NO_ID,
                             .traffic_geometry = TSR_NO_ID};
    uint32_t *members = malloc(((size_t)job->world + 1) * sizeof *members);
    struct tsr__edge *edges = malloc((tsr__ring_max_edges(job->world) + 1) * sizeof *edges);
    tsr_status status;
    TSR_GOTO(done, members && edges ? TSR_OK : no_memory());
    TSR_GOTO(done, number_groups(net));
    TSR_GOTO(done, add_all(net, members, edges));
done:
    free(members);
    free(edges);
    if (status != TSR_OK)
        tsr__net_fini(net);
    return status;
}

void tsr__net_fini(struct tsr__net *net)
{
    free(net->first_group);
    free(net->flows);
    *net = (struct tsr__net){0};
}

/* ---- comms ----------------------------------------------------------------------------------- */

/* The job-wide list of communicators: which entries of the classes' tables are the same
 * one. */

static uint32_t geometry_of(struct tsr__comms *comms, uint32_t size, uint32_t stride)
{
    for (size_t i = 0; i < comms->n_geometries; i++)
        if (comms->geometries[i].size == size && comms->geometries[i].stride == stride)
            return (uint32_t)i;
    struct tsr__geometry made = {.size = size, .stride = stride};
    if (!TSR_PUSH(comms->geometries, comms->n_geometries, comms->geometry_cap, made))
        return TSR_NO_ID;
    return (uint32_t)comms->n_geometries - 1;
}

static bool same_name(const char *a, const char *b)
{
    return !strcmp(a ? a : "", b ? b : "");
}

/* How many communicators before `index` in the table look the same. */
static uint32_t nth_of(const struct tsr_tables *tables, uint16_t index)
{
    const struct tsr_comm *comm = &tables->comms[index];
    uint32_t nth = 0;
    for (uint16_t i = 0; i < index; i++)
        nth += tables->comms[i].size == comm->size && tables->comms[i].stride == comm->stride &&
               same_name(tables->comms[i].name, comm->name);
    return nth;
}

tsr_status tsr__comms_intern(struct tsr__comms *comms, const struct tsr_tables *tables,
                             uint32_t world, uint16_t index, uint16_t *id)
{
    const struct tsr_comm *comm = &tables->comms[index];
    uint64_t span = (uint64_t)comm->size * comm->stride;
    uint32_t nth = nth_of(tables, index);
    if (!span || world % span)
        return tsr_fail(TSR_EVALUE, "communicator %s: size %u times stride %u does not divide %u",
                        comm->name ? comm->name : "?", comm->size, comm->stride, world);
    for (size_t i = 0; i < comms->n; i++) {
        const struct tsr__tape_comm *known = &comms->items[i];
        if (known->size == comm->size && known->stride == comm->stride && known->nth == nth &&
            same_name(known->name, comm->name)) {
            *id = (uint16_t)i;
            return TSR_OK;
        }
    }
    struct tsr__tape_comm made = {comm->name ? comm->name : "", comm->size, comm->stride, nth,
                                  TSR_NO_ID};
    if (comm->size > 1) /* a rank alone sends nothing: no flows, no geometry */
        made.geometry = geometry_of(comms, comm->size, comm->stride);
    if ((comm->size > 1 && made.geometry == TSR_NO_ID) || comms->n >= UINT16_MAX ||
        !TSR_PUSH(comms->items, comms->n, comms->cap, made))
        return tsr_no_memory("communicators");
    *id = (uint16_t)(comms->n - 1);
    return TSR_OK;
}
