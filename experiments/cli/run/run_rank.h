/* run_rank.h: one rank of `tessera run --on host` or cuda: training, an engine and an executor,
 * made, run and closed by the thread that calls.
 */
#ifndef TSR_CLI_RUN_RANK_H
#define TSR_CLI_RUN_RANK_H

#include "experiments/cli/run/run_gpu.h"
#include "experiments/cli/run/run_job.h"

enum { TSR_RUN_TEXT_BYTES = 1024 };

struct tsr_run_rank {
    const struct tsr_run_job *run; /* borrowed, as all pointers here */
    const struct tsr_args *args;
    const volatile sig_atomic_t *stop;
    uint32_t rank;
    struct tsr_world *world;   /* NULL: one rank */
    struct tsr_run_gpu *gpu;   /* NULL: it runs on the host */
    struct tsr_device *device; /* of the GPU, while it runs; borrowed */
    /* Out: */
    struct tsr_train_result result;
    tsr_status status;
    char text[TSR_RUN_TEXT_BYTES]; /* of a failure; the other ranks have been told */
};

/* Fits pthread_create(); returns NULL. */
void *tsr_run_rank_main(void *rank);

#endif
