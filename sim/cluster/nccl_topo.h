/* nccl_topo.h: a node as NCCL saw it: the XML that NCCL_TOPO_DUMP_FILE writes. Private to sim/. */
#ifndef TSR_SIM_NCCL_TOPO_H
#define TSR_SIM_NCCL_TOPO_H

#include "sim/cluster/cluster.h"
#include "sim/input/xml_doc.h"

/* Fills in the node of *out: GPUs in order of their CUDA number, the NVSwitch or the PCIe tree, and
 * which adapter each GPU uses (the nearest). `gpu_name` as in tsr_cluster_load_xml(). Errors:
 * TSR_ECONFIG with file and line. */
tsr_status tsr__nccl_topo_read(const struct tsr__xml *xml, struct tsr_cluster *out,
                               char gpu_name[64]) TSR_MUST_USE;

#endif
