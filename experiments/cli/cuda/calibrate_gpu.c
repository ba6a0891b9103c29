/* calibrate_gpu.c: GPUs as a device that is calibrated. Ranks are threads: each with a GPU of its
 * own and NCCL between them, or all on one GPU (--comm loopback).
 */
#include "experiments/cli/cuda/calibrate_gpu.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "exec/cuda/device/cuda_device.h"
#include "sim/card/traits.h"

static bool is_loopback(const struct tsr_args *args)
{
    return args->comm && !strcmp(args->comm, "loopback");
}

static tsr_status open_group(const struct tsr_calibrated *device, uint32_t n, void **group)
{
    struct tsr_loopback *loopback = NULL;
    if (n > 1 && device->shared)
        TSR_TRY(tsr_loopback_create(n, &loopback));
    *group = loopback;
    return TSR_OK;
}

static void close_group(void *group)
{
    tsr_loopback_destroy(group);
}

static tsr_status rank(const struct tsr_calibrate_rank *r, const struct tsr_source *source,
                       struct tsr_executor *watcher, struct tsr_executor **out)
{
    const struct tsr_calibrated *d = r->device;
    const struct tsr_comms_config comms = {.world = r->world, .timeout_s = TSR_CALIBRATE_TIMEOUT_S};
    int first = d->args->has_gpu ? (int)d->args->gpu : 0;
    char plans[4096];
    tsr_gpu_plans(plans, sizeof plans);
    struct tsr_cuda_rank_config config = {.world = r->world,
                                          .source = source,
                                          .gpu = d->shared ? first : first + (int)r->rank,
                                          .timeout_s = TSR_CALIBRATE_TIMEOUT_S + 10,
                                          .plans =
                                              plans[0] ? plans : NULL, /* those that a run takes */
                                          .tune = true,
                                          .profile = true,
                                          .watcher = watcher};
    if (r->group)
        TSR_TRY(tsr_comms_loopback(r->group, &comms, &config.comms));
    else if (r->world)
        TSR_TRY(tsr_comms_nccl(&comms, &config.comms));
    return tsr_cuda_rank_create(&config, out, NULL);
}

void tsr_gpu_file_name(const char *name, char out[64])
{
    size_t n = 0;
    for (; *name && n + 1 < 64; name++)
        if (isalnum((unsigned char)*name))
            out[n++] = (char)tolower((unsigned char)*name);
        else if (n > 0 && out[n - 1] != '-')
            out[n++] = '-';
    out[n] = 0;
}

tsr_status tsr_calibrated_cuda(const struct tsr_args *args, struct tsr_calibrated *out)
{
    /* The large ones are as large as real jobs: smaller tensors would lie in the cache (60 MB). */
    static const struct tsr_calibrate_size sizes[] = {
        {64, 176, 1, 1, 192, 64, 2, false},         {768, 2048, 12, 12, 16384, 1024, 8, false},
        {768, 2048, 12, 12, 49152, 1024, 32, true}, {2048, 8192, 32, 8, 65536, 2048, 8, true},
        {4096, 14336, 32, 8, 65536, 4096, 3, true},
    };
    static const uint64_t bytes[] = {1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28};
    struct tsr_cuda_gpu gpu;
    int count, first = args->has_gpu ? (int)args->gpu : 0;
    if (args->comm && !is_loopback(args) && strcmp(args->comm, "nccl") != 0)
        return tsr_fail(TSR_ECONFIG, "calibrate: --comm: found %s; allowed: nccl, loopback",
                        args->comm);
    TSR_TRY(tsr_gpu_count(&count));
    TSR_TRY(tsr_gpu_open(first, &gpu));
    *out =
        (struct tsr_calibrated){.units = (uint32_t)gpu.n_sms,
                                .memory = gpu.memory,
                                .ranks = is_loopback(args) ? UINT32_MAX : (uint32_t)(count - first),
                                .shared = is_loopback(args),
                                .args = args,
                                .sizes = sizes,
                                .n_sizes = sizeof sizes / sizeof *sizes,
                                .collective_bytes = bytes,
                                .n_collective_bytes = sizeof bytes / sizeof *bytes,
                                .open = open_group,
                                .close = close_group,
                                .rank = rank};
    tsr_gpu_file_name(gpu.name, out->name);
    snprintf(out->what, sizeof out->what, "%.100s%s", gpu.name,
             out->shared ? ", shared by all ranks" : "");
    snprintf(out->family, sizeof out->family, "%s", tsr_gpu_architecture(gpu.architecture));
    return TSR_OK;
}
