/* sim_testing.h: programs built by hand and run on small made-up clusters. One test is one
 * executable, so everything is in this header. */
#ifndef TSR_SIM_TESTING_H
#define TSR_SIM_TESTING_H

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/figures/metrics.h"
#include "sim/sim.h"

enum { MAX_CLASSES = 64, MAX_ITERATIONS = 8, MAX_WORLD = 1024, MAX_COMMS = 8 };

/* Streams of every job; a collective runs on S_GATHER or S_REDUCE. */
enum { S_COMPUTE, S_GATHER, S_REDUCE, S_ALL_REDUCE, S_USER, N_STREAMS };

struct job {
    struct tsr_tables tables;
    struct tsr_comm comms[MAX_COMMS];
    struct tsr_program programs[MAX_CLASSES][MAX_ITERATIONS];
    const struct tsr_program *rows[MAX_CLASSES][MAX_ITERATIONS];
    const struct tsr_program *const *classes[MAX_CLASSES];
    uint32_t class_of[MAX_WORLD];
    struct tsr_sim_job sim;
};

/* All ranks are of class 0 until the test says otherwise. */
static inline struct job *job_create(uint32_t world, uint32_t n_classes, uint32_t n_iterations)
{
    static const struct tsr_stream_info streams[N_STREAMS] = {
        {"default", TSR_ROLE_COMPUTE, 0},
        {"all_gather", TSR_ROLE_ALL_GATHER, -1},
        {"reduce_scatter", TSR_ROLE_REDUCE_SCATTER, -1},
        {"all_reduce", TSR_ROLE_ALL_REDUCE, -1},
        {"user", TSR_ROLE_USER, 0},
    };
    struct job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    job->tables = (struct tsr_tables){
        .world = world, .n_streams = N_STREAMS, .streams = streams, .comms = job->comms};
    for (uint32_t c = 0; c < n_classes; c++) {
        for (uint32_t i = 0; i < n_iterations; i++) {
            tsr_program_init(&job->programs[c][i], &job->tables);
            job->rows[c][i] = &job->programs[c][i];
        }
        job->classes[c] = job->rows[c];
    }
    job->sim = (struct tsr_sim_job){.world = world,
                                    .n_classes = n_classes,
                                    .n_iterations = n_iterations,
                                    .class_of = job->class_of,
                                    .programs = job->classes};
    return job;
}

static inline void job_destroy(struct job *job)
{
    for (uint32_t c = 0; c < job->sim.n_classes; c++)
        for (uint32_t i = 0; i < job->sim.n_iterations; i++)
            tsr_program_fini(&job->programs[c][i]);
    free(job);
}

/* A communicator with a wire queue of its own, or (queue >= 0) one that shares another's. */
static inline uint16_t job_comm(struct job *job, const char *name, uint32_t size, uint32_t stride,
                                int queue)
{
    uint16_t index = job->tables.n_comms++;
    assert_true(index < MAX_COMMS);
    job->comms[index] = (struct tsr_comm){.name = name,
                                          .size = size,
                                          .stride = stride,
                                          .separate = queue < 0,
                                          .queue = queue < 0 ? index : (uint16_t)queue};
    return index;
}

/* ---- instructions: class `c`, iteration `it` --------------------------------------------- */

static inline void put(struct job *job, int c, int it, const struct tsr_instr *instr)
{
    assert_int_equal(tsr_program_append(&job->programs[c][it], instr), TSR_OK);
}

static inline void put_kind(struct job *job, int c, int it, uint8_t kind, uint16_t stream)
{
    struct tsr_instr instr = {.kind = kind, .stream = stream, .comm = UINT16_MAX};
    put(job, c, it, &instr);
}

static inline void put_collective(struct job *job, int c, int it, uint8_t kind, uint16_t stream,
                                  uint16_t comm, uint64_t bytes)
{
    struct tsr_instr instr = {
        .kind = kind, .dtype = TSR_BF16, .stream = stream, .comm = comm, .bytes = bytes};
    put(job, c, it, &instr);
}

static inline void put_p2p(struct job *job, int c, int it, uint8_t kind, uint16_t stream,
                           uint16_t comm, uint16_t peer, uint64_t bytes)
{
    struct tsr_instr instr = {
        .kind = kind, .stream = stream, .comm = comm, .peer = peer, .bytes = bytes};
    put(job, c, it, &instr);
}

/* A kernel of `us` microseconds on the test GPU. */
static inline void put_kernel(struct job *job, int c, int it, uint16_t stream, double us)
{
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = TSR_F32,
                            .name = "kernel",
                            .bytes_read = (uint64_t)(us * 1e6)};
    struct tsr_instr instr = {
        .kind = TSR_OP, .stream = stream, .comm = UINT16_MAX, .work = &work, .dtype = TSR_F32};
    put(job, c, it, &instr);
}

static inline void put_event(struct job *job, int c, int it, uint8_t kind, uint16_t stream,
                             uint32_t event)
{
    struct tsr_instr instr = {.kind = kind, .stream = stream, .comm = UINT16_MAX, .event = event};
    put(job, c, it, &instr);
}

