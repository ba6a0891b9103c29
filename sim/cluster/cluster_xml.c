/* cluster_xml.c: clusters from XML: NCCL's topology of a node, or a SimGrid platform. */
#include <stdio.h>
#include <string.h>

#include "sim/cluster/cluster_read.h"
#include "sim/cluster/routes.h"
#include "sim/input/xml_doc.h"

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
static tsr_status read_platform(uint32_t nodes, uint32_t gpus_per_node, struct tsr_cluster *out)
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
        return read_platform(nodes, gpus_per_node, out);
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
