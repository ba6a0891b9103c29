/* gpu.c: a GPU as this process uses it: looking for one, launches and errors, events, ranges for
 * a profiler.
 */
#include "exec/cuda/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST = 80 }; /* kernels are built for this one and later ones */

static int whole(int version)
{
    return version / 1000;
}

static int rest(int version)
{
    return version % 1000 / 10;
}

/* Clears the error that CUDA keeps of the failed call. */
static tsr_status refuse(cudaError_t error)
{
    int driver = 0, runtime = CUDART_VERSION;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorNoDevice)
        return tsr_fail(TSR_EBACKEND, "CUDA: found a driver and no GPU; needed: one that this "
                                      "process may see (CUDA_VISIBLE_DEVICES)");
    if (driver == 0)
        return tsr_fail(TSR_EBACKEND, "CUDA: found no driver; needed: NVIDIA's for CUDA %d.%d",
                        whole(runtime), rest(runtime));
    if (error == cudaErrorInsufficientDriver)
        return tsr_fail(TSR_EBACKEND,
                        "CUDA: found a driver for CUDA %d.%d; needed: one for %d.%d or later",
                        whole(driver), rest(driver), whole(runtime), rest(runtime));
    return tsr_cuda_error(error, "looking for GPUs");
}

tsr_status tsr_gpu_count(int *out)
{
    *out = 0;
    cudaError_t error = cudaGetDeviceCount(out);
    return error == cudaSuccess ? TSR_OK : refuse(error);
}

static tsr_status check_index(int index)
{
    int n = 0;
    TSR_TRY(tsr_gpu_count(&n));
    if (index >= 0 && index < n)
        return TSR_OK;
    if (n == 1)
        return tsr_fail(TSR_ECONFIG, "GPU: found %d; allowed: 0, the only one there is", index);
    return tsr_fail(TSR_ECONFIG, "GPU: found %d; allowed: 0 to %d, those that there are", index,
                    n - 1);
}

tsr_status tsr_gpu_open(int index, struct tsr_cuda_gpu *out)
{
    struct cudaDeviceProp p;
    size_t free_bytes = 0, total = 0;
    *out = (struct tsr_cuda_gpu){.index = index};
    TSR_TRY(check_index(index));
    TSR_CUDA("opening a GPU", cudaSetDevice(index));
    TSR_CUDA("opening a GPU", cudaGetDeviceProperties(&p, index));
    snprintf(out->name, sizeof out->name, "%s", p.name);
    memcpy(out->uuid, p.uuid.bytes, sizeof out->uuid);
    out->architecture = 10 * p.major + p.minor;
    out->n_sms = p.multiProcessorCount;
    out->shared = p.sharedMemPerBlockOptin;
    if (out->architecture < OLDEST)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "GPU: found %d, %s, with compute capability %d.%d; needed: %d.%d or later",
                        index, out->name, p.major, p.minor, OLDEST / 10, OLDEST % 10);
    TSR_CUDA("opening a GPU", cudaMemGetInfo(&free_bytes, &total));
    TSR_CUDA("opening a GPU", cudaDriverGetVersion(&out->driver));
    TSR_CUDA("opening a GPU", cudaRuntimeGetVersion(&out->runtime));
    out->memory = total;
    out->free_memory = free_bytes;
    return TSR_OK;
}

/* ---- launches, and CUDA's errors in our words ------------------------------------------------ */

/* CUDA keeps the error for this thread: libraries that look would take it for one of theirs. */
tsr_status tsr_cuda_error(cudaError_t error, const char *tried)
{
    (void)cudaGetLastError();
    if (error == cudaErrorNoKernelImageForDevice)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "%s: this program has no kernels for the GPU: it was built for %s; "
                        "allowed: a build with -DTESSERA_CUDA_ARCHITECTURES=ALL, or on a machine "
                        "with the GPU",
                        tried, TSR_CUDA_ARCHITECTURES);
    return tsr_fail(error == cudaErrorMemoryAllocation ? TSR_EOOM : TSR_EBACKEND,
                    "%s: CUDA says '%s'", tried, cudaGetErrorString(error));
}

uint64_t tsr_cuda_most_shared(const struct tsr_kernel_call *call)
{
    const uint64_t everywhere = 99 << 10; /* of sm_80 and later, sm_86 has the least */
    return tsr_max_u64(tsr_cuda_context(call)->shared, everywhere) - TSR_CUDA_OWN_SHARED;
}

/* More than a kernel has without asking: 48 KiB together with what is its own. It gets all that
 * there is, so that a launch in a graph never finds a smaller limit than at its capture. */
static tsr_status ask_for_shared(const struct tsr_kernel_call *call, const void *symbol,
                                 uint64_t bytes)
{
    uint64_t most = tsr_cuda_most_shared(call);
    if (bytes <= (48 << 10) - TSR_CUDA_OWN_SHARED)
        return TSR_OK;
    if (bytes > most)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "kernel %s: needs %llu bytes of shared memory; the GPU has %llu",
                        call->work->name, (unsigned long long)bytes, (unsigned long long)most);
    TSR_CUDA("shared memory",
             cudaFuncSetAttribute(symbol, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most));
    return TSR_OK;
}

