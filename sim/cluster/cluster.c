/* cluster.c: reads node and cluster files (cluster.h; device files: gpu.c). Knows the meaning of
 * their keys; the checks of types and ranges are json_doc.c. */
#include "sim/cluster/cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/program.h"
#include "sim/base/folder.h"
#include "sim/cluster/cluster_read.h"
#include "sim/cluster/routes.h"
#include "sim/input/xml_doc.h"

/* The NVSwitch of the Hopper generation was the first that reduces. */
enum { MULTICAST_GENERATION = 3 };

/* Opens the file that `key` of `doc` names. *path (freed by the caller) must outlive *out. */
static tsr_status open_named(const struct tsr__doc *doc, const char *key, struct tsr__doc *out,
                             char **path)
{
    char name[64];
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, name, sizeof name));
    return tsr__doc_open_sibling(doc, key, tsr__doc_find(doc, key), key, out, path);
}

/* ---- node ------------------------------------------------------------------------------------ */

static tsr_status read_intra(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    char type[32];
    uint64_t generation;
    const char *key = "intra_node.type";
    const char *bandwidth = "intra_node.bandwidth_bytes_per_s_per_gpu_per_direction";
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, type, sizeof type));
    if (!strcmp(type, "nvswitch"))
        out->intra = TSR_INTRA_NVSWITCH;
    else if (!strcmp(type, "nvlink"))
        out->intra = TSR_INTRA_NVLINK;
    else if (!strcmp(type, "pcie"))
        out->intra = TSR_INTRA_PCIE;
    else if (!strcmp(type, "shared_memory"))
        out->intra = TSR_INTRA_MEMORY;
    else if (!strcmp(type, "none") && out->gpus_per_node == 1)
        out->intra = TSR_INTRA_NONE;
    else
        return tsr__doc_fail(doc, key, tsr__doc_find(doc, key),
                             "\"nvswitch\", \"nvlink\", \"pcie\", \"shared_memory\", or \"none\" "
                             "for one GPU per node");
    TSR_TRY(tsr__doc_count(doc, "intra_node.generation", TSR__OPTIONAL, 100, &generation));
    out->multicast = out->intra == TSR_INTRA_NVSWITCH && generation >= MULTICAST_GENERATION;
    return tsr__doc_rate(doc, bandwidth,
                         out->intra == TSR_INTRA_NONE ? TSR__OPTIONAL : TSR__NULLABLE,
                         &out->intra_bw);
}

static tsr_status read_nics(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    uint64_t count;
    const json_t *nics = tsr__doc_find(doc, "nics");
    if (json_is_null(nics))
        return TSR_OK;
    if (!json_is_object(nics))
        return tsr__doc_fail(doc, "nics", nics, "an object or null");
    TSR_TRY(tsr__doc_count(doc, "nics.count", TSR__REQUIRED, TSR__MAX_GPUS_PER_NODE, &count));
    out->nics_per_node = (uint32_t)count;
    TSR_TRY(tsr__doc_rate(doc, "nics.bandwidth_bytes_per_s_per_direction", TSR__NULLABLE,
                          &out->nic_bw));
    TSR_TRY(tsr__doc_number(doc, "nics.latency_s", TSR__OPTIONAL, 0.0, 0.01, &out->nic_latency_s));
    return tsr__doc_number(doc, "nics.fill_s", TSR__OPTIONAL, 0.0, 0.1, &out->nic_fill_s);
}

tsr_status tsr__read_domain(const struct tsr__doc *doc, const char *key, struct tsr_cluster *out)
{
    uint64_t domain;
    TSR_TRY(tsr__doc_count(doc, key, TSR__OPTIONAL, TSR__MAX_NODES, &domain));
    if (domain % out->gpus_per_node)
        return tsr__doc_fail(doc, key, tsr__doc_find(doc, key), "a multiple of gpus_per_node");
    if (domain)
        out->nvlink_domain_gpus = (uint32_t)domain;
    return TSR_OK;
}

