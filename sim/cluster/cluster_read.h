/* cluster_read.h: parts of the readers of cluster files. Private to this folder. */
#ifndef TSR_SIM_CLUSTER_READ_H
#define TSR_SIM_CLUSTER_READ_H

#include "sim/cluster/cluster.h"
#include "sim/input/json_doc.h"

enum { TSR__MAX_NODES = 1000000, TSR__MAX_GPUS_PER_NODE = 1024 };

/* The GPUs that NVLink spans; a multiple of gpus_per_node. */
tsr_status tsr__read_domain(const struct tsr__doc *doc, const char *key,
                            struct tsr_cluster *out) TSR_MUST_USE;
/* All of a node file. */
tsr_status tsr__read_node(const struct tsr__doc *doc, struct tsr_cluster *out) TSR_MUST_USE;
/* All of a cluster file that has a `gpu` and no `node` (cluster_keys.c). */
tsr_status tsr__read_cluster_keys(const struct tsr__doc *doc, struct tsr_cluster *out) TSR_MUST_USE;
/* Key "topology" of a cluster file. */
tsr_status tsr__read_topology(const struct tsr__doc *doc, struct tsr_cluster *out) TSR_MUST_USE;
/* The list "collectives" of a node file (cluster_collectives.c). */
tsr_status tsr__read_collectives(const struct tsr__doc *doc, struct tsr_cluster *out) TSR_MUST_USE;
/* Keys "intra_node.pcie_switches", ... of a node file. */
tsr_status tsr__read_places(const struct tsr__doc *doc, struct tsr_cluster *out) TSR_MUST_USE;
struct tsr__xml;
/* A node as NCCL saw it (nccl_topo.c). Fills in the node of *out: GPUs in order of their CUDA
 * number, the NVSwitch or the PCIe tree, and which adapter each GPU uses (the nearest). `gpu_name`
 * as in tsr_cluster_load_xml(). Errors: TSR_ECONFIG with file and line. */
tsr_status tsr__nccl_topo_read(const struct tsr__xml *xml, struct tsr_cluster *out,
                               char gpu_name[64]) TSR_MUST_USE;

#endif
