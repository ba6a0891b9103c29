/* cluster_keys.c: a cluster in a few keys: GPUs, nodes, adapters, contention (cluster.h). What the
 * keys leave open comes from the reference node of the card; each such value leaves a line that
 * says so. Also changes those keys of a cluster that a file describes. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cluster/cluster.h"
#include "sim/cluster/cluster_read.h"

static const double GBIT = 1e9 / 8; /* bytes per second */

const char *const tsr_words_nvlink[] = {"default", "nvswitch", "direct", "none", NULL};

static void say(struct tsr_cluster *c, const char *format, ...) TSR_PRINTF(2, 3);

static void say(struct tsr_cluster *c, const char *format, ...)
{
    va_list args;
    TSR_CHECK(c->n_derived < TSR_MAX_DERIVED);
    va_start(args, format);
    vsnprintf(c->derived[c->n_derived++], sizeof c->derived[0], format, args);
    va_end(args);
}

static tsr_status refuse(const char *key, const char *found, const char *allowed)
{
    return tsr_fail(TSR_ECONFIG, "cluster.%s: found %s; allowed: %s", key, found, allowed);
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Another number of GPUs in a node: what belongs to all of them goes along. */
static void set_gpus(struct tsr_cluster *c, uint32_t gpus, bool nics_said)
{
    uint32_t before = c->gpus_per_node;
    if (!gpus || gpus == before)
        return;
    c->gpus_per_node = gpus;
    c->nvlink_domain_gpus = c->nvlink_domain_gpus / before * gpus;
    for (uint32_t i = 0; i < c->n_tiers; i++)
        c->tiers[i].below_gpus = c->tiers[i].below_gpus / before * gpus;
    if (c->places.switches)
        say(c, "PCIe switches: not modelled (node %s has them for %u GPUs)", c->node_name, before);
    c->places = (struct tsr_places){.peer_to_peer = c->places.peer_to_peer};
    c->n_collectives = 0; /* timed on another node */
    if (c->intra != TSR_INTRA_MEMORY)
        c->host_memory_bytes = 0; /* a node with another number of GPUs has another host */
    if (gpus == 1 && c->intra != TSR_INTRA_MEMORY)
        c->intra = TSR_INTRA_NONE;
    if (nics_said || !c->nics_per_node)
        return;
    uint32_t share = (uint32_t)(((uint64_t)c->nics_per_node * gpus + before / 2) / before);
    c->nics_per_node = share ? share : 1;
}

static tsr_status set_nvlink(struct tsr_cluster *c, enum tsr_nvlink nvlink)
{
    char allowed[160];
    enum tsr_intra want = nvlink == TSR_NVLINK_SWITCH   ? TSR_INTRA_NVSWITCH
                          : nvlink == TSR_NVLINK_DIRECT ? TSR_INTRA_NVLINK
                                                        : TSR_INTRA_PCIE;
    if (nvlink == TSR_NVLINK_DEFAULT || c->gpus_per_node == 1 || want == c->intra)
        return TSR_OK;
    snprintf(allowed, sizeof allowed, "default, none: device file %s has no NVLink", c->gpu.name);
    if (want != TSR_INTRA_PCIE && c->gpu.nvlink_bw <= 0)
        return refuse("nvlink", tsr_words_nvlink[nvlink], allowed);
    snprintf(allowed, sizeof allowed, "a card whose PCIe rate is known (%s)", c->gpu.name);
    if (want == TSR_INTRA_PCIE && c->gpu.pcie_bw <= 0)
        return refuse("nvlink", "none", allowed);
    if (c->intra == TSR_INTRA_MEMORY)
        return refuse("nvlink", tsr_words_nvlink[nvlink], "default, in a node without GPUs");
    c->intra = want;
    c->multicast = want == TSR_INTRA_NVSWITCH && c->gpu.traits.has_multicast;
    c->intra_bw = want == TSR_INTRA_PCIE ? c->gpu.pcie_bw : c->gpu.nvlink_bw;
    if (want != TSR_INTRA_PCIE)
        c->places = (struct tsr_places){.peer_to_peer = true};
    c->nvlink_domain_gpus = c->gpus_per_node;
    c->n_collectives = 0;
    return TSR_OK;
}

static void set_contention(struct tsr_cluster *c, const struct tsr_cluster_keys *k)
{
    uint32_t leaf = k->leaf_nodes ? k->leaf_nodes : 1;
    if (k->oversubscription <= 0 && !k->leaf_nodes)
        return;
    double over = k->oversubscription > 0 ? k->oversubscription : 1.0;
    c->n_tiers = 0;
    if (over > 1.0 || k->leaf_nodes)
        c->tiers[c->n_tiers++] = (struct tsr_tier){leaf * c->gpus_per_node, 0, over};
}

static tsr_status set_nodes(struct tsr_cluster *c, uint32_t nodes)
{
    uint32_t domain = c->nvlink_domain_gpus / c->gpus_per_node;
    char allowed[128];
    if (!nodes)
        return TSR_OK;
    snprintf(allowed, sizeof allowed,
             "multiples of %u, the nodes of an NVLink domain of cluster %s", domain, c->name);
    if (domain > 1 && nodes % domain) {
        char found[16];
        snprintf(found, sizeof found, "%u", nodes);
        return refuse("nodes", found, allowed);
    }
    c->nodes = nodes;
    if (nodes > 1 && !strcmp(c->topology, "single_node"))
        memcpy(c->topology, "fat_tree", sizeof "fat_tree");
    return TSR_OK;
}

tsr_status tsr_cluster_change(struct tsr_cluster *c, const struct tsr_cluster_keys *k)
{
    bool network = k->nics || k->nic_gbit > 0 || k->oversubscription > 0 || k->leaf_nodes;
    if (*c->platform && network)
        return refuse("name",
                      "a SimGrid platform beside nics, nic_gbit, oversubscription or leaf_nodes",
                      "a cluster whose network is not a platform");
    set_gpus(c, k->gpus, k->nics > 0);
    TSR_TRY(set_nvlink(c, k->nvlink));
    if (k->nics)
        c->nics_per_node = k->nics;
    if (k->nic_gbit > 0)
        c->nic_bw = k->nic_gbit * GBIT;
    set_contention(c, k);
    TSR_TRY(set_nodes(c, k->nodes));
    if (c->nodes > 1 && k->nics && c->nic_bw <= 0)
        return refuse("nic_gbit", "nothing", "the rate of an adapter, in Gbit/s");
    if (c->nodes > 1 && k->nic_gbit > 0 && !c->nics_per_node)
        return refuse("nics", "nothing", "how many adapters a node has");
    return TSR_OK;
}

/* ---- a cluster of keys alone ----------------------------------------------------------------- */

/* A node of a card that names no reference: what the device file says of its links. */
static void plain_node(struct tsr_cluster *c, uint32_t gpus)
{
    c->intra = c->gpu.nvlink_bw > 0 ? TSR_INTRA_NVSWITCH : TSR_INTRA_PCIE;
    if (gpus == 1)
        c->intra = TSR_INTRA_NONE;
    c->intra_bw = c->gpu.nvlink_bw > 0 ? c->gpu.nvlink_bw : c->gpu.pcie_bw;
    c->multicast = c->intra == TSR_INTRA_NVSWITCH && c->gpu.traits.has_multicast;
    c->places.peer_to_peer = true;
    snprintf(c->node_name, sizeof c->node_name, "none");
}

/* The node that the device file calls typical of its card. */
static tsr_status reference_node(const struct tsr__doc *gpu, struct tsr_cluster *c)
{
    struct tsr__doc node = {0};
    char *path = NULL;
    tsr_status status;
    const json_t *name = tsr__doc_find(gpu, "reference_node");
    TSR_GOTO(done, tsr__doc_open_sibling(gpu, "reference_node", name, "node", &node, &path));
    TSR_GOTO(done, tsr__read_node(&node, c));
done:
    tsr__doc_close(&node);
    free(path);
    return status;
}

/* What was not said, and where it comes from instead. */
static void say_node(struct tsr_cluster *c, const struct tsr_cluster_keys *k, uint32_t gpus_there)
{
    static const char *const links[] = {[TSR_INTRA_NONE] = "none",
                                        [TSR_INTRA_NVSWITCH] = "nvswitch",
                                        [TSR_INTRA_NVLINK] = "direct",
                                        [TSR_INTRA_PCIE] = "none",
                                        [TSR_INTRA_MEMORY] = "none"};
    char of[160];
    snprintf(of, sizeof of, "as node %s, the reference of %s", c->node_name, c->gpu.name);
    if (!gpus_there)
        snprintf(of, sizeof of, "device file %s", c->gpu.name);
    if (!k->nvlink && c->gpus_per_node > 1)
        say(c, "nvlink: %s, %.4g GB/s per GPU and direction (%s)", links[c->intra],
            c->intra_bw / 1e9, of);
    if (c->host_memory_bytes)
        say(c, "host memory: %.4g GB (%s)", (double)c->host_memory_bytes / 1e9, of);
    if (c->nodes == 1)
        return;
    if (!k->nics)
        say(c, "nics: %u for %u GPUs (%s: %s)", c->nics_per_node, c->gpus_per_node, of,
            c->gpus_per_node == gpus_there ? "the same" : "in proportion");
    if (k->nic_gbit <= 0)
        say(c, "nic_gbit: %.4g (%s)", c->nic_bw / GBIT, of);
    if (c->nic_latency_s > 0 || c->nic_fill_s > 0)
        say(c, "start-up between nodes: %.4g us a hop, %.4g us to fill (%s)",
            c->nic_latency_s * 1e6, c->nic_fill_s * 1e6, of);
    if (k->oversubscription <= 0)
        say(c, "oversubscription: 1 (default: nodes do not hinder each other)");
    if (k->oversubscription > 1 && !k->leaf_nodes)
        say(c, "leaf_nodes: 1 (default: all that leaves a node goes over its share of an uplink)");
}

/* What a node of this card is like where the keys do not say. *there: GPUs of its reference, 0
 * without one. */
static tsr_status read_card(const struct tsr__doc *gpu, const struct tsr_cluster_keys *k,
                            struct tsr_cluster *c, uint32_t *there)
{
    char reference[64], card[64] = "";
    *there = 0;
    TSR_TRY(tsr__doc_string(gpu, "reference_node", TSR__OPTIONAL, reference, sizeof reference));
    if (*reference) {
        TSR_TRY(reference_node(gpu, c));
        memcpy(card, c->gpu.name, sizeof card);
        /* A node of one GPU tells nothing of links between several. */
        *there = c->intra == TSR_INTRA_NONE && k->gpus > 1 ? 0 : c->gpus_per_node;
        memset(&c->gpu, 0, sizeof c->gpu);
    }
    TSR_TRY(tsr__gpu_read(gpu, &c->gpu));
    if (!*there)
        plain_node(c, k->gpus);
    else if (strcmp(card, c->gpu.name) != 0)
        c->intra_bw = c->intra == TSR_INTRA_PCIE ? c->gpu.pcie_bw : c->gpu.nvlink_bw;
    c->nvlink_domain_gpus = c->gpus_per_node = *there ? *there : k->gpus;
    return TSR_OK;
}

/* *c is zero before, but for texts. */
static tsr_status make(const struct tsr__doc *gpu, const struct tsr_cluster_keys *k,
                       struct tsr_cluster *c)
{
    uint32_t there;
    if (!k->gpus)
        return refuse("gpus", "nothing", "how many GPUs a node has, 1 to 1024");
    TSR_TRY(read_card(gpu, k, c, &there));
    c->n_tiers = 0;
    c->nodes = 1;
    memcpy(c->topology, "single_node", sizeof "single_node");
    snprintf(c->name, sizeof c->name, "%ux%u %.40s", k->nodes ? k->nodes : 1, k->gpus, c->gpu.name);
    snprintf(c->description, sizeof c->description, "described by its keys");
    snprintf(c->path, sizeof c->path, "%s", gpu->path);
    if (!k->nodes)
        say(c, "nodes: 1 (default)");
    if (k->nodes > 1 && !c->nics_per_node && (!k->nics || k->nic_gbit <= 0))
        return tsr_fail(TSR_ECONFIG,
                        "cluster.%s: found nothing; allowed: a number, as device file %s names no "
                        "reference_node with adapters",
                        k->nics ? "nic_gbit" : "nics", c->gpu.name);
    TSR_TRY(tsr_cluster_change(c, k));
    say_node(c, k, there);
    return TSR_OK;
}

tsr_status tsr_cluster_make(const char *gpu_path, const struct tsr_cluster_keys *keys,
                            const char *const *folders, struct tsr_kernel_store *store,
                            struct tsr_cluster *out)
{
    struct tsr__doc gpu;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr__doc_open(gpu_path, "gpu", &gpu));
    gpu.folders = folders;
    gpu.kernels = store;
    tsr_status status = make(&gpu, keys, out);
    tsr__doc_close(&gpu);
    if (status != TSR_OK)
        memset(out, 0, sizeof *out);
    return status;
}

