/* gpus_none.c: the program without GPUs: tessera-cuda, which lies beside it, takes its place. Where
 * that program is linked, cuda/gpus.c stands here instead.
 */
#include "experiments/cli/gpu/gpus.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WORDS = 2048 };

tsr_status tsr_gpu_program(char *const *argv, const struct tsr_gpu_ops **out)
{
    char path[4096];
    char *words[WORDS + 2] = {"tessera-cuda"};
    size_t n = 0;
    *out = NULL;
    TSR_TRY(tsr_gpu_sibling(path));
    for (; argv[n]; n++) {
        if (n == WORDS)
            return tsr_fail(TSR_ECONFIG, "run: found more than %d words; allowed: fewer", WORDS);
        words[n + 1] = argv[n];
    }
    (void)fflush(stdout);
    (void)execv(path, words);
    return tsr_fail(TSR_EBACKEND, "%s: cannot be started: %s", path, strerror(errno));
}
