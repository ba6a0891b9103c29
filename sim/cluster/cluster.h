/* cluster.h: descriptions of nodes and clusters, read from JSON files (experiments/clusters); their
 * GPUs are gpu.h.
 *
 * Units: bytes, bytes per second in one direction, FLOP per second (dense), seconds. A `null` in a
 * file is unknown and becomes 0 here; who needs the value fails or prints "?", nobody guesses.
 */
#ifndef TSR_SIM_CLUSTER_H
#define TSR_SIM_CLUSTER_H

#include "sim/card/gpu.h"

/* NVLINK: direct links between every two GPUs of a node. MEMORY: no GPUs: ranks are threads or
 * processes of one machine, which share its cores and talk through its memory. */
enum tsr_intra {
    TSR_INTRA_NONE,
    TSR_INTRA_NVSWITCH,
    TSR_INTRA_NVLINK,
    TSR_INTRA_PCIE,
    TSR_INTRA_MEMORY
};

enum { TSR_MAX_TIERS = 3, TSR_MAX_LOCAL = 64, TSR_MAX_COLLECTIVES = 40, TSR_COLLECTIVE_SIZES = 12 };
enum { TSR_MAX_DERIVED = 12 };

/* A collective of ranks of one node as it was timed, by size; natural logarithms. */
struct tsr_measured_collective {
    uint8_t kind; /* enum tsr_instr_kind */
    uint32_t ranks, n;
    float bytes[TSR_COLLECTIVE_SIZES], seconds[TSR_COLLECTIVE_SIZES]; /* bytes ascending */
};

/* Uplinks of groups of `below_gpus` GPUs to a tier of switches. A group's uplink carries what the
 * adapters below it do, divided by the oversubscriptions of this tier and those below it. */
struct tsr_tier {
    uint32_t below_gpus;
    uint32_t
        rails; /* > 1: adapter i of each node has switch i % rails, with an uplink of its own */
    double oversubscription; /* 1: as much up as down */
};

/* Where GPUs and adapters of a node sit. GPUs of one PCIe switch share its link to the socket, GPUs
 * of one socket the link to the others. 0 switches: not modelled. */
struct tsr_places {
    uint32_t switches, sockets;
    double switch_bw, socket_bw; /* per direction */
    bool peer_to_peer;           /* false: even neighbours talk through the socket's memory */
    uint8_t switch_of_gpu[TSR_MAX_LOCAL], switch_of_nic[TSR_MAX_LOCAL],
        socket_of_switch[TSR_MAX_LOCAL];
    bool nics_listed; /* else adapters are shared out evenly, in order */
    uint8_t nic_of_gpu[TSR_MAX_LOCAL];
};

/* A cluster as it was read, complete in itself: it can be copied. Units: bytes, bytes per second,
 * seconds; 0 of a rate is unknown. nvlink_domain_gpus is a multiple of gpus_per_node. What lies
 * between nodes, the tiers say, or the platform in their place. */
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
    double cores; /* MEMORY: that ranks share; beyond that many they take turns. 0: one each */
    uint32_t n_collectives; /* timed on such a node; else as NCCL would (tuner.h) */
    struct tsr_measured_collective collectives[TSR_MAX_COLLECTIVES];
    char topology[32]; /* single_node, rail_optimized, fat_tree, clos, nvlink_rack, platform */
    /* Tiers of switches, from the nodes up; none: every adapter reaches every other unhindered. */
    uint32_t n_tiers;
    struct tsr_tier tiers[TSR_MAX_TIERS];
    struct tsr_places places;
    /* SimGrid platform whose links lie between the nodes; "": the tiers say it. Node n is its n-th
     * host in the natural order of names (node-2 before node-10). */
    char platform[512];
    /* What the keys of a cluster left open, and where it comes from, a line each; none of a file
     * that says all. */
    uint32_t n_derived;
    char derived[TSR_MAX_DERIVED][160];
};

/* Returns by how much more time the kernels of the slowest of a job's nodes take, as a share of
 * that of a usual node: calibration.straggler_share for each doubling of the nodes. */
double tsr_cluster_straggling(const struct tsr_cluster *cluster, uint32_t world);
/* Returns how many nodes `world` ranks fill. */
uint32_t tsr_cluster_nodes(const struct tsr_cluster *cluster, uint32_t world);

/* ---- a cluster in a few keys ----------------------------------------------------------------- */

/* How GPUs of a node are joined; the words of key `nvlink`. DEFAULT: as the file has it, or the
 * reference node of the card. NONE: by PCIe. */
enum tsr_nvlink { TSR_NVLINK_DEFAULT, TSR_NVLINK_SWITCH, TSR_NVLINK_DIRECT, TSR_NVLINK_NONE };
extern const char *const tsr_words_nvlink[]; /* NULL-terminated */

/* 0: not said. Rates of adapters are nominal, in 1e9 bit/s and one direction. */
struct tsr_cluster_keys {
    uint32_t nodes, gpus, nics; /* gpus and nics of a node */
    enum tsr_nvlink nvlink;
    double nic_gbit;
    double oversubscription; /* of the uplinks of groups of leaf_nodes nodes */
    uint32_t leaf_nodes;     /* 0: 1 */
};

/* The cluster of these keys (gpus is required) with the card of device file `gpu_path`. What is not
 * said is that of the node file that the device file calls its `reference_node`, adapters in
 * proportion to the GPUs, without contention; out->derived says each. folders (NULL-terminated, or
 * NULL): where files are looked for that are not beside the device file. `store` keeps the card's
 * kernel tables. Errors: TSR_ECONFIG with
 * the key ("cluster.nics") or the file. */
tsr_status tsr_cluster_make(const char *gpu_path, const struct tsr_cluster_keys *keys,
                            const char *const *folders, struct tsr_kernel_store *store,
                            struct tsr_cluster *out) TSR_MUST_USE;
/* Changes what the keys say of a cluster that was read. Errors: as above; *cluster may be changed
 * in part. */
tsr_status tsr_cluster_change(struct tsr_cluster *cluster,
                              const struct tsr_cluster_keys *keys) TSR_MUST_USE;

/* ---- files ----------------------------------------------------------------------------------- */

/* Reads cluster-*.json, and the node-NAME.json and gpu-NAME.json that it names, from the same
 * folder or, where they are not in it, from `folders` (NULL-terminated; NULL: nowhere else). Also
 * takes a node file (one node), and a cluster file of a few keys, with `gpu` in the place of
 * `node`. `store` keeps the kernel tables of the card. Errors: TSR_ECONFIG with file, key, value
 * and what is allowed. */
tsr_status tsr_cluster_load(const char *path, const char *const *folders,
                            struct tsr_kernel_store *store, struct tsr_cluster *out) TSR_MUST_USE;
/* Reads an XML file (cluster_xml.c): one node as NCCL_TOPO_DUMP_FILE writes it, `nodes` of which
 * (0: one) make a cluster without contention between them; or a platform of SimGrid, whose hosts
 * are the nodes, each with `gpus_per_node` GPUs (0: one). Fills in all but out->gpu: `gpu_name`
 * gets the name of the device file that the GPUs' PCI id stands for, "" if the file does not tell.
 * Errors: TSR_ECONFIG with file and line, TSR_EUNSUPPORTED in a build without expat. */
tsr_status tsr_cluster_load_xml(const char *path, uint32_t nodes, uint32_t gpus_per_node,
                                struct tsr_cluster *out, char gpu_name[64]) TSR_MUST_USE;

#endif
