/* memory.c: memory of the stand-in's GPUs: virtual ranges of which parts are backed (as the
 * driver's cuMem functions do it), plain allocations, pinned memory of the host; copies and fills
 * on streams.
 *
 * Memory that is not backed traps. Copies look whose memory they get: a pointer to the host's where
 * the device's is asked for fails, and so does pageable memory that a stream would read later.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cuda.h>

#include "tests/standin/capture.h"
#include "tests/standin/impl.h"

enum { MAX_RANGES = 4096, MAX_GRANULARITY = 2 << 20 };

/* Ranges that exist. Hosts' threads change them; a lock of theirs orders no streams. */
struct range {
    char *at;
    size_t bytes;
    enum tsr_standin_space space;
    size_t backing; /* device: bytes of the handle that backs it; 0: only reserved */
    int gpu;
};
static struct range ranges[MAX_RANGES];
static size_t n_ranges;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t taken[64]; /* by GPU */

static bool add_range(const struct range *r)
{
    bool room = false;
    pthread_mutex_lock(&lock);
    if (n_ranges < MAX_RANGES) {
        ranges[n_ranges++] = *r;
        room = true;
    }
    pthread_mutex_unlock(&lock);
    return room;
}

/* The one that begins at `at` and is of the kind; false: none. */
static bool take_range(const void *at, enum tsr_standin_space space, bool backed, struct range *out)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_ranges && !found; i++) {
        struct range *r = &ranges[i];
        found = r->at == at && r->space == space && (r->backing > 0) == backed;
        if (!found)
            continue;
        *out = *r;
        *r = ranges[--n_ranges];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

enum tsr_standin_space tsr_standin_space_of(const void *at, size_t bytes)
{
    size_t covered[TSR_STANDIN_DEVICE + 1] = {0};
    const char *p = at;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_ranges; i++) {
        const struct range *r = &ranges[i];
        bool there = r->space != TSR_STANDIN_DEVICE || r->backing;
        const char *begin = p > r->at ? p : r->at;
        const char *end = p + bytes < r->at + r->bytes ? p + bytes : r->at + r->bytes;
        if (there && begin < end)
            covered[r->space] += (size_t)(end - begin);
    }
    pthread_mutex_unlock(&lock);
    if (covered[TSR_STANDIN_DEVICE] == bytes)
        return TSR_STANDIN_DEVICE;
    return covered[TSR_STANDIN_PINNED] == bytes ? TSR_STANDIN_PINNED : TSR_STANDIN_HOST;
}

static bool take_memory(int gpu, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    uint64_t has = tsr_standin()->memory;
    bool fits = taken[gpu] <= has && bytes <= has - taken[gpu];
    taken[gpu] += fits ? bytes : 0;
    pthread_mutex_unlock(&lock);
    return fits;
}

static void give_memory(int gpu, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    taken[gpu] -= bytes;
    pthread_mutex_unlock(&lock);
}

uint64_t tsr_standin_device_bytes(void)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        sum += taken[i];
    pthread_mutex_unlock(&lock);
    return sum;
}

static void count(int by)
{
    atomic_fetch_add_explicit(&tsr_standin_objects, by, memory_order_relaxed);
}

