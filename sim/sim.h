/* sim.h: runs recorded step programs on a SimGrid model of a cluster.
 *
 * SimGrid owns time, sharing and contention: every byte between GPUs is a SimGrid flow, every
 * kernel a SimGrid exec. Streams, events and communicator queues are ours (replay.c). One
 * simulation is one child process; the caller gets plain data back. Times are seconds from the
 * start.
 */
#ifndef TSR_SIM_H
#define TSR_SIM_H

#include "engine/program/program.h"
#include "sim/cluster/cluster.h"
#include "sim/input/conditions.h"

/* NCCL's algorithms; AUTO takes what its tuner would (tuner.c says which exist for what). */
enum tsr_algorithm {
    TSR_ALGO_AUTO,
    TSR_ALGO_RING,
    TSR_ALGO_TREE,
    TSR_ALGO_NVLS,
    TSR_ALGO_NVLS_TREE,
    TSR_ALGO_PAT,
    TSR_ALGO_COPY_ENGINE,
    TSR_N_ALGORITHMS
};
enum tsr_protocol { TSR_PROTO_AUTO, TSR_PROTO_LL, TSR_PROTO_LL128, TSR_PROTO_SIMPLE };

struct tsr_sim_options {
    /* Host costs, seconds per instruction kind (tsr_sim_options_default() gives sourced values). */
    double host_launch_s;     /* a kernel or copy of the model */
    double host_compiled_s;   /* a kernel that compiled code launches (tsr_work.compiled) */
    double host_region_s;     /* a call of compiled code, beside its kernels */
    double host_collective_s; /* a collective, with its hook's work */
    double host_event_s;      /* RECORD, WAIT */
    double host_alloc_s;      /* ALLOC, FREE */
    double host_segment_s;    /* cudaMalloc, cudaFree */
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
    bool fold; /* simulate one rank per symmetry class */
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
struct tsr_sim_options tsr_sim_options_default(void);

/* A job: the programs of each rank class, iteration after iteration (the first may be iteration -1,
 * the initialisation). All classes have the same number of iterations. Borrowed. */
struct tsr_sim_job {
    uint32_t world, n_classes, n_iterations;
    const uint32_t *class_of;                         /* [world] */
    const struct tsr_program *const *const *programs; /* [class][iteration] */
};

struct tsr_sim_span {
    double issue;      /* the host had issued it */
    double start, end; /* on its stream; for MARK, ALLOC, FREE: = issue */
};

struct tsr_sim_rank {
    uint32_t rank;               /* a global rank of the class */
    uint32_t layout;             /* index of its program class */
    uint32_t weight;             /* ranks that it stands for */
    struct tsr_sim_span **spans; /* [iteration][instruction] */
    uint64_t *exec_hash;         /* [iteration]: executed hash, see program.h */
    /* Bytes that this rank put on the wire, per iteration. */
    uint64_t *sent_intra, *sent_inter;
    /* [collectives and messages of all iterations, in issue order]: when the last member had come;
     * 0: nobody else takes part. */
    double *joined;
};

struct tsr_sim_result {
    uint32_t n_ranks, n_iterations;
    struct tsr_sim_rank *ranks;
    double *iteration_end; /* [iteration]: the last rank's host and streams are done */
    uint64_t n_activities; /* SimGrid activities */
    double wall_s;         /* of the child */
};

/* Errors: TSR_ECONFIG (world larger than the cluster, a needed value unknown), TSR_EUNSUPPORTED,
 * TSR_EBACKEND (SimGrid failed: its last line; or a deadlock: first blocked instruction of every
 * stream and what it waits for). */
tsr_status tsr_sim_run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                       const struct tsr_sim_options *options,
                       struct tsr_sim_result **out) TSR_MUST_USE;
void tsr_sim_result_destroy(struct tsr_sim_result *result);

/* A step of the last iteration of `job` (tsr_metrics.step_s) cannot take less time than this; 0:
 * nothing is known. Derived from the programs with the simulator's prices; nothing is simulated.
 * Errors: as tsr_sim_run(). */
tsr_status tsr_sim_step_bound(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                              const struct tsr_sim_options *options, double *seconds) TSR_MUST_USE;

/* Seconds that a kernel takes alone on the card; what replay.c gives to SimGrid. */
tsr_status tsr_cost_kernel(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                           const struct tsr_work *work, double *seconds) TSR_MUST_USE;
/* Takes the measured point of exactly this kernel out of the tables; false: there is none. */
bool tsr_kernels_forget(struct tsr_kernels *kernels, const struct tsr_kernel_choice *choice,
                        const struct tsr_work *work);

#endif
