/* gpu_count.c: finds the program that has GPUs, and counts them without CUDA (gpus.h). */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "experiments/cli/gpu/gpus.h"

tsr_status tsr_gpu_sibling(char path[4096])
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

uint32_t tsr_gpus_here(void)
{
    enum { MAX_GPUS = 64 };
    char path[4096];
    uint32_t n = 0;
    if (tsr_gpu_sibling(path) != TSR_OK)
        return 0;
    for (uint32_t i = 0; i < MAX_GPUS; i++) {
        snprintf(path, sizeof path, "/dev/nvidia%u", (unsigned)i);
        n += access(path, R_OK | W_OK) == 0;
    }
    return n;
}