static void *map_fresh(void *at, size_t bytes, int rights)
{
    void *p = mmap(at, bytes, rights,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* ---- the driver: virtual memory ----------------------------------------------------------------
 */

struct handle {
    size_t bytes;
    int gpu, maps;
    bool released;
    struct handle *next,
        **link; /* of all that exist: a release that is made to fail is no leak of ours */
};

static CUresult get_granularity(size_t *out, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags option)
{
    TSR_STANDIN(cuMemGetAllocationGranularity, CUresult);
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    /* What is recommended may be much more: PyTorch's segments are multiples of 2 MiB only. */
    *out = tsr_standin()->granularity * (option == CU_MEM_ALLOC_GRANULARITY_MINIMUM ? 1 : 16);
    return CUDA_SUCCESS;
}

static CUresult multicast_granularity(size_t *out, const CUmulticastObjectProp *prop,
                                      CUmulticastGranularity_flags option)
{
    TSR_STANDIN(cuMulticastGetGranularity, CUresult);
    if (!prop->numDevices || !prop->size || prop->flags ||
        prop->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    *out = tsr_standin()->multicast * (option == CU_MULTICAST_GRANULARITY_MINIMUM ? 1 : 256);
    return CUDA_SUCCESS;
}

static CUresult address_reserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr at,
                                unsigned long long flags)
{
    TSR_STANDIN(cuMemAddressReserve, CUresult);
    if (bytes % tsr_standin()->granularity || at || flags || alignment > MAX_GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    if (tsr_standin()->addresses && bytes > tsr_standin()->addresses)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *p = map_fresh(NULL, bytes, PROT_NONE);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    count(1);
    *out = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

/* What is still mapped there, after an unmap that failed. */
static void forget_ranges(const char *at, size_t bytes)
{
    pthread_mutex_lock(&lock);
    for (size_t i = n_ranges; i-- > 0;)
        if (ranges[i].at >= at && ranges[i].at < at + bytes) {
            taken[ranges[i].gpu] -= ranges[i].backing;
            ranges[i] = ranges[--n_ranges];
        }
    pthread_mutex_unlock(&lock);
}

static CUresult address_free(CUdeviceptr at, size_t bytes)
{
    TSR_STANDIN(cuMemAddressFree, CUresult);
    forget_ranges((const char *)(uintptr_t)at, bytes);
    count(-1);
    return munmap((void *)(uintptr_t)at, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static struct handle *all_handles;

static void list_handle(struct handle *h)
{
    pthread_mutex_lock(&lock);
    h->next = all_handles;
    h->link = &all_handles;
    if (h->next)
        h->next->link = &h->next;
    all_handles = h;
    pthread_mutex_unlock(&lock);
}

static void unlist_handle(struct handle *h)
{
    pthread_mutex_lock(&lock);
    *h->link = h->next;
    if (h->next)
        h->next->link = h->link;
    pthread_mutex_unlock(&lock);
}

static CUresult mem_create(CUmemGenericAllocationHandle *out, size_t bytes,
                           const CUmemAllocationProp *prop, unsigned long long flags)
{
    TSR_STANDIN(cuMemCreate, CUresult);
    if (bytes % tsr_standin()->granularity || !bytes || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.id >= tsr_standin()->gpus)
        return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes && tsr_standin()->no_handles)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!prop->requestedHandleTypes != !prop->allocFlags.gpuDirectRDMACapable) {
        fprintf(stderr, "CUDA: memory that NCCL may share must be one that adapters reach\n");
        abort();
    }
    if (!take_memory(prop->location.id, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct handle *h = calloc(1, sizeof *h);
    if (!h)
        return CUDA_ERROR_OUT_OF_MEMORY;
    h->bytes = bytes;
    h->gpu = prop->location.id;
    list_handle(h);
    count(1);
    *out = (CUmemGenericAllocationHandle)(uintptr_t)h;
    return CUDA_SUCCESS;
}

static void drop(struct handle *h)
{
    if (h->maps || !h->released)
        return;
    give_memory(h->gpu, h->bytes);
    count(-1);
    unlist_handle(h);
    free(h);
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
    TSR_STANDIN(cuMemRelease, CUresult);
    struct handle *h = (struct handle *)(uintptr_t)handle;
    h->released = true;
    drop(h);
    return CUDA_SUCCESS;
}

/* Handles of mapped ranges, beside `ranges`: by address. */
static struct handle *handles[MAX_RANGES];
static uintptr_t handle_at[MAX_RANGES];

static bool note_handle(uintptr_t at, struct handle *h)
{
    bool room = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MAX_RANGES && !room; i++) {
        room = !handles[i];
        if (!room)
            continue;
        handles[i] = h;
        handle_at[i] = at;
    }
    pthread_mutex_unlock(&lock);
    return room;
}

static struct handle *forget_handle(uintptr_t at)
{
    struct handle *h = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MAX_RANGES && !h; i++)
        if (handles[i] && handle_at[i] == at) {
            h = handles[i];
            handles[i] = NULL;
        }
    pthread_mutex_unlock(&lock);
    return h;
}

static CUresult mem_map(CUdeviceptr at, size_t bytes, size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    TSR_STANDIN(cuMemMap, CUresult);
    struct handle *h = (struct handle *)(uintptr_t)handle;
    const struct range r = {(char *)(uintptr_t)at, bytes, TSR_STANDIN_DEVICE, bytes, h->gpu};
    if (offset || flags || bytes != h->bytes || h->maps || at % tsr_standin()->granularity)
        return CUDA_ERROR_INVALID_VALUE;
    if (!add_range(&r) || !note_handle((uintptr_t)at, h))
        return CUDA_ERROR_OUT_OF_MEMORY;
    h->maps++;
    return CUDA_SUCCESS;
}

static CUresult mem_set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *desc, size_t n)
{
    TSR_STANDIN(cuMemSetAccess, CUresult);
    if (n != 1 || desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        tsr_standin_space_of((void *)(uintptr_t)at, bytes) != TSR_STANDIN_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    return mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_OUT_OF_MEMORY
                                                                          : CUDA_SUCCESS;
}

static CUresult mem_unmap(CUdeviceptr at, size_t bytes)
{
    TSR_STANDIN(cuMemUnmap, CUresult);
    struct range r;
    struct handle *h = forget_handle((uintptr_t)at);
    if (!h || !take_range((void *)(uintptr_t)at, TSR_STANDIN_DEVICE, true, &r) || r.bytes != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    map_fresh((void *)(uintptr_t)at, bytes, PROT_NONE);
    h->maps--;
    drop(h);
    return CUDA_SUCCESS;
}

static CUresult get_error_string(CUresult error, const char **out)
{
    *out = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the driver";
    return CUDA_SUCCESS;
}

/* ---- plain allocations -------------------------------------------------------------------------
 */

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    TSR_STANDIN_CUDA(cudaMalloc);
    if (tsr_standin_uncaptured() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    size_t rounded = (bytes + 4095) / 4096 * 4096;
    if (!take_memory(tsr_standin_gpu, rounded))
        return tsr_standin_note(cudaErrorMemoryAllocation);
    struct range r = {map_fresh(NULL, rounded + !rounded, PROT_READ | PROT_WRITE), rounded,
                      TSR_STANDIN_DEVICE, rounded, tsr_standin_gpu};
    if (!r.at || !add_range(&r))
        return tsr_standin_note(cudaErrorMemoryAllocation);
    count(1);
    *out = r.at;
    return cudaSuccess;
}

/* At once: work that still uses it traps. */
cudaError_t cudaFree(void *p)
{
    TSR_STANDIN(cudaFree, cudaError_t);
    struct range r;
    if (p && tsr_standin_uncaptured() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (!p)
        return cudaSuccess;
    if (!take_range(p, TSR_STANDIN_DEVICE, true, &r))
        return tsr_standin_note(cudaErrorInvalidValue);
    munmap(r.at, r.bytes);
    give_memory(r.gpu, r.bytes);
    count(-1);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at)
{
    static const enum cudaMemoryType types[] = {cudaMemoryTypeUnregistered, /* TSR_STANDIN_HOST */
                                                cudaMemoryTypeHost,         /* TSR_STANDIN_PINNED */
                                                cudaMemoryTypeDevice};      /* TSR_STANDIN_DEVICE */
    TSR_STANDIN_CUDA(cudaPointerGetAttributes);
    *out = (struct cudaPointerAttributes){.type = types[tsr_standin_space_of(at, 1)]};
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    TSR_STANDIN_CUDA(cudaHostAlloc);
    if (tsr_standin_uncaptured() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    (void)flags;
    struct range r = {aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096), bytes,
                      TSR_STANDIN_PINNED, 0, 0};
    if (!r.at || !add_range(&r)) {
        free(r.at);
        return tsr_standin_note(cudaErrorMemoryAllocation);
    }
    count(1);
    *out = r.at;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    TSR_STANDIN(cudaFreeHost, cudaError_t);
    struct range r;
    if (p && tsr_standin_uncaptured() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (!p)
        return cudaSuccess;
    if (!take_range(p, TSR_STANDIN_PINNED, false, &r))
        return tsr_standin_note(cudaErrorInvalidValue);
    free(r.at);
    count(-1);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    TSR_STANDIN_CUDA(cudaMemGetInfo);
    pthread_mutex_lock(&lock);
    *total = tsr_standin()->memory;
    *free_bytes = *total - taken[tsr_standin_gpu];
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- copies and fills --------------------------------------------------------------------------
 */

/* Rows of `width` bytes. */
struct copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
    bool carries; /* the bytes follow this structure */
};

static int run_copy(void *data)
{
    const struct copy *c = data;
    const char *from = c->carries ? (const char *)(c + 1) : c->from;
    for (size_t i = 0; i < c->height; i++)
        memmove(c->to + i * c->to_pitch, from + i * c->from_pitch, c->width);
    return 0;
}

static size_t extent(size_t pitch, size_t width, size_t height)
{
    return height ? (height - 1) * pitch + width : 0;
}

static bool fits_kind(enum tsr_standin_space to, enum tsr_standin_space from,
                      enum cudaMemcpyKind kind)
{
    bool to_device = to == TSR_STANDIN_DEVICE, from_device = from == TSR_STANDIN_DEVICE;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    default:
        return true;
    }
}

/* Pageable memory is copied before the call returns, as CUDA does it. */
static cudaError_t copy_pageable(struct copy *c, cudaStream_t s, bool reads)
{
    size_t bytes = reads ? extent(c->from_pitch, c->width, c->height) : 0;
    struct copy *with = malloc(sizeof *with + bytes);
    if (!with)
        return tsr_standin_note(cudaErrorMemoryAllocation);
    *with = *c;
    with->carries = reads;
    if (bytes)
        memcpy(with + 1, c->from, bytes);
    cudaError_t error = tsr_standin_enqueue(s, run_copy, with, sizeof *with + bytes);
    free(with);
    if (error == cudaSuccess && !reads)
        tsr_standin_wait(s);
    return error;
}

static cudaError_t copy(struct copy *c, enum cudaMemcpyKind kind, cudaStream_t s)
{
    size_t to_bytes = extent(c->to_pitch, c->width, c->height);
    size_t from_bytes = extent(c->from_pitch, c->width, c->height);
    if (!to_bytes && s && tsr_standin_place_of(s)->capture) /* a node of nothing */
        return tsr_standin_spoil(tsr_standin_place_of(s), cudaErrorInvalidValue);
    if (!to_bytes)
        return cudaSuccess;
    enum tsr_standin_space to = tsr_standin_space_of(c->to, to_bytes),
                           from = tsr_standin_space_of(c->from, from_bytes);
    if (s && !fits_kind(to, from, kind))
        return tsr_standin_note(cudaErrorInvalidValue);
    bool is_pageable = to == TSR_STANDIN_HOST || from == TSR_STANDIN_HOST;
    if (s && is_pageable && tsr_standin_place_of(s)->capture)
        return tsr_standin_spoil(tsr_standin_place_of(s), cudaErrorStreamCaptureUnsupported);
    if (s && is_pageable)
        return copy_pageable(c, s, from == TSR_STANDIN_HOST);
    return tsr_standin_enqueue(s, run_copy, c, sizeof *c);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    TSR_STANDIN_CUDA(cudaMemcpyAsync);
    struct copy c = {to, from, bytes, bytes, bytes, bytes > 0, false};
    return copy(&c, kind, s);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    TSR_STANDIN_CUDA(cudaMemcpy2DAsync);
    struct copy c = {to, from, to_pitch, from_pitch, width, width ? height : 0, false};
    if (to_pitch < width || from_pitch < width)
        return tsr_standin_note(cudaErrorInvalidPitchValue);
    return copy(&c, kind, s);
}

/* Values of `size` bytes, rows of `width` of them. */
struct fill {
    char *to;
    size_t pitch, width, height;
    unsigned size;
    uint32_t value;
};

static int run_fill(void *data)
{
    const struct fill *f = data;
    for (size_t y = 0; y < f->height; y++) {
        char *row = f->to + y * f->pitch;
        if (f->size == 1) /* a workspace of 32 MiB before each product that is timed */
            memset(row, (int)f->value, f->width);
        for (size_t x = 0; x < f->width && f->size != 1; x++)
            memcpy(row + x * f->size, &f->value, f->size);
    }
    return 0;
}

static bool fill_is_on_device(const struct fill *f, cudaStream_t s)
{
    size_t bytes = extent(f->pitch, f->width * f->size, f->height);
    return !s || !bytes || tsr_standin_space_of(f->to, bytes) == TSR_STANDIN_DEVICE;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
    TSR_STANDIN_CUDA(cudaMemsetAsync);
    const struct fill f = {to, bytes, bytes, 1, 1, (uint32_t)(value & 0xff)};
    if (!bytes && s && tsr_standin_place_of(s)->capture)
        return tsr_standin_spoil(tsr_standin_place_of(s), cudaErrorInvalidValue);
    if (!fill_is_on_device(&f, s))
        return tsr_standin_note(cudaErrorInvalidValue);
    return tsr_standin_enqueue(s, run_fill, &f, sizeof f);
}

static CUresult memset_d16(CUdeviceptr to, unsigned short value, size_t n, CUstream s)
{
    TSR_STANDIN(cuMemsetD16Async, CUresult);
    const struct fill f = {(char *)(uintptr_t)to, 2 * n, n, 1, 2, value};
    if (to % 2 || !fill_is_on_device(&f, s))
        return CUDA_ERROR_INVALID_VALUE;
    return (CUresult)tsr_standin_enqueue(s, run_fill, &f, sizeof f);
}

static CUresult memset_d32(CUdeviceptr to, unsigned value, size_t n, CUstream s)
{
    TSR_STANDIN(cuMemsetD32Async, CUresult);
    const struct fill f = {(char *)(uintptr_t)to, 4 * n, n, 1, 4, value};
    if (to % 4 || !fill_is_on_device(&f, s))
        return CUDA_ERROR_INVALID_VALUE;
    return (CUresult)tsr_standin_enqueue(s, run_fill, &f, sizeof f);
}

static CUresult memset_2d32(CUdeviceptr to, size_t pitch, unsigned value, size_t width,
                            size_t height, CUstream s)
{
    TSR_STANDIN(cuMemsetD2D32Async, CUresult);
    const struct fill f = {(char *)(uintptr_t)to, pitch, width, height, 4, value};
    if (to % 4 || !fill_is_on_device(&f, s))
        return CUDA_ERROR_INVALID_VALUE;
    return (CUresult)tsr_standin_enqueue(s, run_fill, &f, sizeof f);
}

static CUresult device_attribute(int *out, CUdevice_attribute attribute, CUdevice gpu)
{
    TSR_STANDIN(cuDeviceGetAttribute, CUresult);
    if (gpu >= tsr_standin()->gpus)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
        *out = 1;
    else if (attribute == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)
        *out = tsr_standin()->multicast > 0;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* ---- the driver by name ------------------------------------------------------------------------
 */

typedef void (*any_fn)(void);

void *tsr_standin_driver(const char *symbol)
{
    static const struct {
        const char *name;
        any_fn fn;
    } table[] = {{"cuMemGetAllocationGranularity", (any_fn)get_granularity},
                 {"cuMulticastGetGranularity", (any_fn)multicast_granularity},
                 {"cuMemAddressReserve", (any_fn)address_reserve},
                 {"cuMemAddressFree", (any_fn)address_free},
                 {"cuMemCreate", (any_fn)mem_create},
                 {"cuMemRelease", (any_fn)mem_release},
                 {"cuMemMap", (any_fn)mem_map},
                 {"cuMemSetAccess", (any_fn)mem_set_access},
                 {"cuMemUnmap", (any_fn)mem_unmap},
                 {"cuDeviceGetAttribute", (any_fn)device_attribute},
                 {"cuGetErrorString", (any_fn)get_error_string},
                 {"cuMemsetD16Async", (any_fn)memset_d16},
                 {"cuMemsetD32Async", (any_fn)memset_d32},
                 {"cuMemsetD2D32Async", (any_fn)memset_2d32}};
    void *out = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, symbol))
            memcpy(&out, &table[i].fn, sizeof out);
    return out;
}
