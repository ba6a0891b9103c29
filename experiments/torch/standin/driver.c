/* CUDA's driver: what PyTorch's libraries link to or ask the runtime for by name. The library calls
 * itself libcuda.so.1 (pyproject's build sets the name), so that those who need one have found it.
 */
#include "standin.h"
#include <string.h>

enum { OUT_OF_MEMORY = 2, NOT_FOUND = 500 };

#define NOTHING(name)     \
    EXPORT int name(void) \
    {                     \
        return 0;         \
    }

NOTHING(cuInit)
NOTHING(cuCtxSetCurrent)
NOTHING(cuFuncGetAttribute)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLaunchKernel)
NOTHING(cuLaunchKernelEx)
NOTHING(cuLinkAddData_v2)
NOTHING(cuLinkComplete)
NOTHING(cuLinkCreate_v2)
NOTHING(cuModuleLoad)
NOTHING(cuModuleLoadDataEx)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOTHING(cuPointerGetAttribute)
NOTHING(cuTensorMapEncodeTiled)

/* Kernels that PyTorch compiles at run time (products of integers, Bessel functions): NVRTC itself
 * needs no device, and compiles them; loaded and launched, they do as little as the others. */
NEW_HANDLE(cuModuleLoadData)
NEW_HANDLE(cuModuleGetFunction)

/* NVRTC asks for private tables of the driver, and follows the pointer that it is given: there are
 * none. */
EXPORT int cuGetExportTable(const void **table, const void *name)
{
    (void)name;
    *table = NULL;
    return NOT_FOUND;
}

EXPORT int cuCtxGetCurrent(void **context)
{
    *context = (void *)16;
    return 0;
}

EXPORT int cuDeviceGet(int *device, int number)
{
    (void)number;
    *device = 0;
    return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)attribute;
    (void)device;
    *value = 0;
    return 0;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    (void)device;
    if (flags)
        *flags = 0;
    if (active)
        *active = 1;
    return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    return cuCtxGetCurrent(context);
}

EXPORT int cuGetErrorString(int error, const char **text)
{
    (void)error;
    *text = "error of the stand-in driver";
    return 0;
}

/* Expandable segments: addresses are reserved, physical memory is committed and released. */
static int reserve(uint64_t *address, size_t bytes)
{
    *address = (uint64_t)(uintptr_t)standin_reserve(bytes);
    return 0;
}

static int commit(uint64_t *handle, size_t bytes)
{
    *handle = standin_commit(bytes);
    return *handle ? 0 : OUT_OF_MEMORY;
}

static int release(uint64_t handle)
{
    standin_release(handle);
    return 0;
}

typedef void (*entry)(void);

EXPORT int cudaGetDriverEntryPointByVersion(const char *name, entry *function, unsigned version,
                                            unsigned long long flags, int *status)
{
    static const struct {
        const char *name;
        entry function;
    } KNOWN[] = {
        {"cuMemAddressReserve", (entry)reserve},
        {"cuMemCreate", (entry)commit},
        {"cuMemRelease", (entry)release},
        {"cuDevicePrimaryCtxGetState", (entry)cuDevicePrimaryCtxGetState},
        {"cuDeviceGet", (entry)cuDeviceGet},
        {"cuDeviceGetAttribute", (entry)cuDeviceGetAttribute},
        {"cuGetErrorString", (entry)cuGetErrorString},
    };
    (void)version;
    (void)flags;
    if (status)
        *status = 0;
    *function = (entry)cuInit;
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++)
        if (!strcmp(name, KNOWN[i].name))
            *function = KNOWN[i].function;
    return 0;
}

EXPORT int cudaGetDriverEntryPoint(const char *name, entry *function, unsigned long long flags,
                                   int *status)
{
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
