/* gpus.h: what the program has on GPUs, as a table of functions. Only the program tessera-cuda has
 * that table (cuda/gpus.c): loading CUDA's libraries takes longer than most of what `tessera` is
 * asked for. `tessera` starts tessera-cuda in its place (gpus_none.c). So whoever holds a table, or
 * GPUs that it opened, is in the program that can use them.
 */
#ifndef TSR_CLI_GPUS_H
#define TSR_CLI_GPUS_H

#include <stdio.h>

#include "exec/executor/executor.h"

struct tsr_args;
struct tsr_calibrated;
struct tsr_job;
struct tsr_launch;

/* The GPUs of this process, opened. */
struct tsr_gpus {
    const struct tsr_gpu_ops *ops;
    char name[64]; /* of the first of them, as in the names of files: "nvidia-h200" */
};

/* What a rank's executor is made of. */
struct tsr_gpu_rank {
    uint32_t rank;
    struct tsr_world *world;
    const struct tsr_source *source;
    struct tsr_executor *watcher; /* NULL: none */
    bool profile;
};

/* What the program asks of GPUs; one table, of the build with CUDA. Without it there is none. */
struct tsr_gpu_ops {
    /* Who knows the kernels. */
    const struct tsr_device_ops *(*kernels)(void);

    /* The options that GPUs are about, before anything is opened. threads: ranks are. */
    tsr_status (*check)(const struct tsr_args *args, bool threads);

    /* For a training. segments, scratch: bytes that a rank of `job` is predicted to take, the
     * latter for libraries. world: of processes; NULL: all ranks are threads of this one. All
     * ranks' processes call it, and fail together. TSR_ECONFIG: no such GPU, or two ranks on one;
     * TSR_EBACKEND: no driver, or one that is too old; TSR_EOOM: the job is larger than the GPU. */
    tsr_status (*open)(const struct tsr_args *args, const struct tsr_launch *launch,
                       const struct tsr_job *job, uint64_t segments, uint64_t scratch,
                       struct tsr_world *world, struct tsr_gpus **out);
    /* One GPU, the first, for n ranks that are threads, for what is no training: everything is
     * checked (poison), nothing depends on chance. */
    tsr_status (*share)(uint32_t n, struct tsr_gpus **out);
    void (*close)(struct tsr_gpus *gpus); /* NULL is fine */

    /* Called by the rank's own thread. *device: the executor's, borrowed. */
    tsr_status (*rank)(struct tsr_gpus *gpus, const struct tsr_gpu_rank *rank,
                       struct tsr_executor **out, struct tsr_device **device);
    /* A line for people about the memory that the rank took. */
    void (*tell_memory)(const struct tsr_device *device, FILE *notes);

    /* A GPU as a device that is calibrated (calibrate/calibrate.h). Of args: --gpu, --comm. Errors:
     * as open(). */
    tsr_status (*calibrated)(const struct tsr_args *args, struct tsr_calibrated *out);
};

/* The table of the program that has GPUs; the other one returns only if it cannot be replaced by
 * that. argv: the subcommand and its words. TSR_EUNSUPPORTED: tessera-cuda is not there. */
tsr_status tsr_gpu_program(char *const *argv, const struct tsr_gpu_ops **out) TSR_MUST_USE;

/* Writes the path of tessera-cuda, which lies beside this program. Errors: TSR_EUNSUPPORTED: it is
 * not there; TSR_EBACKEND. */
tsr_status tsr_gpu_sibling(char path[4096]) TSR_MUST_USE;
/* Returns how many GPUs of this machine `run --on cuda` may use, by their device files; 0 if there
 * is no program that does. */
uint32_t tsr_gpus_here(void);

#endif
