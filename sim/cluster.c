/* cluster.c: reads GPU, node and cluster files (cluster.h). Knows the meaning of their keys; the
 * checks of types and ranges are json_doc.c. */
#include "cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_doc.h"

/* Bounds that catch a wrong unit (GB/s instead of B/s, TFLOP/s instead of FLOP/s). */
static const double MIN_BYTES_PER_S = 1e6, MAX_BYTES_PER_S = 1e16;
static const double MIN_FLOP_PER_S = 1e9, MAX_FLOP_PER_S = 1e19;
/* The NVSwitch of the Hopper generation was the first that reduces. */
enum { MULTICAST_GENERATION = 3 };
enum { MAX_NODES = 1000000, MAX_GPUS_PER_NODE = 1024, MAX_SMS = 100000 };

/* Path of PREFIX-NAME.json beside `path`. NULL when the name is none of a file, or out of memory.
 */
static char *sibling(const char *path, const char *prefix, const char *name)
{
    if (!*name || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789._-") != strlen(name))
        return NULL;
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path + 1) : 0;
    size_t size = (size_t)folder + strlen(prefix) + strlen(name) + sizeof "-.json";
    char *out = malloc(size);
    if (out)
        snprintf(out, size, "%.*s%s-%s.json", folder, path, prefix, name);
    return out;
}

/* Opens the file that `key` of `doc` names. *path (freed by the caller) must outlive *out. */
static tsr_status open_named(const struct tsr__doc *doc, const char *key, struct tsr__doc *out,
                             char **path)
{
    char name[64], allowed[128];
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, name, sizeof name));
    *path = sibling(doc->path, key, name);
    FILE *file = *path ? fopen(*path, "r") : NULL;
    if (!file) {
        snprintf(allowed, sizeof allowed, "a NAME with a file %s-NAME.json in the same folder",
                 key);
        return tsr__doc_fail(doc, key, tsr__doc_find(doc, key), allowed);
    }
    fclose(file);
    return tsr__doc_open(*path, key, out);
}

static tsr_status copy_path(const char *path, char *out, size_t size)
{
    size_t n = strlen(path);
    if (n >= size)
        return tsr_fail(TSR_ECONFIG, "%s: the path is longer than %zu bytes", path, size - 1);
    memcpy(out, path, n + 1);
    return TSR_OK;
}

static tsr_status rate(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                       double *out)
{
    return tsr__doc_number(doc, key, need, MIN_BYTES_PER_S, MAX_BYTES_PER_S, out);
}

/* ---- GPU --------------------------------------------------------------------------------- */

static tsr_status read_gpu_peaks(const struct tsr__doc *doc, struct tsr_gpu *gpu)
{
    static const char *const keys[TSR_N_PEAKS] = {
        [TSR_PEAK_BF16] = "peak_dense_flop_per_s.bf16",
        [TSR_PEAK_FP16] = "peak_dense_flop_per_s.fp16",
        [TSR_PEAK_FP8] = "peak_dense_flop_per_s.fp8",
        [TSR_PEAK_TF32] = "peak_dense_flop_per_s.tf32",
        [TSR_PEAK_FP32] = "peak_dense_flop_per_s.fp32",
        [TSR_PEAK_FP64] = "peak_dense_flop_per_s.fp64",
    };
    for (int i = 0; i < TSR_N_PEAKS; i++)
        TSR_TRY(tsr__doc_number(doc, keys[i], TSR__NULLABLE, MIN_FLOP_PER_S, MAX_FLOP_PER_S,
                                &gpu->peak_flops[i]));
    const char *achievable = "achievable_matmul_flop_per_s.bf16";
    TSR_TRY(tsr__doc_number(doc, achievable, TSR__OPTIONAL, MIN_FLOP_PER_S, MAX_FLOP_PER_S,
                            &gpu->achievable_bf16));
    double peak = gpu->peak_flops[TSR_PEAK_BF16];
    if (peak > 0.0 && gpu->achievable_bf16 > peak)
        return tsr__doc_fail(doc, achievable, tsr__doc_find(doc, achievable),
                             "at most the dense bf16 peak");
    return TSR_OK;
}

