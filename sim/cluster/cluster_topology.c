/* cluster_topology.c: where things sit: the PCIe tree of a node, the tiers of a network
 * (cluster.h). */
#include <stdio.h>
#include <string.h>

#include "sim/cluster/cluster_read.h"

/* ---- PCIe -------------------------------------------------------------------------------- */

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

/* ---- tiers ------------------------------------------------------------------------------- */

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
        double over, span, rails;
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
    FILE *file = n > 0 && n < (int)sizeof out->platform ? fopen(out->platform, "r") : NULL;
    if (!file)
        return tsr__doc_fail(doc, key, tsr__doc_find(doc, key),
                             "the path of a SimGrid platform, counted from this file");
    fclose(file);
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
