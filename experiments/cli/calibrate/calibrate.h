/* calibrate.h: what `tessera calibrate --on DEVICE` times, and the files it makes of that.
 *
 * Nothing is timed by code of its own: small trainings, whose programs the engine writes, run on
 * the executor of the device, whose spans are the times of kernels and whose issue times are those
 * of the host (calibrate_kernels.c); collectives are programs written by hand
 * (calibrate_collectives.c). So another device is calibrated by another struct tsr_calibrated.
 */
#ifndef TSR_CLI_CALIBRATE_H
#define TSR_CLI_CALIBRATE_H

#include "engine/program/program.h"
#include "exec/executor/executor.h"
#include "experiments/cli/args/args.h"

/* ---- times ----------------------------------------------------------------------------------- */

/* By what took them. The time of a thing is the median of its samples: the machine may do
 * other things in between. */

/* Samples of one quantity, seconds. */
struct tsr_durations {
    double *items;
    size_t n, cap;
};

/* A kernel at one size. */
struct tsr_kernel_times {
    char name[48];
    uint8_t op, dtype; /* enum tsr_op_kind; of the arithmetic */
    bool per_flop;     /* of products and attention */
    double work;       /* FLOP or bytes */
    uint64_t dims[TSR_MAX_DIMS];
    struct tsr_durations seconds;
};

/* A collective at one size. */
struct tsr_collective_times {
    uint8_t kind; /* enum tsr_instr_kind */
    uint32_t ranks;
    uint64_t bytes;
    struct tsr_durations seconds;
};

/* What issuing costs the host, by kind of instruction. */
enum tsr_issue_time {
    TSR_ISSUE_LAUNCH,
    TSR_ISSUE_COLLECTIVE,
    TSR_ISSUE_EVENT,
    TSR_ISSUE_ALLOC,
    TSR_ISSUE_SEGMENT,
    TSR_N_ISSUE_TIMES
};

/* All samples of a calibration, by what took them; owned, seconds. */
struct tsr_times {
    struct tsr_kernel_times *kernels;
    size_t n_kernels, cap_kernels;
    struct tsr_collective_times *collectives;
    size_t n_collectives, cap_collectives;
    struct tsr_durations host[TSR_N_ISSUE_TIMES];
    double effective_cores; /* as ranks that compute at once show; 0: not timed */
};
void tsr_times_fini(struct tsr_times *times);

/* Adds a run of a kernel; what has neither FLOP nor bytes is left out. */
tsr_status tsr_times_kernel(struct tsr_times *times, const struct tsr_work *work,
                            double seconds) TSR_MUST_USE;
tsr_status tsr_times_collective(struct tsr_times *times, const struct tsr_instr *instr,
                                uint32_t ranks, double seconds) TSR_MUST_USE;
/* Adds what the host took from one instruction to the next. */
tsr_status tsr_times_host(struct tsr_times *times, const struct tsr_instr *instr,
                          double seconds) TSR_MUST_USE;

/* ---- calibration ----------------------------------------------------------------------------- */

/* Dimensions of a small training that is timed. */
struct tsr_calibrate_size {
    uint32_t hidden, ffn, heads, kv_heads, vocab, seq, batch;
    bool only_bf16; /* products of true f32 would take minutes */
};

/* Of everything that waits for another rank. */
enum { TSR_CALIBRATE_TIMEOUT_S = 300 };

struct tsr_calibrate_rank;

/* A device that can be calibrated. */
struct tsr_calibrated {
    char name[64];      /* "host"; of the files */
    char what[128];     /* in a description: "2 processor cores", "NVIDIA H200" */
    char family[32];    /* "architecture" of a device file */
    uint32_t units;     /* multiprocessors; 0: it has none */
    uint64_t memory;    /* bytes; 0: not known */
    uint32_t ranks;     /* most that can run together */
    bool shared;        /* they share the device, and take turns on it ... */
    uint32_t cores;     /* ... or, if this is not 0, on so many processor cores */
    const char *source; /* what the times are from; NULL: this machine */
    const struct tsr_args *args;
    const struct tsr_calibrate_size *sizes; /* those that do not fit are left out */
    size_t n_sizes;
    const uint64_t *collective_bytes; /* ascending, all above 4096 */
    size_t n_collective_bytes;
    /* What n ranks that run together share; NULL functions: nothing. */
    tsr_status (*open)(const struct tsr_calibrated *device, uint32_t n, void **group);
    void (*close)(void *group);
    /* An executor that keeps times; `watcher` sees every instruction. Called by the rank's own
     * thread. Destroyed through its ops. */
    tsr_status (*rank)(const struct tsr_calibrate_rank *rank, const struct tsr_source *source,
                       struct tsr_executor *watcher, struct tsr_executor **out);
};
/* That of GPUs: struct tsr_gpu_ops. */
void tsr_calibrated_host(struct tsr_calibrated *out);

/* Times kernels and the host into `times`; and how many ranks the machine runs at full speed. */
tsr_status tsr_calibrate_kernels(const struct tsr_calibrated *device,
                                 struct tsr_times *times) TSR_MUST_USE;
/* Times the collectives of 2 to `most` ranks. */
tsr_status tsr_calibrate_collectives(const struct tsr_calibrated *device, uint32_t most,
                                     struct tsr_times *times) TSR_MUST_USE;

/* DIR/gpu-NAME.json, kernels-NAME.json, node-NAME.json, cluster-NAME.json: what `compare` takes as
 * a cluster. `ranks`: of the node. */
tsr_status tsr_calibrate_write(const struct tsr_calibrated *device, struct tsr_times *times,
                               uint32_t ranks, const char *dir) TSR_MUST_USE;

/* `tessera calibrate TRACE --out DIR`: those files from a trace of PyTorch's profiler, and what it
 * lacked on stderr. Errors: TSR_ECONFIG with the file. */
tsr_status tsr_calibrate_trace(const struct tsr_args *args) TSR_MUST_USE;

/* A rank as a thread of a group; all run `run` at once. */
struct tsr_calibrate_rank {
    const struct tsr_calibrated *device;
    void *group;             /* of device->open() */
    const void *job;         /* what `run` works on; borrowed */
    struct tsr_world *world; /* NULL: alone */
    uint32_t rank, size;
    struct tsr_times *times; /* rank 0's; NULL: not kept */
    double seconds;          /* out: of a step, in kernels of the device */
    tsr_status status;
    char text[512];
};
typedef tsr_status (*tsr_calibrate_run_fn)(struct tsr_calibrate_rank *rank);
/* Runs n ranks to their ends: of one world, or each in its own. *seconds (may be NULL): rank 0's.
 */
tsr_status tsr_calibrate_group(const struct tsr_calibrated *device, const void *job, uint32_t n,
                               bool together, tsr_calibrate_run_fn run, struct tsr_times *times,
                               double *seconds) TSR_MUST_USE;

#endif