tsr_status tsr_cuda_launch(const struct tsr_kernel_call *call, tsr_cuda_kernel kernel,
                           struct tsr_cuda_grid grid, const void *params)
{
    void *args[] = {(void *)(uintptr_t)params};
    const void *symbol;
    memcpy(&symbol, &kernel, sizeof symbol);
    TSR_TRY(ask_for_shared(call, symbol, grid.shared));
    const struct dim3 blocks = {grid.blocks, grid.rows ? grid.rows : 1, 1},
                      threads = {grid.threads, 1, 1};
    TSR_CUDA(call->work ? call->work->name : "fill",
             cudaLaunchKernel(symbol, blocks, threads, args, grid.shared,
                              tsr_cuda_context(call)->stream));
    return TSR_OK;
}

/* ---- the program's events in CUDA's, which are used again ------------------------------------ */

tsr_status tsr_cuda_events_create(struct tsr_cuda_events *events)
{
    events->slots = calloc(TSR_CUDA_EVENTS, sizeof *events->slots);
    return events->slots ? TSR_OK : tsr_no_memory("events");
}

void tsr_cuda_events_destroy(struct tsr_cuda_events *events)
{
    for (int i = 0; events->slots && i < TSR_CUDA_EVENTS; i++)
        if (events->slots[i].event)
            (void)cudaEventDestroy(events->slots[i].event);
    free(events->slots);
    events->slots = NULL;
}

struct tsr_cuda_event *tsr_cuda_event_slot(struct tsr_cuda_events *events, uint32_t number)
{
    return &events->slots[number % TSR_CUDA_EVENTS];
}

/* Numbers only grow, but for the wrap after 2^32 of them; a slot goes to a later event when the
 * earlier one is done. */
tsr_status tsr_cuda_event_find(struct tsr_cuda_events *events, uint32_t number,
                               struct tsr_cuda_event **out)
{
    struct tsr_cuda_event *e = tsr_cuda_event_slot(events, number);
    bool later = e->number != 0 && (int32_t)(e->number - number) > 0;
    *out = NULL;
    if (later || (e->number == number && e->done))
        return TSR_OK;
    if (e->number != number)
        return tsr_fail(TSR_EDEFECT, "event %u is waited for and was not recorded", number);
    *out = e;
    return TSR_OK;
}

/* ---- timers ---------------------------------------------------------------------------------- */

tsr_status tsr_cuda_timer_take(struct tsr_cuda_timers *timers, cudaEvent_t *out)
{
    if (timers->n_free == 0) {
        TSR_CUDA("an event", cudaEventCreateWithFlags(out, cudaEventDefault));
        return TSR_OK;
    }
    *out = timers->free[--timers->n_free];
    return TSR_OK;
}

void tsr_cuda_timer_give(struct tsr_cuda_timers *timers, cudaEvent_t event)
{
    if (!TSR_PUSH(timers->free, timers->n_free, timers->cap_free, event))
        (void)cudaEventDestroy(event);
}

void tsr_cuda_timers_fini(struct tsr_cuda_timers *timers)
{
    for (size_t i = 0; i < timers->n_free; i++)
        (void)cudaEventDestroy(timers->free[i]);
    free(timers->free);
    *timers = (struct tsr_cuda_timers){0};
}

/* ---- ranges for a profiler ------------------------------------------------------------------- */

/* Ranges for a profiler, by NVTX, which is in headers only: it looks for one when it is
 * first used. */

#if TSR_NVTX

#include <nvtx3/nvToolsExt.h>

static void end_module(struct tsr_cuda_ranges *r)
{
    if (r->has_module)
        (void)nvtxRangePop();
    r->has_module = false;
}

void tsr_cuda_ranges_end(struct tsr_cuda_ranges *r)
{
    end_module(r);
    if (r->has_phase)
        (void)nvtxRangePop();
    r->has_phase = false;
}

void tsr_cuda_ranges_next(struct tsr_cuda_ranges *r, const struct tsr_tables *tables,
                          const struct tsr_origin *origin)
{
    if (!r->has_phase || r->phase != origin->phase) {
        tsr_cuda_ranges_end(r);
        (void)nvtxRangePushA(tsr_phase_name(origin->phase));
        r->has_phase = true;
        r->phase = origin->phase;
    }
    if (r->has_module && r->module == origin->module)
        return;
    end_module(r);
    if (!tables || origin->module >= tables->n_modules)
        return;
    (void)nvtxRangePushA(*tables->modules[origin->module] ? tables->modules[origin->module]
                                                          : "(root)");
    r->has_module = true;
    r->module = origin->module;
}

void tsr_cuda_ranges_graph(struct tsr_cuda_ranges *r)
{
    tsr_cuda_ranges_end(r);
    (void)nvtxRangePushA("graph");
    r->has_phase = true;
    r->phase = TSR_N_PHASES;
}

#endif