tsr_status tsr__read_node(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    static const char *const facts[] = {"description",
                                        "intra_node.switch_chips",
                                        "intra_node.all_to_all",
                                        "intra_node.source",
                                        "nics.rate_bit_per_s",
                                        "nics.model",
                                        "nics.fabric",
                                        "nics.fitted",
                                        "nics.nics_per_gpu",
                                        "host.cpu",
                                        "host.processor_cores",
                                        "host.source",
                                        "pcie_generation",
                                        "nvlink_domain_nodes",
                                        "notes",
                                        "source",
                                        NULL};
    uint64_t gpus;
    struct tsr__doc gpu = {0};
    char *path = NULL;
    tsr_status status;
    TSR_TRY(tsr__doc_string(doc, "name", TSR__REQUIRED, out->node_name, sizeof out->node_name));
    TSR_TRY(tsr__doc_count(doc, "gpus_per_node", TSR__REQUIRED, TSR__MAX_GPUS_PER_NODE, &gpus));
    out->gpus_per_node = (uint32_t)gpus;
    out->nvlink_domain_gpus = out->gpus_per_node;
    TSR_TRY(read_intra(doc, out));
    TSR_TRY(read_nics(doc, out));
    TSR_TRY(tsr__read_collectives(doc, out));
    TSR_TRY(tsr__read_places(doc, out));
    TSR_TRY(tsr__read_domain(doc, "nvlink_domain_gpus", out));
    TSR_TRY(tsr__doc_count(doc, "host.memory_bytes", TSR__OPTIONAL, UINT64_C(1) << 60,
                           &out->host_memory_bytes));
    if (out->intra == TSR_INTRA_MEMORY)
        TSR_TRY(tsr__doc_number(doc, "host.cores", TSR__REQUIRED, 1.0, TSR__MAX_GPUS_PER_NODE,
                                &out->cores));
    TSR_GOTO(done, open_named(doc, "gpu", &gpu, &path));
    TSR_GOTO(done, tsr__gpu_read(&gpu, &out->gpu));
    status = tsr__doc_check(doc, facts);
done:
    tsr__doc_close(&gpu);
    free(path);
    return status;
}

/* ---- cluster --------------------------------------------------------------------------------- */

static tsr_status read_cluster(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    static const char *const facts[] = {"topology.levels",
                                        "topology.switch",
                                        "topology.load_balancing",
                                        "topology.reported_static_latency_s",
                                        "notes",
                                        "source",
                                        NULL};
    uint64_t nodes;
    struct tsr__doc node = {0};
    char *path = NULL;
    tsr_status status;
    TSR_TRY(tsr__doc_count(doc, "nodes", TSR__REQUIRED, TSR__MAX_NODES, &nodes));
    out->nodes = (uint32_t)nodes;
    TSR_GOTO(done, open_named(doc, "node", &node, &path));
    TSR_GOTO(done, tsr__read_node(&node, out));
    TSR_GOTO(done, tsr__read_topology(doc, out));
    status = tsr__doc_check(doc, facts);
done:
    tsr__doc_close(&node);
    free(path);
    return status;
}

static tsr_status read_any(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    TSR_TRY(tsr__doc_copy_path(doc->path, out->path, sizeof out->path));
    TSR_TRY(tsr__doc_string(doc, "name", TSR__REQUIRED, out->name, sizeof out->name));
    TSR_TRY(tsr__doc_string(doc, "description", TSR__OPTIONAL, out->description,
                            sizeof out->description));
    const json_t *kind = tsr__doc_find(doc, "kind");
    const char *name = json_is_string(kind) ? json_string_value(kind) : "";
    if (!strcmp(name, "cluster"))
        return tsr__doc_find(doc, "gpu") && !tsr__doc_find(doc, "node")
                   ? tsr__read_cluster_keys(doc, out)
                   : read_cluster(doc, out);
    if (strcmp(name, "node") != 0)
        return tsr__doc_fail(doc, "kind", kind, "\"cluster\" or \"node\"");
    out->nodes = 1;
    memcpy(out->topology, "single_node", sizeof "single_node");
    TSR_TRY(tsr__read_node(doc, out));
    /* One node of a rack has only its own GPUs to talk to. */
    out->nvlink_domain_gpus = out->gpus_per_node;
    return TSR_OK;
}

