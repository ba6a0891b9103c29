/* cuda_rank.h: one rank on a GPU: a CUDA device with an executor on it. */
#ifndef TSR_CUDA_RANK_H
#define TSR_CUDA_RANK_H

#include "exec/cuda/device/cuda_device.h"
#include "exec/executor/executor.h"

struct tsr_cuda_rank_config {
    struct tsr_world *world; /* borrowed; NULL: a world of one */
    const struct tsr_source *source;
    size_t n_kernels;
    const struct tsr_user_kernel *kernels; /* they launch on call->context, see context.h */
    int gpu;
    uint64_t unit;           /* see struct tsr_cuda_device_config */
    struct tsr_comms *comms; /* taken over, also on failure; NULL: a world of one */
    const char *plans;       /* of matrix products: see struct tsr_blas_config; borrowed */
    double timeout_s;
    bool tune, deterministic, direct, serial, poison, profile;
    tsr_watchdog_fn stuck;        /* see struct tsr_cuda_device_config; without `user` */
    struct tsr_executor *watcher; /* borrowed; NULL: none */
};

/* Destroyed through its ops, by the thread that made it. *device: the executor's, borrowed; may be
 * NULL. Errors: those of tsr_gpu_open(). */
tsr_status tsr_cuda_rank_create(const struct tsr_cuda_rank_config *config,
                                struct tsr_executor **out, struct tsr_device **device) TSR_MUST_USE;

#endif
