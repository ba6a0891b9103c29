/* run_gpu.h: the GPUs of `tessera run --on cuda`. Only the program tessera-cuda has them
 * (cuda/run_gpu.c): loading CUDA's libraries takes longer than most of what `tessera` is asked for.
 * `tessera` starts that program in its place (run_gpu_none.c).
 */
#ifndef TSR_CLI_RUN_GPU_H
#define TSR_CLI_RUN_GPU_H

#include "exec/executor/executor.h"
#include "exec/launch/launch.h"
#include "experiments/cli/run/run_job.h"

/* Returns TSR_OK in the program that has GPUs; in the other one only if it cannot be replaced by
 * that. argv: the subcommand and its words. TSR_EUNSUPPORTED: it is not there. */
tsr_status tsr_run_gpu_program(char *const *argv) TSR_MUST_USE;

/* Who knows the kernels; NULL in the program without GPUs. */
const struct tsr_device_ops *tsr_run_gpu_kernels(void);

/* The options that GPUs are about, before anything is opened. */
tsr_status tsr_run_gpu_check(const struct tsr_args *args, bool threads) TSR_MUST_USE;

/* The folder in which plans of matrix products are kept for the user's next runs; "": none. Only
 * in the program with GPUs. */
void tsr_run_gpu_plans(char *out, size_t size);

/* The GPUs of this process. */
struct tsr_run_gpu;
/* world: of processes; NULL: all ranks are threads of this one. All ranks' processes call it, and
 * fail together. TSR_ECONFIG: no such GPU, or two ranks on one; TSR_EBACKEND: no driver, or one
 * that is too old; TSR_EOOM: the job is larger than the GPU. */
tsr_status tsr_run_gpu_open(const struct tsr_args *args, const struct tsr_launch *launch,
                            const struct tsr_run_job *run, struct tsr_world *world,
                            struct tsr_run_gpu **out) TSR_MUST_USE;
/* One GPU, the first, for n ranks that are threads, for what is no training: everything is checked
 * (poison), nothing depends on chance. */
tsr_status tsr_run_gpu_share(uint32_t n, struct tsr_run_gpu **out) TSR_MUST_USE;
void tsr_run_gpu_close(struct tsr_run_gpu *gpu); /* NULL is fine */

/* What a rank's executor is made of; called by the rank's own thread. */
struct tsr_run_gpu_rank {
    uint32_t rank;
    struct tsr_world *world;
    const struct tsr_source *source;
    struct tsr_executor *watcher; /* NULL: none */
    bool profile;
};
tsr_status tsr_run_gpu_rank(struct tsr_run_gpu *gpu, const struct tsr_run_gpu_rank *rank,
                            struct tsr_executor **out, struct tsr_device **device) TSR_MUST_USE;
/* A line for people about the memory that the rank took. */
void tsr_run_gpu_tell_memory(const struct tsr_device *device, FILE *notes);

#endif