tsr_status tsr_cluster_load(const char *path, const char *const *folders,
                            struct tsr_kernel_store *store, struct tsr_cluster *out)
{
    struct tsr__doc doc;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr__doc_open(path, NULL, &doc));
    doc.folders = folders;
    doc.kernels = store;
    tsr_status status = read_any(&doc, out);
    tsr__doc_close(&doc);
    if (status != TSR_OK)
        memset(out, 0, sizeof *out);
    return status;
}

/* ---- where things sit ------------------------------------------------------------------------ */

/* Where things sit: the PCIe tree of a node, the tiers of a network
 * (cluster.h). */

/* ---- PCIe ------------------------------------------------------------------------------------ */

/* GPUs, adapters and switches are shared out evenly, in order. */
static void place_evenly(struct tsr_cluster *c)
{
    struct tsr_places *p = &c->places;
    uint32_t nics = c->nics_per_node < c->gpus_per_node ? c->nics_per_node : c->gpus_per_node;
    for (uint32_t i = 0; i < c->gpus_per_node; i++)
        p->switch_of_gpu[i] = (uint8_t)(i * p->switches / c->gpus_per_node);
    for (uint32_t i = 0; i < nics; i++)
        p->switch_of_nic[i] = (uint8_t)(i * p->switches / nics);
    for (uint32_t i = 0; i < p->switches && p->sockets; i++)
        p->socket_of_switch[i] = (uint8_t)(i * p->sockets / p->switches);
}

tsr_status tsr__read_places(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    static const char switches[] = "intra_node.pcie_switches", sockets[] = "intra_node.sockets";
    const json_t *peer = tsr__doc_find(doc, "intra_node.peer_to_peer");
    struct tsr_places *p = &out->places;
    uint64_t n_switches, n_sockets;
    p->peer_to_peer = !json_is_false(peer);
    if (peer && !json_is_null(peer) && !json_is_boolean(peer))
        return tsr__doc_fail(doc, "intra_node.peer_to_peer", peer, "true, false or null");
    TSR_TRY(tsr__doc_count(doc, switches, TSR__OPTIONAL, TSR_MAX_LOCAL, &n_switches));
    TSR_TRY(tsr__doc_count(doc, sockets, TSR__OPTIONAL, TSR_MAX_LOCAL, &n_sockets));
    if (!n_switches)
        return n_sockets ? tsr__doc_fail(doc, switches, NULL, "a number, beside sockets") : TSR_OK;
    if (out->intra != TSR_INTRA_PCIE)
        return tsr__doc_fail(doc, switches, tsr__doc_find(doc, switches),
                             "nothing, unless intra_node.type is \"pcie\"");
    if (out->gpus_per_node > TSR_MAX_LOCAL)
        return tsr__doc_fail(doc, "gpus_per_node", tsr__doc_find(doc, "gpus_per_node"),
                             "up to 64 beside intra_node.pcie_switches");
    if (n_sockets > n_switches)
        return tsr__doc_fail(doc, sockets, tsr__doc_find(doc, sockets),
                             "at most intra_node.pcie_switches");
    TSR_TRY(tsr__doc_rate(doc, "intra_node.switch_bandwidth_bytes_per_s_per_direction",
                          TSR__REQUIRED, &p->switch_bw));
    if (n_sockets > 1)
        TSR_TRY(tsr__doc_rate(doc, "intra_node.socket_bandwidth_bytes_per_s_per_direction",
                              TSR__REQUIRED, &p->socket_bw));
    p->switches = (uint32_t)n_switches;
    p->sockets = n_sockets > 1 ? (uint32_t)n_sockets : 0;
    place_evenly(out);
    return TSR_OK;
}

