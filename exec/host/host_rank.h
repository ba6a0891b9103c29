/* host_rank.h: one rank on the host: a device of threads with an executor on it. */
#ifndef TSR_HOST_RANK_H
#define TSR_HOST_RANK_H

#include "exec/executor/executor.h"
#include "exec/host/host_device.h"

struct tsr_host_rank_config {
    struct tsr_world *world; /* borrowed; NULL: a world of one */
    const struct tsr_source *source;
    size_t n_kernels;
    const struct tsr_user_kernel *kernels;
    uint32_t jitter_us;
    uint64_t jitter_seed;
    bool serial, poison, profile;
    bool verify; /* the declared operands of all that runs (verify.h); with serial only */
    struct tsr_executor *watcher; /* borrowed; NULL: none */
};

/* Destroyed through its ops. */
tsr_status tsr_host_rank_create(const struct tsr_host_rank_config *config,
                                struct tsr_executor **out) TSR_MUST_USE;

#endif