/* ---- a file ---------------------------------------------------------------------------------- */

static tsr_status read_nvlink(const struct tsr__doc *doc, enum tsr_nvlink *out)
{
    char word[16];
    TSR_TRY(tsr__doc_string(doc, "nvlink", TSR__OPTIONAL, word, sizeof word));
    *out = TSR_NVLINK_DEFAULT;
    for (int i = 0; *word && tsr_words_nvlink[i]; i++)
        if (!strcmp(word, tsr_words_nvlink[i])) {
            *out = (enum tsr_nvlink)i;
            return TSR_OK;
        }
    return *word ? tsr__doc_fail(doc, "nvlink", tsr__doc_find(doc, "nvlink"),
                                 "\"nvswitch\", \"direct\", \"none\", \"default\" or null")
                 : TSR_OK;
}

tsr_status tsr__read_cluster_keys(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    static const char *const facts[] = {"notes", "source", NULL};
    struct tsr_cluster_keys k = {0};
    struct tsr__doc gpu = {0};
    char name[sizeof out->name], description[sizeof out->description], file[sizeof out->path];
    char *path = NULL;
    uint64_t nodes, gpus, nics, leaf;
    tsr_status status;
    TSR_TRY(tsr__doc_count(doc, "nodes", TSR__OPTIONAL, TSR__MAX_NODES, &nodes));
    TSR_TRY(tsr__doc_count(doc, "gpus", TSR__REQUIRED, TSR__MAX_GPUS_PER_NODE, &gpus));
    TSR_TRY(tsr__doc_count(doc, "nics", TSR__OPTIONAL, TSR__MAX_GPUS_PER_NODE, &nics));
    TSR_TRY(tsr__doc_count(doc, "leaf_nodes", TSR__OPTIONAL, TSR__MAX_NODES, &leaf));
    TSR_TRY(tsr__doc_number(doc, "nic_gbit", TSR__OPTIONAL, 0.1, 1e5, &k.nic_gbit));
    TSR_TRY(tsr__doc_number(doc, "oversubscription", TSR__OPTIONAL, 1.0, 1e4, &k.oversubscription));
    TSR_TRY(read_nvlink(doc, &k.nvlink));
    k.nodes = (uint32_t)nodes;
    k.gpus = (uint32_t)gpus;
    k.nics = (uint32_t)nics;
    k.leaf_nodes = (uint32_t)leaf;
    memcpy(name, out->name, sizeof name);
    memcpy(description, out->description, sizeof description);
    memcpy(file, out->path, sizeof file);
    TSR_GOTO(done,
             tsr__doc_open_sibling(doc, "gpu", tsr__doc_find(doc, "gpu"), "gpu", &gpu, &path));
    TSR_GOTO(done, make(&gpu, &k, out));
    memcpy(out->name, name, sizeof name);
    if (*description)
        memcpy(out->description, description, sizeof description);
    memcpy(out->path, file, sizeof file);
    status = tsr__doc_check(doc, facts);
done:
    tsr__doc_close(&gpu);
    free(path);
    return status;
}