/* ---- tiers ----------------------------------------------------------------------------------- */

static tsr_status tier_number(const struct tsr__doc *doc, const json_t *tier, size_t i,
                              const char *name, double low, double high, double *out)
{
    const json_t *value = json_object_get(tier, name);
    char key[64], allowed[64];
    *out = 0.0;
    if (!value || json_is_null(value))
        return TSR_OK;
    *out = json_is_number(value) ? json_number_value(value) : 0.0;
    if (*out >= low && *out <= high)
        return TSR_OK;
    snprintf(key, sizeof key, "topology.tiers[%zu].%s", i, name);
    snprintf(allowed, sizeof allowed, "a number from %g to %g", low, high);
    return tsr__doc_fail(doc, key, value, allowed);
}

/* How many GPUs one switch of the tier (or pod of switches) has below it; `below` where the file
 * does not say. */
static tsr_status read_span(const struct tsr__doc *doc, const json_t *tier, size_t i,
                            const struct tsr_cluster *c, double below, double *span)
{
    static const char allowed[] = "a whole number of the groups below";
    const char *name = "gpus_per_pod";
    char key[64];
    TSR_TRY(tier_number(doc, tier, i, name, 1.0, 1e9, span));
    if (*span <= 0.0) {
        name = "gpus";
        TSR_TRY(tier_number(doc, tier, i, name, 1.0, 1e9, span));
    }
    if (*span <= 0.0) {
        name = "nodes";
        TSR_TRY(tier_number(doc, tier, i, name, 1.0, 1e6, span));
        *span *= c->gpus_per_node;
    }
    if (*span <= 0.0)
        *span = below;
    uint64_t whole = (uint64_t)*span;
    if ((double)whole == *span && whole % (uint64_t)below == 0)
        return TSR_OK;
    snprintf(key, sizeof key, "topology.tiers[%zu].%s", i, name);
    return tsr__doc_fail(doc, key, json_object_get(tier, name), allowed);
}

/* Tier by tier from the nodes up. */
static tsr_status read_tiers(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    /* the latter ones are for people */
    static const char *const known[] = {
        "nodes",  "gpus",    "gpus_per_pod", "oversubscription", "rails", "name",
        "device", "servers", "pods",         "racks_per_pod",    NULL};
    const json_t *tiers = tsr__doc_find(doc, "topology.tiers");
    double below = out->gpus_per_node;
    if (!tiers || json_is_null(tiers))
        return TSR_OK;
    if (!json_is_array(tiers) || json_array_size(tiers) > TSR_MAX_TIERS)
        return tsr__doc_fail(doc, "topology.tiers", tiers, "an array of up to 3 tiers");
    if (out->n_tiers)
        return tsr__doc_fail(doc, "topology.tiers", tiers,
                             "one of topology.oversubscription and topology.tiers");
    for (size_t i = 0; i < json_array_size(tiers); i++) {
        const json_t *tier = json_array_get(tiers, i);
        char name[40];
        double over, span, rails;
        snprintf(name, sizeof name, "topology.tiers[%zu]", i);
        TSR_TRY(tsr__doc_check_item(doc, name, tier, known));
        TSR_TRY(tier_number(doc, tier, i, "oversubscription", 1.0, 1e4, &over));
        TSR_TRY(tier_number(doc, tier, i, "rails", 1.0, TSR_MAX_LOCAL, &rails));
        TSR_TRY(read_span(doc, tier, i, out, below, &span));
        out->tiers[out->n_tiers++] =
            (struct tsr_tier){(uint32_t)below, (uint32_t)rails, over > 1.0 ? over : 1.0};
        below = span;
    }
    return TSR_OK;
}

