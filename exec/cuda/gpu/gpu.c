/* gpu.c: looking for GPUs, and what is said when there is none that will do. */
#include "exec/cuda/gpu/gpu.h"

#include <stdio.h>
#include <string.h>

#include "exec/cuda/gpu/context.h"

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
