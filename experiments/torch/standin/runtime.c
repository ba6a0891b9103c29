/* The CUDA runtime, as far as PyTorch's libraries call it: kernels and copies do nothing, and the
 * device says that it is an sm_90 part with 132 multiprocessors. */
#include "standin.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1, DEVICE_TO_HOST = 2 };

typedef struct {
    unsigned x, y, z;
} dim3;

int standin_cuda_version(void)
{
    const char *text = getenv("TESSERA_STANDIN_CUDA");
    int major = 13, minor = 0;
    if (text && sscanf(text, "%d.%d", &major, &minor) < 1)
        major = 13;
    return 1000 * major + 10 * minor;
}

/* Memory of the device and of the host. */

EXPORT int cudaMalloc(void **address, size_t bytes)
{
    *address = standin_take(bytes);
    return *address ? 0 : OUT_OF_MEMORY;
}

EXPORT int cudaFree(void *address)
{
    return !address || standin_give(address) ? 0 : INVALID_VALUE;
}

EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    standin_room(free_bytes, total_bytes);
    return 0;
}

/* Pinned memory is real but untouched: pages appear when written. */
static struct {
    pthread_mutex_t lock;
    struct {
        char *start;
        size_t bytes;
    } ranges[4096];
    size_t count;
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

EXPORT int cudaHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    void *start = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&host.lock);
    if (host.count < sizeof host.ranges / sizeof host.ranges[0]) {
        host.ranges[host.count].start = start;
        host.ranges[host.count++].bytes = bytes;
    }
    pthread_mutex_unlock(&host.lock);
    *address = start;
    return 0;
}

static int is_pinned(const char *address)
{
    int found = 0;
    pthread_mutex_lock(&host.lock);
    for (size_t i = 0; i < host.count && !found; i++)
        found = address >= host.ranges[i].start &&
                address < host.ranges[i].start + host.ranges[i].bytes;
    pthread_mutex_unlock(&host.lock);
    return found;
}

NOTHING(cudaFreeHost)
NOTHING(cudaHostRegister)
NOTHING(cudaHostUnregister)

typedef struct {
    int type, device;
    void *device_pointer, *host_pointer;
} pointer_attributes; /* CUDA 13 appends reserved words, which nobody reads */

EXPORT int cudaPointerGetAttributes(pointer_attributes *a, const void *address)
{
    *a = (pointer_attributes){0};
    a->type = standin_is_device(address) ? 2 : is_pinned(address) ? 1 : 0;
    a->device_pointer = (void *)address;
    return 0;
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (standin_is_device(to) && standin_is_device(from))
        return;
    if (standin_is_device(to))
        standin_written(to, from, bytes);
    else if (standin_is_device(from))
        standin_read(to, bytes);
    else
        memmove(to, from, bytes);
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    (void)kind;
    copy(to, from, bytes);
    return cudaDeviceSynchronize();
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    (void)kind;
    copy(to, from, bytes);
    return tessera_standin_work(stream);
}

EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                             size_t width, size_t height, int kind, void *stream)
{
    (void)kind;
    for (size_t i = 0; i < height; i++)
        copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return tessera_standin_work(stream);
}

EXPORT int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream)
{
    (void)to;
    (void)value;
    (void)bytes;
    return tessera_standin_work(stream);
}

NOTHING(cudaMemcpyPeerAsync)
NOTHING(cudaMemcpyToSymbol)
NOTHING(cudaMemset)

EXPORT int cudaGetSymbolAddress(void **address, const void *symbol)
{
    (void)symbol;
    *address = standin_symbol();
    return 0;
}

/* The device. */

EXPORT int cudaGetDeviceCount(int *count)
{
    *count = 1;
    return 0;
}

EXPORT int cudaGetDevice(int *device)
{
    *device = 0;
    return 0;
}

EXPORT int cudaDriverGetVersion(int *version)
{
    *version = standin_cuda_version();
    return 0;
}

EXPORT int cudaRuntimeGetVersion(int *version)
{
    *version = standin_cuda_version();
    return 0;
}

EXPORT const char *cudaGetErrorString(int error)
{
    return error == OUT_OF_MEMORY ? "out of memory" : "error of the stand-in device";
}