/* A single figure: above a rail group, or above every node when there is none. */
static tsr_status read_oversubscription(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    double over;
    uint64_t nodes, rails;
    TSR_TRY(tsr__doc_number(doc, "topology.oversubscription", TSR__OPTIONAL, 1.0, 1e4, &over));
    TSR_TRY(tsr__doc_count(doc, "topology.nodes_per_rail_group", TSR__OPTIONAL, TSR__MAX_NODES,
                           &nodes));
    TSR_TRY(tsr__doc_count(doc, "topology.rails", TSR__OPTIONAL, TSR_MAX_LOCAL, &rails));
    if (over <= 1.0 && !nodes)
        return TSR_OK;
    out->tiers[out->n_tiers++] =
        (struct tsr_tier){(uint32_t)(nodes ? nodes : 1) * out->gpus_per_node,
                          nodes ? (uint32_t)rails : 0, over > 1.0 ? over : 1.0};
    return TSR_OK;
}

/* A SimGrid platform beside the cluster file: its hosts are the nodes. */
static tsr_status read_platform(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    static const char key[] = "topology.file";
    char name[256];
    const char *slash = strrchr(doc->path, '/');
    int folder = slash ? (int)(slash - doc->path + 1) : 0;
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, name, sizeof name));
    if (*name == '/')
        folder = 0;
    int n = snprintf(out->platform, sizeof out->platform, "%.*s%s", folder, doc->path, name);
    if (n <= 0 || n >= (int)sizeof out->platform ||
        tsr_kind_of(NULL, out->platform) != TSR_KIND_FILE)
        return tsr__doc_fail(doc, key, tsr__doc_find(doc, key),
                             "the path of a SimGrid platform, counted from this file");
    return TSR_OK;
}

tsr_status tsr__read_topology(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    static const char *const types[] = {"single_node", "rail_optimized", "fat_tree",
                                        "clos",        "nvlink_rack",    "platform"};
    const char *key = "topology.type";
    bool known = false;
    uint64_t gpus;
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, out->topology, sizeof out->topology));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        known = known || !strcmp(out->topology, types[i]);
    if (!known || (!strcmp(out->topology, "single_node") && out->nodes > 1))
        return tsr__doc_fail(doc, key, tsr__doc_find(doc, key),
                             "\"rail_optimized\", \"fat_tree\", \"clos\", \"nvlink_rack\", "
                             "\"platform\", or \"single_node\" for one node");
    if (!strcmp(out->topology, "platform"))
        TSR_TRY(read_platform(doc, out));
    TSR_TRY(tsr__read_domain(doc, "topology.nvlink_domain_gpus", out));
    TSR_TRY(tsr__doc_count(doc, "topology.gpus", TSR__OPTIONAL, UINT32_MAX, &gpus));
    if (gpus && gpus != (uint64_t)out->nodes * out->gpus_per_node)
        return tsr__doc_fail(doc, "topology.gpus", tsr__doc_find(doc, "topology.gpus"),
                             "nodes times gpus_per_node");
    TSR_TRY(read_oversubscription(doc, out));
    return read_tiers(doc, out);
}

/* ---- cluster collectives --------------------------------------------------------------------- */

/* Collectives between the ranks of one node, as `tessera calibrate` timed
 * them. In a node file:
 *
 *   "collectives": [{"kind": "all_gather", "ranks": 2, "source": "...",
 *                    "runs": [[BYTES, MICROSECONDS], ...]}, ...]
 *
 * BYTES as everywhere: an all-gather's output, a reduce-scatter's input, the buffer of the others.
 */

static const double MAX_BYTES = 1e15, MAX_US = 1e9;

