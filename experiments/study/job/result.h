/* result.h: what `compare` and `sim` know about one simulated strategy; the reports (report.h) turn
 * it into tables, files and pictures. Everything in it is derived from the recorded programs and
 * their timed replay.
 */
#ifndef TSR_STUDY_RESULT_H
#define TSR_STUDY_RESULT_H

#include "engine/program/memory.h"
#include "engine/tessera.h"
#include "experiments/study/config/changes.h"
#include "experiments/study/config/section.h"
#include "experiments/study/job/fit.h"
#include "experiments/study/job/host_fit.h"
#include "sim/figures/metrics.h"
#include "sim/sim.h"

/* Memory of a section of the run: maxima over it and over the rank classes, bytes. */
struct tsr_section_peak {
    bool there;     /* it was emitted */
    double added_s; /* what it adds to the time of the run; 0: not simulated */
    uint64_t allocated, reserved;
    uint64_t host, pinned; /* of the process: pageable buffers, page-locked memory held */
    uint64_t node_host;    /* of the ranks of a node, the fullest; 0 without a cluster, too */
    char module[96];       /* the owner of the allocation that made the allocated peak */
    char phase[32];
};

/* Steps with other noise each (key sim.samples). */
struct tsr_samples {
    uint32_t n; /* 0: none were taken */
    double p5_s, p50_s, p95_s, mean_s;
};

/* Printed below a table of which an MFU is above 100 %. */
#define TSR_MFU_OVER_PEAK                                                                \
    "MFU above 100 %: it counts causal attention in full (PaLM, arXiv 2204.02311), and " \
    "kernels compute half of that."

/* What is known of the error of a predicted time (validated.h). Plain data. */
struct tsr_time_error {
    bool is_predicted; /* false: the time was measured, or nothing was predicted */
    bool extrapolated; /* the error is not known: no class has been measured that is like it */
    bool many_nodes;
    char api[16], gpu[64];
    uint32_t nearest;   /* number of the nearest class, from 1; 0: there is none */
    uint64_t differs;   /* the set of differences from that class (validated_class.h) */
    uint32_t rows;      /* of that class */
    double median, p90; /* of the rows' errors, as shares of the measured time */
    uint32_t nodes;     /* that the job has */
    double straggler_share, slowest; /* sim.calibration.straggler_share, and what it adds to the
                                        time of the slowest rank's kernels, as a share */
};

/* The device of ranks that are cores of a machine, in runs and in what calibrate makes of it. */
#define TSR_HOST_DEVICE "host"

/* One row of a comparison. Plain data: written through a pipe when strategies run in parallel. */
struct tsr_row {
    char strategy[96];
    char summary[160];          /* the options of the strategy in words */
    struct tsr_changes changes; /* beside its speed, against the reference of the study */
    char failure[512];          /* "" = simulated; else the one-line reason (out of memory, ...) */
    int failure_status;         /* exit status of `sim` for it (3: does not fit) */
    uint8_t oom_phase; /* out of memory: enum tsr_phase of the request; TSR_N_PHASES: unknown */
    char remedy[96];   /* out of memory: what would have fitted; "" = it was not looked for */
    bool trains;       /* it names files to train on */
    bool measured;     /* times are those of a run in earnest */
    uint32_t world;
    char device[64]; /* of each rank: a device file's name; of a run "host", or the GPU's own name
                        as calibrate writes it ("nvidia-h200") */
    uint64_t tokens_per_rank; /* of one iteration */
    struct tsr_metrics first, steady;
    double mfu; /* time of the model's FLOP at the peak of the dtype of each kernel, over step time;
                   above 1 see TSR_MFU_OVER_PEAK; negative: unknown */
    uint64_t peak_allocated, peak_reserved; /* steady iteration, largest over rank classes */
    uint64_t first_peak_allocated, first_peak_reserved;
    uint64_t peak_by_category[TSR_N_CATEGORIES];
    char peak_module[160]; /* its owner, as tsr_owner_of() names it */
    char peak_phase[32];
    uint64_t usable_bytes; /* the card's visible bytes; 0: unknown */
    /* Outside the allocator, bytes; negative: unknown. */
    int64_t context_bytes, library_bytes, nccl_bytes;
    uint64_t most_reserved;  /* over all sections that were emitted */
    uint64_t most_requested; /* by tensors at a time: no allocator needs less */
    /* `run --on cuda` keeps these beside, for cuBLASLt and cuDNN (struct tsr_workspaces); PyTorch
     * does not, and no verdict counts them; the second: with --deterministic. */
    uint64_t run_workspace_bytes, run_workspace_deterministic_bytes;
    uint64_t needed;    /* most_reserved with what is known to lie outside the allocator */
    int fits;           /* enum tsr_fits: NO too where the host's memory is too small */
    struct tsr_fit fit; /* of the GPU alone, and what that rests on */
    struct tsr_host_fit node_host; /* of the hosts alone */
    double unknown_s; /* of the steady step: kernels of a trace that are priced by what they
                         move; 0: none, or no trace */
    double retry_s;   /* that retries add to the steady step; negative: unknown */
    /* The host's memory of one rank, largest over the run and the rank classes. */
    uint64_t host_bytes, pinned_bytes;
    unsigned show_sections; /* set of 1 << enum tsr_section: those that `phases` names */
    struct tsr_section_peak sections[TSR_N_SECTIONS];
    uint64_t program_hash, expected_exec_hash, exec_hash;
    uint64_t n_instructions, n_activities;
    uint32_t n_iterations, n_rank_classes, n_simulated_ranks;
    double emit_s, sim_s; /* wall time of this machine */
    struct tsr_samples samples;
    struct tsr_time_error time_error;
};

