/* run_gpu_none.c: the program without GPUs; see run_gpu.h. */
#include "experiments/cli/run/run_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "experiments/cli/calibrate/calibrate.h"

enum { WORDS = 2048 };

/* The program beside this one. */
static tsr_status find_sibling(char path[4096])
{
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    if (n <= 0)
        return tsr_fail(TSR_EBACKEND, "run: --on cuda: this program's folder is unknown: %s",
                        strerror(errno));
    path[n] = 0;
    char *name = strrchr(path, '/');
    strcpy(name ? name + 1 : path, "tessera-cuda");
    if (access(path, X_OK) == 0)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED,
                    "run: --on cuda: found no %s, which a build with CUDA and NCCL has; allowed in "
                    "this one: --on sim or --on host",
                    path);
}

tsr_status tsr_run_gpu_program(char *const *argv)
{
    char path[4096];
    char *words[WORDS + 2] = {"tessera-cuda"};
    size_t n = 0;
    TSR_TRY(find_sibling(path));
    for (; argv[n]; n++) {
        if (n == WORDS)
            return tsr_fail(TSR_ECONFIG, "run: found more than %d words; allowed: fewer", WORDS);
        words[n + 1] = argv[n];
    }
    (void)fflush(stdout);
    (void)execv(path, words);
    return tsr_fail(TSR_EBACKEND, "%s: cannot be started: %s", path, strerror(errno));
}

const struct tsr_device_ops *tsr_run_gpu_kernels(void)
{
    return NULL;
}

/* ---- never reached: another program has taken this one's place ------------------------------- */

static tsr_status not_here(void)
{
    return tsr_fail(TSR_EUNSUPPORTED, "this program has no GPUs");
}

tsr_status tsr_run_gpu_check(const struct tsr_args *args, bool threads)
{
    (void)args;
    (void)threads;
    return not_here();
}

tsr_status tsr_run_gpu_open(const struct tsr_args *args, const struct tsr_launch *launch,
                            const struct tsr_run_job *run, struct tsr_world *world,
                            struct tsr_run_gpu **out)
{
    (void)args;
    (void)launch;
    (void)run;
    (void)world;
    *out = NULL;
    return not_here();
}

tsr_status tsr_run_gpu_share(uint32_t n, struct tsr_run_gpu **out)
{
    (void)n;
    *out = NULL;
    return not_here();
}

void tsr_run_gpu_close(struct tsr_run_gpu *gpu)
{
    (void)gpu;
}

tsr_status tsr_run_gpu_rank(struct tsr_run_gpu *gpu, const struct tsr_run_gpu_rank *rank,
                            struct tsr_executor **out, struct tsr_device **device)
{
    (void)gpu;
    (void)rank;
    *out = NULL;
    *device = NULL;
    return not_here();
}

void tsr_run_gpu_tell_memory(const struct tsr_device *device, FILE *notes)
{
    (void)device;
    (void)notes;
}

tsr_status tsr_calibrated_cuda(const struct tsr_args *args, struct tsr_calibrated *out)
{
    (void)args;
    (void)out;
    return not_here();
}
