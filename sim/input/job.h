/* job.h: what a simulation is given beside the cluster: the programs of a job, and its options.
 *
 * Both are plain data that the caller owns; nothing here depends on a cluster or a card. Units:
 * seconds, bytes, bytes per second in one direction.
 */
#ifndef TSR_SIM_JOB_H
#define TSR_SIM_JOB_H

#include "engine/program/program.h"
#include "sim/input/conditions.h"

/* A job: the programs of each rank class, iteration after iteration (the first may be iteration -1,
 * the initialisation). All classes have the same number of iterations. Borrowed. */
struct tsr_sim_job {
    uint32_t world, n_classes, n_iterations;
    const uint32_t *class_of;                         /* [world] */
    const struct tsr_program *const *const *programs; /* [class][iteration] */
};

/* NCCL's algorithms, each with its word and its row, tsr__algorithm_NAME (network/algorithms/). */
#define TSR_ALGORITHMS(X)                \
    X(RING, "ring", ring)                \
    X(TREE, "tree", tree)                \
    X(NVLS, "nvls", nvls)                \
    X(NVLS_TREE, "nvls_tree", nvls_tree) \
    X(PAT, "pat", pat)                   \
    X(COPY_ENGINE, "copy_engine", copy_engine)

/* AUTO takes what NCCL's tuner would. */
enum tsr_algorithm {
    TSR_ALGO_AUTO,
#define X(id, word, row) TSR_ALGO_##id,
    TSR_ALGORITHMS(X)
#undef X
        TSR_N_ALGORITHMS
};
enum tsr_protocol { TSR_PROTO_AUTO, TSR_PROTO_LL, TSR_PROTO_LL128, TSR_PROTO_SIMPLE };

/* Which kernel computes attention; AUTO is what the program says: FlashAttention-2, or for the
 * memory-efficient kernel FlashAttention-1. MATH is PyTorch's unfused path. */
enum tsr_attention_kernel {
    TSR_ATTN_AUTO,
    TSR_ATTN_FLASH1,
    TSR_ATTN_FLASH1_TRITON,
    TSR_ATTN_FLASH2,
    TSR_ATTN_FLASH3,
    TSR_ATTN_CUDNN,
    TSR_ATTN_MATH,
    TSR_N_ATTENTION_KERNELS
};

/* Whose norms; AUTO is what the program says: compiled for fused kernels, else eager. */
enum tsr_norm_kernel {
    TSR_NORMS_AUTO,
    TSR_NORMS_EAGER,
    TSR_NORMS_COMPILED,
    TSR_NORMS_CUDNN,
    TSR_N_NORM_KERNELS
};

/* Choices that change times only. All zero: the defaults. */
struct tsr_kernel_choice {
    unsigned attention; /* enum tsr_attention_kernel */
    unsigned norm;      /* enum tsr_norm_kernel */
    bool tf32;          /* fp32 matrix products on tensor cores */
};

/* How a job is simulated. Zero is not the default: begin with tsr_sim_options_default(). */
struct tsr_sim_options {
    /* Host costs, seconds per instruction kind (tsr_sim_options_default() gives sourced values). */
    double host_launch_s;     /* a kernel or copy of the model */
    double host_compiled_s;   /* a kernel that compiled code launches (tsr_work.compiled) */
    double host_region_s;     /* a call of compiled code, beside its kernels */
    double host_collective_s; /* a collective, with its hook's work */
    double host_event_s;      /* RECORD, WAIT */
    double host_alloc_s;      /* ALLOC, FREE */
    double host_segment_s;    /* cudaMalloc, cudaFree; on top of it what the bytes cost (cost.h) */
    double host_scale;        /* multiplies all of them; 0 = an infinitely fast host */
    /* Device instructions that the host may be ahead; 0 = unlimited. From 64 on the device gives
     * places back 16 at a time. */
    uint32_t queue_depth;
    /* CUDA_DEVICE_MAX_CONNECTIONS: hardware queues; streams take them in turn. In a queue nothing
     * starts before what was issued before it has started, and a wait holds up all behind it.
     * 0: a queue per stream. */
    uint32_t max_connections;
    double latency_scale;    /* multiplies NCCL's latencies and kernel start-up; 0 = none */
    double link_efficiency;  /* reachable share of every link's rate; 0: the calibrated ones */
    bool infinite_bandwidth; /* links cost nothing */
    enum tsr_algorithm algorithm;
    enum tsr_protocol protocol;
    bool fold;         /* simulate one rank per symmetry class */
    bool nccl_at_init; /* communicators connect when they are made; changes memory, no time */
    /* One slow GPU: its kernels take slow_factor times as long. slow_factor 0 or 1: none. */
    uint32_t slow_rank;
    double slow_factor;
    struct tsr_kernel_choice kernels;
    double nic_bw;   /* overrides the cluster's, bytes/s per NIC; 0: no override */
    double intra_bw; /* overrides the cluster's, bytes/s per GPU; 0: no override */
    struct tsr_conditions conditions;
    /* [nodes of the job]: the node of the cluster that the job's i-th node is; NULL: the same.
     * Borrowed. Ranks without any instruction may lie on nodes of others. */
    const uint32_t *node_of;
};

#endif