EXPORT const char *cudaGetErrorName(int error)
{
    return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}

NOTHING(cudaSetDevice)
NOTHING(cudaGetLastError)
NOTHING(cudaPeekAtLastError)
NOTHING(cudaDeviceEnablePeerAccess)

EXPORT int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    (void)device;
    (void)peer;
    *can = 0;
    return 0;
}

EXPORT int cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    (void)device;
    snprintf(text, (size_t)length, "0000:00:00.0");
    return 0;
}

EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return 0;
}

typedef struct {
    char pad[24];
    int max_threads, registers, ptx, binary, cache_mode, max_dynamic_shared, rest[24];
} function_attributes;

EXPORT int cudaFuncGetAttributes(function_attributes *a, const void *function)
{
    (void)function;
    memset(a, 0, sizeof *a);
    a->max_threads = 1024;
    a->registers = 32;
    a->ptx = a->binary = 90;
    a->max_dynamic_shared = 232448;
    return 0;
}

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                  int threads, size_t shared,
                                                                  unsigned flags)
{
    (void)function;
    (void)threads;
    (void)shared;
    (void)flags;
    *blocks = 2;
    return 0;
}

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                         int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared,
                                                                  0);
}

NOTHING(cudaFuncSetAttribute)

/* Streams and events (their order: order.c), launches. */

NEW_HANDLE(cudaStreamCreateWithPriority)
NEW_HANDLE(cudaStreamCreateWithFlags)
NEW_HANDLE(cudaStreamCreate)
NOTHING(cudaStreamDestroy)

EXPORT int cudaStreamGetPriority(void *stream, int *priority)
{
    (void)stream;
    *priority = 0;
    return 0;
}

EXPORT int cudaStreamAddCallback(void *stream, void (*callback)(void *, int, void *), void *data,
                                 unsigned flags)
{
    (void)flags;
    callback(stream, 0, data);
    return 0;
}

EXPORT int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
    (void)stream;
    function(data);
    return 0;
}

EXPORT int cudaStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}

/* Callers of every version look at the status first: it says that nothing is being captured. */
EXPORT int cudaStreamGetCaptureInfo(void *stream, int *status)
{
    return cudaStreamIsCapturing(stream, status);
}

EXPORT int cudaStreamGetCaptureInfo_v2(void *stream, int *status)
{
    return cudaStreamIsCapturing(stream, status);
}

NOTHING(cudaThreadExchangeStreamCaptureMode)
NEW_HANDLE(cudaEventCreate)
NEW_HANDLE(cudaEventCreateWithFlags)
NOTHING(cudaEventDestroy)

EXPORT int cudaEventElapsedTime(float *milliseconds, void *from, void *to)
{
    (void)from;
    (void)to;
    *milliseconds = 0;
    return 0;
}

EXPORT int cudaEventElapsedTime_v2(float *milliseconds, void *from, void *to)
{
    return cudaEventElapsedTime(milliseconds, from, to);
}

EXPORT int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                            size_t shared, void *stream)
{
    (void)kernel;
    (void)grid;
    (void)block;
    (void)arguments;
    (void)shared;
    return tessera_standin_work(stream);
}

EXPORT int cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                                       size_t shared, void *stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

EXPORT int __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                              size_t shared, void *stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

typedef struct {
    dim3 grid, block;
    size_t shared;
    void *stream; /* attributes follow, which nothing reads */
} launch;

EXPORT int cudaLaunchKernelExC(const launch *l, const void *kernel, void **arguments)
{
    return cudaLaunchKernel(kernel, l->grid, l->block, arguments, l->shared, l->stream);
}

EXPORT int __cudaGetKernel(const void **kernel, const void *function)
{
    *kernel = function;
    return 0;
}

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = stream;
    return 0;
}

EXPORT int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream)
{
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *stream = configuration.stream;
    return 0;
}

/* c10::cuda::hasPrimaryContext(signed char), which asks the driver: there is one. */
EXPORT int hasPrimaryContext(signed char device) __asm__("_ZN3c104cuda17hasPrimaryContextEa");
EXPORT int hasPrimaryContext(signed char device)
{
    (void)device;
    return 1;
}