static tsr_status read_kind(const struct tsr__doc *doc, uint8_t *out)
{
    static const uint8_t kinds[] = {TSR_ALL_GATHER, TSR_REDUCE_SCATTER, TSR_ALL_REDUCE,
                                    TSR_BROADCAST, TSR_ALL_TO_ALL};
    char name[32];
    TSR_TRY(tsr__doc_string(doc, "kind", TSR__REQUIRED, name, sizeof name));
    for (size_t i = 0; i < sizeof kinds; i++)
        if (!strcmp(name, tsr_instr_kind_name(kinds[i]))) {
            *out = kinds[i];
            return TSR_OK;
        }
    return tsr__doc_fail(doc, "kind", tsr__doc_find(doc, "kind"),
                         "all_gather, reduce_scatter, all_reduce, broadcast or all_to_all");
}

static tsr_status read_run(const struct tsr__doc *doc, const json_t *run,
                           struct tsr_measured_collective *out)
{
    double bytes = json_number_value(json_array_get(run, 0));
    double us = json_number_value(json_array_get(run, 1));
    bool grows = out->n == 0 || log(bytes) > (double)out->bytes[out->n - 1];
    if (json_array_size(run) != 2 || !(bytes >= 1 && bytes <= MAX_BYTES) ||
        !(us > 0 && us <= MAX_US) || !grows)
        return tsr__doc_fail(doc, "runs", run, "lists [bytes, microseconds], bytes growing");
    out->bytes[out->n] = (float)log(bytes);
    out->seconds[out->n++] = (float)log(us * 1e-6);
    return TSR_OK;
}

static tsr_status read_one(const struct tsr__doc *doc, struct tsr_measured_collective *out)
{
    static const char *const known[] = {"kind", "ranks", "runs", "source", "data", NULL};
    const json_t *runs = tsr__doc_find(doc, "runs");
    size_t n = json_array_size(runs);
    uint64_t ranks;
    TSR_TRY(tsr__doc_check_item(doc, "", doc->root, known));
    *out = (struct tsr_measured_collective){0};
    TSR_TRY(read_kind(doc, &out->kind));
    TSR_TRY(tsr__doc_count(doc, "ranks", TSR__REQUIRED, TSR__MAX_GPUS_PER_NODE, &ranks));
    out->ranks = (uint32_t)ranks;
    if (!n || n > TSR_COLLECTIVE_SIZES)
        return tsr__doc_fail(doc, "runs", runs, "a list of 1 to 12 lists [bytes, microseconds]");
    for (size_t i = 0; i < n; i++)
        TSR_TRY(read_run(doc, json_array_get(runs, i), out));
    return TSR_OK;
}

tsr_status tsr__read_collectives(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    const json_t *list = tsr__doc_find(doc, "collectives");
    size_t n = json_array_size(list);
    char text[640];
    if (list && (!json_is_array(list) || n > TSR_MAX_COLLECTIVES))
        return tsr__doc_fail(doc, "collectives", list, "a list of at most 40 objects");
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s: collectives[%zu]", doc->path, i);
        struct tsr__doc item = {.path = text, .root = json_array_get(list, i)};
        if (!json_is_object(item.root))
            return tsr__doc_fail(doc, "collectives", item.root, "objects");
        TSR_TRY(read_one(&item, &out->collectives[out->n_collectives++]));
    }
    return TSR_OK;
}

/* ---- cluster xml ----------------------------------------------------------------------------- */

/* Clusters from XML: NCCL's topology of a node, or a SimGrid platform. */

static tsr_status set_names(const char *path, const char *what, struct tsr_cluster *out)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    int n = dot && dot != base ? (int)(dot - base) : (int)strlen(base);
    if (strlen(path) >= sizeof out->path)
        return tsr_fail(TSR_ECONFIG, "%s: the path is longer than %zu bytes", path,
                        sizeof out->path - 1);
    snprintf(out->node_name, sizeof out->node_name, "%.*s", n < 56 ? n : 56, base);
    memcpy(out->name, out->node_name, sizeof out->name);
    snprintf(out->path, sizeof out->path, "%s", path);
    snprintf(out->description, sizeof out->description, "%s", what);
    return TSR_OK;
}