/* `stream` waits for what has been issued on `other`. */
static inline void put_after(struct job *job, int c, int it, uint16_t stream, uint16_t other,
                             uint32_t *event)
{
    put_event(job, c, it, TSR_RECORD, other, *event);
    put_event(job, c, it, TSR_WAIT, stream, (*event)++);
}

/* A step like FSDP's: per layer a gather ahead of forward, one ahead of backward, a reduce-scatter
 * behind it, and an all-reduce on `replicate` unless that is UINT16_MAX. */
static inline void put_step(struct job *job, int c, int it, int layers, uint16_t shard,
                            uint16_t replicate, uint64_t bytes, double us)
{
    uint32_t event = 1;
    for (int l = 0; l < 2 * layers; l++) {
        bool backward = l >= layers;
        put_collective(job, c, it, TSR_ALL_GATHER, S_GATHER, shard, bytes);
        put_after(job, c, it, S_COMPUTE, S_GATHER, &event);
        put_kernel(job, c, it, S_COMPUTE, backward ? 2 * us : us);
        if (!backward)
            continue;
        put_after(job, c, it, S_REDUCE, S_COMPUTE, &event);
        put_collective(job, c, it, TSR_REDUCE_SCATTER, S_REDUCE, shard, 2 * bytes);
        if (replicate == UINT16_MAX)
            continue;
        put_after(job, c, it, S_ALL_REDUCE, S_REDUCE, &event);
        put_collective(job, c, it, TSR_ALL_REDUCE, S_ALL_REDUCE, replicate,
                       2 * bytes / job->comms[shard].size);
    }
    put_after(job, c, it, S_COMPUTE, S_REDUCE, &event);
    put_after(job, c, it, S_COMPUTE, S_ALL_REDUCE, &event);
    put_kernel(job, c, it, S_COMPUTE, us);
}

/* ---- machines ---------------------------------------------------------------------------- */

/* Nodes of 8 GPUs, 400 GB/s NVLink, one 50 GB/s NIC per GPU. */
static inline struct tsr_cluster test_cluster(uint32_t nodes)
{
    struct tsr_cluster c = {
        .name = "test",
        .path = "test.json",
        .node_name = "test",
        .nodes = nodes,
        .gpus_per_node = 8,
        .intra = TSR_INTRA_NVSWITCH,
        .intra_bw = 400e9,
        .nvlink_domain_gpus = 8,
        .nics_per_node = 8,
        .nic_bw = 50e9,
        .topology = "fat_tree",
        .gpu = {.name = "test",
                .path = "gpu-test.json",
                .architecture = "Hopper",
                .sm_count = 100,
                .visible_bytes = UINT64_C(80) << 30,
                .memory_bw = 1e12 / 0.85, /* a pointwise kernel moves 1e6 bytes in 1 us */
                .pcie_bw = 50e9,
                .nvlink_bw = 400e9,
                .peak_flops = {1e15, 1e15, 2e15, 5e14, 5e13, 0.0},
                .achievable_bf16 = 8e14},
    };
    c.gpu.traits = tsr_gpu_traits_of(c.gpu.architecture);
    c.gpu.calibration = tsr_calibration_default();
    return c;
}

/* Bytes and kernels alone decide: no host cost, no latency, rings, links at their nominal rate. */
static inline struct tsr_sim_options exact_options(void)
{
    struct tsr_sim_options o = tsr_sim_options_default();
    o.host_scale = 0.0;
    o.latency_scale = 0.0;
    o.link_efficiency = 1.0;
    o.algorithm = TSR_ALGO_RING;
    o.protocol = TSR_PROTO_SIMPLE;
    o.queue_depth = 0;
    o.fold = false;
    return o;
}

static inline struct tsr_sim_result *run_job(const struct tsr_cluster *cluster,
                                             const struct job *job,
                                             const struct tsr_sim_options *options)
{
    struct tsr_sim_result *result;
    tsr_status status = tsr_sim_run(cluster, &job->sim, options, &result);
    if (status != TSR_OK)
        fail_msg("tsr_sim_run: %s", tsr_error_text());
    return result;
}

/* End of the last iteration. */
static inline double run_time(const struct tsr_cluster *cluster, const struct job *job,
                              const struct tsr_sim_options *options)
{
    struct tsr_sim_result *result = run_job(cluster, job, options);
    double end = result->iteration_end[result->n_iterations - 1];
    tsr_sim_result_destroy(result);
    return end;
}

static inline void assert_close_at(double value, double expected, double relative, const char *file,
                                   int line)
{
    double scale = fabs(expected) > 0.0 ? fabs(expected) : 1.0;
    if (!(fabs(value - expected) <= relative * scale)) {
        print_error("%.17g is not %.17g within %g (off by %g)\n", value, expected, relative,
                    (value - expected) / scale);
        _fail(file, line);
    }
}
#define assert_close(value, expected, relative) \
    assert_close_at((value), (expected), (relative), __FILE__, __LINE__)

/* Deterministic random numbers. */
static inline uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

#endif
