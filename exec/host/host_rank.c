/* host_rank.c: see host_rank.h. */
#include "exec/host/host_rank.h"

tsr_status tsr_host_rank_create(const struct tsr_host_rank_config *config,
                                struct tsr_executor **out)
{
    *out = NULL;
    tsr_kernels_init();
    if (config->verify && !config->serial)
        return tsr_fail(TSR_EVALUE, "operands are verified where tasks run one after the other");
    struct tsr_exec *exec = tsr_exec_new();
    if (!exec)
        return tsr_fail(TSR_ENOMEM, "out of memory: an executor");
    const struct tsr_host_device_config device = {.world = config->world,
                                                  .jitter_us = config->jitter_us,
                                                  .jitter_seed = config->jitter_seed,
                                                  .serial = config->serial,
                                                  .done = tsr_exec_done,
                                                  .user = exec};
    struct tsr_exec_config x = {.world = config->world,
                                .source = config->source,
                                .n_kernels = config->n_kernels,
                                .kernels = config->kernels,
                                .poison = config->poison,
                                .profile = config->profile,
                                .verify = config->verify,
                                .watcher = config->watcher};
    tsr_status status = tsr_host_device_create(&device, &x.device);
    struct tsr_executor *executor = tsr_exec_start(exec, &x);
    if (status != TSR_OK) {
        executor->ops->destroy(executor);
        return status;
    }
    *out = executor;
    return TSR_OK;
}