/* Rates inside of a host come with the device file: who sets the GPU sets them (0 until then). */
static tsr_status read_platform_xml(uint32_t nodes, uint32_t gpus_per_node, struct tsr_cluster *out)
{
    uint32_t hosts;
    TSR_TRY(tsr__routes_count(out->path, &hosts));
    if (nodes > hosts)
        return tsr_fail(TSR_ECONFIG, "%s: found %u hosts, allowed at least the %u of nodes",
                        out->path, hosts, nodes);
    out->nodes = nodes ? nodes : hosts;
    out->gpus_per_node = out->nvlink_domain_gpus = gpus_per_node ? gpus_per_node : 1;
    out->intra = out->gpus_per_node > 1 ? TSR_INTRA_NVSWITCH : TSR_INTRA_NONE;
    memcpy(out->platform, out->path, sizeof out->platform);
    memcpy(out->topology, "platform", sizeof "platform");
    return TSR_OK;
}

static tsr_status read_root(const struct tsr__xml *xml, uint32_t nodes, uint32_t gpus_per_node,
                            struct tsr_cluster *out, char gpu_name[64])
{
    const char *root = xml->items[0].name;
    if (!strcmp(root, "platform")) {
        TSR_TRY(set_names(xml->path, "hosts of a SimGrid platform", out));
        return read_platform_xml(nodes, gpus_per_node, out);
    }
    if (strcmp(root, "system") != 0)
        return tsr__xml_fail(xml, 0,
                             "found as root, allowed <system> (a topology of NCCL) or <platform> "
                             "(of SimGrid)");
    out->nodes = nodes ? nodes : 1;
    TSR_TRY(set_names(xml->path, "nodes as NCCL saw one", out));
    snprintf(out->topology, sizeof out->topology, "%s",
             out->nodes > 1 ? "fat_tree" : "single_node");
    TSR_TRY(tsr__nccl_topo_read(xml, out, gpu_name));
    if (gpus_per_node && gpus_per_node != out->gpus_per_node)
        return tsr_fail(TSR_ECONFIG, "%s: found %u GPUs, allowed gpus_per_node: null or %u",
                        xml->path, out->gpus_per_node, out->gpus_per_node);
    return TSR_OK;
}

tsr_status tsr_cluster_load_xml(const char *path, uint32_t nodes, uint32_t gpus_per_node,
                                struct tsr_cluster *out, char gpu_name[64])
{
    struct tsr__xml xml;
    memset(out, 0, sizeof *out);
    gpu_name[0] = 0;
    if (nodes > TSR__MAX_NODES || gpus_per_node > TSR__MAX_GPUS_PER_NODE)
        return tsr_fail(TSR_ECONFIG, "%s: found %u nodes of %u GPUs, allowed up to %d of %d", path,
                        nodes, gpus_per_node, (int)TSR__MAX_NODES, (int)TSR__MAX_GPUS_PER_NODE);
    TSR_TRY(tsr__xml_open(path, &xml));
    tsr_status status = read_root(&xml, nodes, gpus_per_node, out, gpu_name);
    tsr__xml_close(&xml);
    if (status != TSR_OK)
        memset(out, 0, sizeof *out);
    return status;
}

/* ---- a job on a cluster ------------------------------------------------------------------------
 */

uint32_t tsr_cluster_nodes(const struct tsr_cluster *cluster, uint32_t world)
{
    uint32_t each = cluster->gpus_per_node ? cluster->gpus_per_node : world;
    return each ? (uint32_t)tsr_ceil_div(world, each) : 0;
}

double tsr_cluster_straggling(const struct tsr_cluster *cluster, uint32_t world)
{
    uint32_t nodes = tsr_cluster_nodes(cluster, world);
    return nodes < 2 ? 0 : cluster->gpu.calibration.value[TSR_CAL_STRAGGLER_SHARE] * log2(nodes);
}