/* The detail of one strategy: the programs and replay of the rank that a picture shows. */
struct tsr_detail {
    const struct tsr_row *row;
    const struct tsr_program *const *programs; /* [n_iterations] of the shown rank's class */
    struct tsr_sim_span *const *spans;         /* [n_iterations] of the shown rank */
    const double *iteration_end;               /* [n_iterations] */
    const double *joined;                      /* of tsr_sim_rank; NULL: unknown */
    uint32_t n_iterations;
    uint32_t steady;   /* index of the steady iteration */
    const char *shown; /* [n_iterations] 1 + enum tsr_section of the programs that the curve of the
                          run shows, else 0; NULL: there is no such curve */
    uint32_t rank;
    /* The kernels of GPU slow_rank take slow_factor times as long (sim.slow_rank); 0 or 1: no GPU
     * is slow, or it is unknown. */
    uint32_t slow_rank;
    double slow_factor;
    const struct tsr_allocator_config *allocator; /* NULL: the defaults */
};

/* Configurations that somebody has measured, and how far predictions were off (validated.h). */
struct tsr_measured_class {
    char api[16], gpu[64], stack[64]; /* stack "": the defaults of the table of keys */
    char models[64];                  /* families, "llama, mpt" */
    char varied[512];                 /* keys that its rows set otherwise than the stack does */
    char source[128];                 /* tables, "a.csv, b.csv" */
    bool many_nodes;
    uint32_t min_gpus, max_gpus, rows; /* rows 0: there is no such class */
    uint64_t min_params, max_params;   /* of the models of its rows */
    double median, p90, max;
};

/* What `tessera run` needs to be told to run one strategy of a study. */
struct tsr_run_words {
    const char *strategy;   /* as rows name it */
    const char *name;       /* for --strategy */
    const char *const *set; /* [n_set] for --set */
    size_t n_set;
};

/* Strategies of a study with one API on one kind of card, on one node or more, of which one class
 * is the nearest that was measured; those of which no error is known are one group. */
struct tsr_validated {
    struct tsr_time_error first;   /* of the first strategy of the group */
    struct tsr_time_error largest; /* of the strategy with the most nodes */
    struct tsr_measured_class nearest;
    /* Sets of differences (validated_class.h): from the nearest class those of all strategies,
     * those of some of them; of any strategy those that leave its error unknown. */
    uint64_t differs, some_differ, beyond;
};

/* What a whole comparison says about itself. */
struct tsr_study_info {
    const char *title;
    /* Of all strategies: "a, b, c" where they differ, "9 models" if they are more than three. */
    const char *model_name, *cluster_name, *device_file, *gpu_name;
    uint32_t world, most_world; /* fewest and most ranks of a strategy */
    const char *config_path;    /* the experiment file */
    const char *const *sets;    /* [n_sets] "batch=2": what was given besides, if it lacks that */
    size_t n_sets;
    const struct tsr_run_words *runs; /* [n_runs], one per strategy; may be none */
    size_t n_runs;
    const char *resolved_yaml; /* the resolved configuration, complete */
    bool no_traces;            /* no trace, no snapshot, memory.csv compressed */
    bool measured;             /* times are those of a run, not of a simulation */
    uint32_t cores;            /* of the machine that ran; 0: it ran on GPUs, or not at all */
    uint32_t gpus_here;        /* GPUs of this machine that the program can run on; 0: none */
    const char *time_sources;  /* of kernels and collectives, in words; NULL: nothing is said */
    const struct tsr_validated *validated; /* [n_validated] classes that occur in the study */
    size_t n_validated;
};

#endif
