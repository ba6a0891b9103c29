/* calibrate_trace.c: `tessera calibrate TRACE.json`: the machine that a trace of PyTorch's profiler
 * is of. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "experiments/cli/calibrate/kineto.h"
#include "experiments/study/simulate/open.h"
#include "sim/base/text.h"
#include "sim/card/traits.h"

/* GPUs of a node: what a trace does not say. */
enum { DEFAULT_RANKS = 8, MAX_RANKS = 10 };

/* "NVIDIA H200" is nvidia-h200 in the names of files. */
static void set_name(const char *gpu, char *out, size_t size)
{
    size_t n = 0;
    for (; *gpu && n + 1 < size; gpu++) {
        if (isalnum((unsigned char)*gpu))
            out[n++] = (char)tolower((unsigned char)*gpu);
        else if (n > 0 && out[n - 1] != '-')
            out[n++] = '-';
    }
    out[n] = 0;
}

static void describe(const struct tsr_kineto *trace, struct tsr_calibrated *out)
{
    bool is_gpu = *trace->gpu != 0;
    *out = (struct tsr_calibrated){
        .units = trace->units, .memory = trace->memory, .source = "a trace of torch.profiler"};
    set_name(is_gpu ? trace->gpu : "processor", out->name, sizeof out->name);
    if (!*out->name)
        set_name("gpu", out->name, sizeof out->name);
    snprintf(out->what, sizeof out->what, "%s", is_gpu ? trace->gpu : "a processor");
    snprintf(out->family, sizeof out->family, "%s",
             is_gpu ? tsr_gpu_architecture((int)trace->capability) : "host");
}

static void print_notes(const struct tsr_kineto *trace, uint32_t ranks)
{
    if (trace->seconds > 0)
        fprintf(stderr, "tessera: %.1f %% of the time in kernels is in the tables%s%s\n",
                100 * trace->kept / trace->seconds,
                *trace->missing ? "; most of the rest is in " : "", tsr_show(trace->missing).text);
    if (trace->group > ranks)
        fprintf(stderr,
                "tessera: collectives of more than %u ranks, up to %u, are left out: they leave "
                "the node\n",
                ranks, trace->group);
}

tsr_status tsr_calibrate_trace(const struct tsr_args *args)
{
    struct tsr_calibrated device;
    struct tsr_kineto trace;
    struct tsr_times times = {0};
    if (args->on || args->nccl_log)
        return tsr_fail(TSR_ECONFIG, "calibrate: found %s beside %s; allowed: one of them",
                        args->file, args->on ? "--on" : "--nccl-log");
    if (!args->out)
        return tsr_fail(TSR_ECONFIG,
                        "calibrate: %s: found no --out; allowed: a folder for the files",
                        args->file);
    if (args->ranks > MAX_RANKS)
        return tsr_fail(TSR_ECONFIG, "calibrate: --ranks: found %llu; allowed: 1 to %d",
                        (unsigned long long)args->ranks, MAX_RANKS);
    uint32_t most = args->ranks ? (uint32_t)args->ranks : DEFAULT_RANKS;
    tsr_status status;
    TSR_GOTO(done, tsr_kineto_read(args->file, most, &times, &trace));
    TSR_GOTO(done, tsr_prepare_out(args->out));
    describe(&trace, &device);
    uint32_t ranks = trace.group && trace.group < most && !args->ranks ? trace.group : most;
    ranks = *trace.gpu ? ranks : 1;
    TSR_GOTO(done, tsr_calibrate_write(&device, &times, ranks, args->out));
    print_notes(&trace, ranks);

done:
    tsr_times_fini(&times);
    return status;
}
