/* cluster.c: reads node and cluster files (cluster.h; device files: gpu.c). Knows the meaning of
 * their keys; the checks of types and ranges are json_doc.c. */
#include "sim/cluster/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cluster/cluster_read.h"

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

/* ---- node -------------------------------------------------------------------------------- */

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

static tsr_status read_node(const struct tsr__doc *doc, struct tsr_cluster *out)
{
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
done:
    tsr__doc_close(&gpu);
    free(path);
    return status;
}

/* ---- cluster ----------------------------------------------------------------------------- */

static tsr_status read_cluster(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    uint64_t nodes;
    struct tsr__doc node = {0};
    char *path = NULL;
    tsr_status status;
    TSR_TRY(tsr__doc_count(doc, "nodes", TSR__REQUIRED, TSR__MAX_NODES, &nodes));
    out->nodes = (uint32_t)nodes;
    TSR_GOTO(done, open_named(doc, "node", &node, &path));
    TSR_GOTO(done, read_node(&node, out));
    TSR_GOTO(done, tsr__read_topology(doc, out));
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
        return read_cluster(doc, out);
    if (strcmp(name, "node") != 0)
        return tsr__doc_fail(doc, "kind", kind, "\"cluster\" or \"node\"");
    out->nodes = 1;
    memcpy(out->topology, "single_node", sizeof "single_node");
    TSR_TRY(read_node(doc, out));
    /* One node of a rack has only its own GPUs to talk to. */
    out->nvlink_domain_gpus = out->gpus_per_node;
    return TSR_OK;
}

tsr_status tsr_cluster_load(const char *path, struct tsr_cluster *out)
{
    struct tsr__doc doc;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr__doc_open(path, NULL, &doc));
    tsr_status status = read_any(&doc, out);
    tsr__doc_close(&doc);
    if (status != TSR_OK)
        memset(out, 0, sizeof *out);
    return status;
}