static tsr_status read_gpu(const struct tsr__doc *doc, struct tsr_gpu *gpu)
{
    uint64_t sms;
    const char *link = "nvlink.bandwidth_bytes_per_s_per_direction";
    TSR_TRY(copy_path(doc->path, gpu->path, sizeof gpu->path));
    TSR_TRY(tsr__doc_string(doc, "name", TSR__REQUIRED, gpu->name, sizeof gpu->name));
    TSR_TRY(tsr__doc_string(doc, "description", TSR__OPTIONAL, gpu->description,
                            sizeof gpu->description));
    TSR_TRY(tsr__doc_string(doc, "architecture", TSR__REQUIRED, gpu->architecture,
                            sizeof gpu->architecture));
    TSR_TRY(tsr__doc_count(doc, "sm_count", TSR__NULLABLE, MAX_SMS, &sms));
    gpu->sm_count = (uint32_t)sms;
    TSR_TRY(tsr__doc_count(doc, "memory.visible_bytes", TSR__NULLABLE, UINT64_C(1) << 50,
                           &gpu->visible_bytes));
    TSR_TRY(tsr__doc_count(doc, "memory.context_bytes", TSR__OPTIONAL, UINT64_C(1) << 40,
                           &gpu->context_bytes));
    TSR_TRY(tsr__doc_count(doc, "memory.library_bytes", TSR__OPTIONAL, UINT64_C(1) << 40,
                           &gpu->library_bytes));
    TSR_TRY(rate(doc, "memory.bandwidth_bytes_per_s", TSR__NULLABLE, &gpu->memory_bw));
    TSR_TRY(rate(doc, "pcie.bandwidth_bytes_per_s_per_direction", TSR__NULLABLE, &gpu->pcie_bw));
    if (!json_is_null(tsr__doc_find(doc, "nvlink")))
        TSR_TRY(rate(doc, link, TSR__NULLABLE, &gpu->nvlink_bw));
    TSR_TRY(tsr__calibration_read(doc, &gpu->calibration));
    return read_gpu_peaks(doc, gpu);
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
    else if (!strcmp(type, "none") && out->gpus_per_node == 1)
        out->intra = TSR_INTRA_NONE;
    else
        return tsr__doc_fail(
            doc, key, tsr__doc_find(doc, key),
            "\"nvswitch\", \"nvlink\", \"pcie\", or \"none\" for one GPU per node");
    TSR_TRY(tsr__doc_count(doc, "intra_node.generation", TSR__OPTIONAL, 100, &generation));
    out->multicast = out->intra == TSR_INTRA_NVSWITCH && generation >= MULTICAST_GENERATION;
    return rate(doc, bandwidth, out->intra == TSR_INTRA_NONE ? TSR__OPTIONAL : TSR__NULLABLE,
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
    TSR_TRY(tsr__doc_count(doc, "nics.count", TSR__REQUIRED, MAX_GPUS_PER_NODE, &count));
    out->nics_per_node = (uint32_t)count;
    TSR_TRY(rate(doc, "nics.bandwidth_bytes_per_s_per_direction", TSR__NULLABLE, &out->nic_bw));
    TSR_TRY(tsr__doc_number(doc, "nics.latency_s", TSR__OPTIONAL, 0.0, 0.01, &out->nic_latency_s));
    return tsr__doc_number(doc, "nics.fill_s", TSR__OPTIONAL, 0.0, 0.1, &out->nic_fill_s);
}

static tsr_status read_domain(const struct tsr__doc *doc, const char *key, struct tsr_cluster *out)
{
    uint64_t domain;
    TSR_TRY(tsr__doc_count(doc, key, TSR__OPTIONAL, MAX_NODES, &domain));
    if (domain % out->gpus_per_node)
        return tsr__doc_fail(doc, key, tsr__doc_find(doc, key), "a multiple of gpus_per_node");
    if (domain)
        out->nvlink_domain_gpus = (uint32_t)domain;
    return TSR_OK;
}

static tsr_status read_node(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    uint64_t gpus;
    struct tsr__doc gpu;
    char *path = NULL;
    TSR_TRY(tsr__doc_string(doc, "name", TSR__REQUIRED, out->node_name, sizeof out->node_name));
    TSR_TRY(tsr__doc_count(doc, "gpus_per_node", TSR__REQUIRED, MAX_GPUS_PER_NODE, &gpus));
    out->gpus_per_node = (uint32_t)gpus;
    out->nvlink_domain_gpus = out->gpus_per_node;
    TSR_TRY(read_intra(doc, out));
    TSR_TRY(read_nics(doc, out));
    TSR_TRY(read_domain(doc, "nvlink_domain_gpus", out));
    TSR_TRY(tsr__doc_count(doc, "host.memory_bytes", TSR__OPTIONAL, UINT64_C(1) << 60,
                           &out->host_memory_bytes));
    tsr_status status = open_named(doc, "gpu", &gpu, &path);
    if (status == TSR_OK) {
        status = read_gpu(&gpu, &out->gpu);
        tsr__doc_close(&gpu);
    }
    free(path);
    return status;
}

/* ---- cluster ----------------------------------------------------------------------------- */

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

/* The one oversubscribed tier of a Clos fabric: what is below it is a pod. */
static tsr_status read_tiers(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    const json_t *tiers = tsr__doc_find(doc, "topology.tiers");
    double below = out->gpus_per_node;
    if (!tiers || json_is_null(tiers))
        return TSR_OK;
    if (!json_is_array(tiers))
        return tsr__doc_fail(doc, "topology.tiers", tiers, "an array");
    for (size_t i = 0; i < json_array_size(tiers); i++) {
        const json_t *tier = json_array_get(tiers, i);
        double over, pod, all;
        TSR_TRY(tier_number(doc, tier, i, "oversubscription", 1.0, 1e4, &over));
        TSR_TRY(tier_number(doc, tier, i, "gpus_per_pod", 1.0, 1e9, &pod));
        TSR_TRY(tier_number(doc, tier, i, "gpus", 1.0, 1e9, &all));
        if (over > 1.0 && out->oversubscription > 1.0)
            return tsr__doc_fail(doc, "topology.tiers", tiers,
                                 "at most one tier with an oversubscription above 1");
        if (over > 1.0) {
            out->oversubscription = over;
            out->pod_gpus = (uint32_t)below;
        }
        below = pod > 0.0 ? pod : all > 0.0 ? all : below;
    }
    return TSR_OK;
}

/* A single figure: oversubscribed above a rail group, or above every node when there is none. */
static tsr_status read_oversubscription(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    double over;
    uint64_t nodes;
    TSR_TRY(tsr__doc_number(doc, "topology.oversubscription", TSR__OPTIONAL, 1.0, 1e4, &over));
    TSR_TRY(tsr__doc_count(doc, "topology.nodes_per_rail_group", TSR__OPTIONAL, MAX_NODES, &nodes));
    if (over <= 1.0)
        return TSR_OK;
    out->oversubscription = over;
    out->pod_gpus = (uint32_t)(nodes ? nodes : 1) * out->gpus_per_node;
    return TSR_OK;
}

static tsr_status read_topology(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    static const char *const types[] = {"single_node", "rail_optimized", "fat_tree", "clos",
                                        "nvlink_rack"};
    const char *key = "topology.type";
    bool known = false;
    uint64_t gpus;
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, out->topology, sizeof out->topology));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        known = known || !strcmp(out->topology, types[i]);
    if (!known || (!strcmp(out->topology, "single_node") && out->nodes > 1))
        return tsr__doc_fail(doc, key, tsr__doc_find(doc, key),
                             "\"rail_optimized\", \"fat_tree\", \"clos\", \"nvlink_rack\", or "
                             "\"single_node\" for one node");
    TSR_TRY(read_domain(doc, "topology.nvlink_domain_gpus", out));
    TSR_TRY(tsr__doc_count(doc, "topology.gpus", TSR__OPTIONAL, UINT32_MAX, &gpus));
    if (gpus && gpus != (uint64_t)out->nodes * out->gpus_per_node)
        return tsr__doc_fail(doc, "topology.gpus", tsr__doc_find(doc, "topology.gpus"),
                             "nodes times gpus_per_node");
    TSR_TRY(read_oversubscription(doc, out));
    return read_tiers(doc, out);
}

static tsr_status read_cluster(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    uint64_t nodes;
    struct tsr__doc node;
    char *path = NULL;
    TSR_TRY(tsr__doc_count(doc, "nodes", TSR__REQUIRED, MAX_NODES, &nodes));
    out->nodes = (uint32_t)nodes;
    tsr_status status = open_named(doc, "node", &node, &path);
    if (status == TSR_OK) {
        status = read_node(&node, out);
        tsr__doc_close(&node);
    }
    free(path);
    TSR_TRY(status);
    return read_topology(doc, out);
}

static tsr_status read_any(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    TSR_TRY(copy_path(doc->path, out->path, sizeof out->path));
    TSR_TRY(tsr__doc_string(doc, "name", TSR__REQUIRED, out->name, sizeof out->name));
    TSR_TRY(tsr__doc_string(doc, "description", TSR__OPTIONAL, out->description,
                            sizeof out->description));
    out->oversubscription = 1.0;
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
