/* cudart.c: the stand-in of the CUDA runtime: devices, errors, kernels. Streams and events are in
 * stream.c, memory in memory.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/gpu/gpu.h"
#include "tests/standin/impl.h"
#include "tests/standin/shim.h"

const char *cudaGetErrorString(cudaError_t error)
{
    switch ((int)error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorNotReady:
        return "device not ready";
    default:
        return "another error";
    }
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : "cudaErrorOther";
}

/* ---- devices -----------------------------------------------------------------------------------
 */

static cudaError_t check_driver(void)
{
    const struct tsr_standin_config *c = tsr_standin();
    if (c->driver < CUDART_VERSION / 1000 * 1000)
        return tsr_standin_note(cudaErrorInsufficientDriver);
    return c->gpus ? cudaSuccess : tsr_standin_note(cudaErrorNoDevice);
}

cudaError_t cudaDriverGetVersion(int *out)
{
    TSR_STANDIN(cudaDriverGetVersion, cudaError_t);
    *out = tsr_standin()->driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *out)
{
    TSR_STANDIN(cudaRuntimeGetVersion, cudaError_t);
    *out = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *out)
{
    TSR_STANDIN(cudaGetDeviceCount, cudaError_t);
    *out = 0;
    cudaError_t error = check_driver();
    if (error == cudaSuccess)
        *out = tsr_standin()->gpus;
    return error;
}

cudaError_t cudaSetDevice(int gpu)
{
    TSR_STANDIN_CUDA(cudaSetDevice);
    cudaError_t error = check_driver();
    if (error == cudaSuccess && (gpu < 0 || gpu >= tsr_standin()->gpus))
        error = tsr_standin_note(cudaErrorInvalidDevice);
    if (error == cudaSuccess)
        tsr_standin_gpu = gpu;
    return error;
}

cudaError_t cudaGetDevice(int *out)
{
    TSR_STANDIN_CUDA(cudaGetDevice);
    *out = tsr_standin_gpu;
    return check_driver();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int gpu)
{
    TSR_STANDIN_CUDA(cudaGetDeviceProperties);
    const struct tsr_standin_config *c = tsr_standin();
    if (gpu < 0 || gpu >= c->gpus)
        return tsr_standin_note(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "stand-in");
    memset(out->uuid.bytes, gpu + 1, sizeof out->uuid.bytes);
    out->major = c->major;
    out->minor = c->minor;
    out->multiProcessorCount = c->sms;
    out->totalGlobalMem = c->memory;
    out->sharedMemPerBlock = 48 << 10;
    out->sharedMemPerBlockOptin = 227 << 10;
    out->l2CacheSize = 50 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int gpu)
{
    TSR_STANDIN_CUDA(cudaDeviceGetAttribute);
    if (gpu < 0 || gpu >= tsr_standin()->gpus)
        return tsr_standin_note(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *out = tsr_standin()->sms;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *out = tsr_standin()->major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *out = tsr_standin()->minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *out = 227 << 10;
        return cudaSuccess;
    default:
        return tsr_standin_note(cudaErrorInvalidValue);
    }
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    TSR_STANDIN_CUDA(cudaGetDriverEntryPointByVersion);
    (void)flags;
    *out = (int)version <= tsr_standin()->driver ? tsr_standin_driver(symbol) : NULL;
    *result = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* ---- kernels -----------------------------------------------------------------------------------
 */

struct launch {
    struct tsr_shim_kernel kernel;
    unsigned blocks_x, blocks_y, threads;
    size_t shared;
    uint64_t seed;
    _Alignas(16) unsigned char params[]; /* by value, as CUDA takes them */
};

static int run_kernel(void *data)
{
    const struct launch *l = data;
    tsr_shim_run(&l->kernel, l->blocks_x, l->blocks_y, l->threads, l->shared, l->params, l->seed);
    return 0;
}

/* Dynamic shared memory that kernels were allowed to have. Without asking there are 48 KiB together
 * with what a kernel has of its own, which C does not tell: as much as gpu.h says. */
enum { ASKED = 256, UNASKED = (48 << 10) - TSR_CUDA_OWN_SHARED };
static struct {
    _Atomic uintptr_t function;
    _Atomic int bytes;
} asked[ASKED];

static int allowed_shared(uintptr_t function)
{
    for (int i = 0; i < ASKED && atomic_load(&asked[i].function); i++)
        if (atomic_load(&asked[i].function) == function)
            return atomic_load(&asked[i].bytes);
    return UNASKED;
}

static void allow_shared(uintptr_t function, int bytes)
{
    for (int i = 0; i < ASKED; i++) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&asked[i].function, &none, function) ||
            none == function) {
            atomic_store(&asked[i].bytes, bytes);
            return;
        }
    }
    abort();
}

static bool grid_is_allowed(const struct tsr_shim_kernel *kernel, dim3 grid, dim3 block)
{
    return grid.x && grid.y && grid.y < 65536 && grid.z == 1 && block.x &&
           block.x <= kernel->limit && block.y == 1 && block.z == 1;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args,
                             size_t shared, cudaStream_t stream)
{
    TSR_STANDIN_CUDA(cudaLaunchKernel);
    tsr_shim_describe describe;
    struct tsr_shim_kernel kernel;
    memcpy(&describe, &function, sizeof describe);
    describe(&kernel);
    if (!grid_is_allowed(&kernel, grid, block) || kernel.params > 32764)
        return tsr_standin_note(cudaErrorInvalidConfiguration);
    if (shared > (size_t)allowed_shared((uintptr_t)function))
        return tsr_standin_note(cudaErrorInvalidValue);
    struct launch *l = malloc(sizeof *l + kernel.params);
    if (!l)
        return tsr_standin_note(cudaErrorMemoryAllocation);
    *l = (struct launch){kernel, grid.x, grid.y, block.x, shared, tsr_standin()->seed};
    if (kernel.cooperates && stream && !tsr_standin()->fibers)
        l->threads = 1;
    memcpy(l->params, args[0], kernel.params);
    cudaError_t error = tsr_standin_enqueue(stream, run_kernel, l, sizeof *l + kernel.params);
    free(l);
    return error;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute which, int value)
{
    TSR_STANDIN_CUDA(cudaFuncSetAttribute);
    if (!function || which != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > (227 << 10) - TSR_CUDA_OWN_SHARED)
        return tsr_standin_note(cudaErrorInvalidValue);
    allow_shared((uintptr_t)function, value);
    return cudaSuccess;
}
