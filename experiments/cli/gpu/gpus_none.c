/* gpus_none.c: the program without GPUs: tessera-cuda, which lies beside it, takes its place. Where
 * that program is linked, cuda/gpus.c stands here instead.
 */
#include "experiments/cli/gpu/gpus.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

tsr_status tsr_gpu_program(char *const *argv, const struct tsr_gpu_ops **out)
{
    char path[4096];
    char *words[WORDS + 2] = {"tessera-cuda"};
    size_t n = 0;
    *out = NULL;
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
