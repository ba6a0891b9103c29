/* cluster.h: descriptions of GPUs, nodes and clusters, read from JSON files (experiments/clusters).
 *
 * Units: bytes, bytes per second in one direction, FLOP per second (dense), seconds. A `null` in a
 * file is unknown and becomes 0 here; who needs the value fails or prints "?", nobody guesses.
 */
#ifndef TSR_CLUSTER_H
#define TSR_CLUSTER_H

#include "../engine/base.h"
#include "calibration.h"

enum tsr_peak {
    TSR_PEAK_BF16,
    TSR_PEAK_FP16,
    TSR_PEAK_FP8,
    TSR_PEAK_TF32,
    TSR_PEAK_FP32,
    TSR_PEAK_FP64,
    TSR_N_PEAKS
};

struct tsr_gpu {
    char name[64], path[512]; /* path: the device file the figures come from */
    char description[128], architecture[32];
    uint32_t sm_count;
    uint64_t visible_bytes; /* what a process can see */
    uint64_t context_bytes; /* of a CUDA context before any kernel is loaded */
    uint64_t library_bytes; /* device code and static memory of libraries and kernels */
    double memory_bw, pcie_bw, nvlink_bw;
    double peak_flops[TSR_N_PEAKS];
    double achievable_bf16; /* best matrix product that a public sweep found */
    struct tsr_calibration calibration;
};

/* NVLINK: direct links between every two GPUs of a node. */
enum tsr_intra { TSR_INTRA_NONE, TSR_INTRA_NVSWITCH, TSR_INTRA_NVLINK, TSR_INTRA_PCIE };

struct tsr_cluster {
    char name[64], path[512], description[128];
    struct tsr_gpu gpu;
    char node_name[64];
    uint32_t nodes, gpus_per_node;
    enum tsr_intra intra;
    bool multicast;              /* the NVSwitch sums and multicasts (third generation on) */
    double intra_bw;             /* per GPU and direction */
    uint32_t nvlink_domain_gpus; /* GPUs that NVLink spans; gpus_per_node unless a rack says more */
    uint32_t nics_per_node;      /* 0: none */
    double nic_bw;               /* per NIC and direction */
    double nic_latency_s;        /* of a hop through it, beyond what NCCL's tuner has */
    double nic_fill_s; /* until the pipeline of a large collective between nodes is full */
    uint64_t host_memory_bytes;
    char topology[32]; /* single_node, rail_optimized, fat_tree, clos, nvlink_rack */
    /* Oversubscription of the fabric above groups of `pod_gpus` GPUs; 1 = full bisection. */
    uint32_t pod_gpus;
    double oversubscription;
};

/* Reads cluster-*.json, and the node-NAME.json and gpu-NAME.json that it names, from the same
 * folder. Also takes a node file (one node). Errors: TSR_ECONFIG with file, key, value and what is
 * allowed. */
tsr_status tsr_cluster_load(const char *path, struct tsr_cluster *out) TSR_MUST_USE;

#endif
