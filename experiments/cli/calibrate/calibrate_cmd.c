/* calibrate_cmd.c: `tessera calibrate`: what was measured on a machine, in the forms that the
 * simulator's fits read. */
#include <stdio.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/calibrate/calibrate.h"
#include "experiments/cli/gpu/gpus.h"
#include "experiments/study/simulate/open.h"

/* Collectives are timed for every number of ranks up to that; a node file has room for so many. */
enum { DEFAULT_RANKS = 8, MAX_RANKS = 10 };

/* A GPU is another program's, which takes the place of this one. */
static tsr_status find_device(const struct tsr_args *args, struct tsr_calibrated *out)
{
    if (!strcmp(args->on, "cuda")) {
        const struct tsr_gpu_ops *gpus;
        TSR_TRY(tsr_gpu_program(args->argv, &gpus));
        return gpus->calibrated(args, out);
    }
    if (strcmp(args->on, "host") != 0)
        return tsr_fail(TSR_ECONFIG, "calibrate: --on: found %s; allowed: host, cuda", args->on);
    if (args->comm || args->has_gpu)
        return tsr_fail(TSR_ECONFIG, "calibrate: %s: found with --on host; allowed: with --on cuda",
                        args->comm ? "--comm" : "--gpu");
    tsr_calibrated_host(out);
    return TSR_OK;
}

static tsr_status check_options(const struct tsr_usage *usage, const struct tsr_args *args)
{
    if (args->nccl_log)
        return tsr_fail(TSR_ECONFIG, "calibrate: found --on and --nccl-log; allowed: one of them");
    if (!args->out)
        return tsr_fail(TSR_ECONFIG,
                        "calibrate: --on: found no --out; allowed: tessera calibrate %s",
                        usage->synopsis);
    if (args->ranks > MAX_RANKS)
        return tsr_fail(TSR_ECONFIG, "calibrate: --ranks: found %llu; allowed: 1 to %d",
                        (unsigned long long)args->ranks, MAX_RANKS);
    return TSR_OK;
}

static tsr_status time_all(const struct tsr_calibrated *device, uint32_t ranks, const char *dir,
                           struct tsr_times *times)
{
    TSR_TRY(tsr_calibrate_kernels(device, times));
    TSR_TRY(tsr_calibrate_collectives(device, ranks, times));
    TSR_TRY(tsr_calibrate_write(device, times, ranks, dir));
    fprintf(stderr,
            "tessera: wrote %s/cluster-%s.json and what it names; tessera compare FILE --set "
            "cluster=%s/cluster-%s.json\n",
            dir, device->name, dir, device->name);
    return TSR_OK;
}

static tsr_status time_device(const struct tsr_usage *usage, const struct tsr_args *args)
{
    struct tsr_calibrated device;
    struct tsr_times times = {0};
    uint32_t ranks = args->ranks ? (uint32_t)args->ranks : DEFAULT_RANKS;
    TSR_TRY(check_options(usage, args));
    TSR_TRY(find_device(args, &device));
    if (args->ranks > device.ranks)
        return tsr_fail(TSR_ECONFIG,
                        "calibrate: --ranks: found %u; allowed: up to %u, a GPU for each, or "
                        "--comm loopback, where ranks share one",
                        ranks, device.ranks);
    TSR_TRY(tsr_prepare_out(args->out));
    ranks = ranks < device.ranks ? ranks : device.ranks;
    tsr_status status = time_all(&device, ranks, args->out, &times);
    tsr_times_fini(&times);
    return status;
}

tsr_status tsr_cmd_calibrate(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    if (args->file)
        return tsr_fail(TSR_ECONFIG, "calibrate: found %s; allowed: tessera calibrate %s",
                        args->file, usage->synopsis);
    if (args->on)
        return time_device(usage, args);
    if (!args->nccl_log)
        return tsr_fail(TSR_ECONFIG, "calibrate: no log given; allowed: tessera calibrate %s",
                        usage->synopsis);
    return tsr_calibrate_import(args->nccl_log, args->out);
}
