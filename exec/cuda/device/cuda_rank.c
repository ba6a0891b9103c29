/* cuda_rank.c: a CUDA device and an executor on it, made and joined. */
#include "exec/cuda/device/cuda_rank.h"

tsr_status tsr_cuda_rank_create(const struct tsr_cuda_rank_config *config,
                                struct tsr_executor **out, struct tsr_device **device)
{
    *out = NULL;
    tsr_kernels_init(); /* for what runs on host memory */
    struct tsr_exec *exec = tsr_exec_new();
    if (!exec) {
        if (config->comms)
            config->comms->ops->destroy(config->comms);
        return tsr_no_memory("an executor");
    }
    const struct tsr_cuda_device_config d = {.gpu = config->gpu,
                                             .tables = tsr_exec_tables,
                                             .unit = config->unit,
                                             .comms = config->comms,
                                             .plans = config->plans,
                                             .tune = config->tune,
                                             .deterministic = config->deterministic,
                                             .timeout_s = config->timeout_s,
                                             .direct = config->direct,
                                             .serial = config->serial,
                                             .stuck = config->stuck,
                                             .done = tsr_exec_done,
                                             .times = tsr_exec_times,
                                             .user = exec};
    struct tsr_exec_config x = {.world = config->world,
                                .source = config->source,
                                .n_kernels = config->n_kernels,
                                .kernels = config->kernels,
                                .poison = config->poison,
                                .profile = config->profile,
                                .watcher = config->watcher};
    tsr_status status = tsr_cuda_device_create(&d, &x.device);
    struct tsr_executor *executor = tsr_exec_start(exec, &x);
    if (status != TSR_OK) {
        executor->ops->destroy(executor);
        return status;
    }
    *out = executor;
    if (device)
        *device = x.device;
    return TSR_OK;
}
