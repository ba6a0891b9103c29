/* space.c: addresses are reserved, memory is mapped at them and unmapped, by the driver's own
 * calls. */
#include "exec/cuda/gpu/space.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/gpu/gpu.h"

/* ThreadSanitizer leaves a program less than two TiB of addresses. */
#if defined(__SANITIZE_THREAD__)
#define SLOT_BYTES (UINT64_C(1) << 34)
#else
#define SLOT_BYTES (UINT64_C(1) << 40)
#endif
/* Where a process may not have as many: still more than a GPU has memory. */
#define LEAST_SLOT_BYTES (UINT64_C(1) << 38)

/* ---- the driver ------------------------------------------------------------------------------ */

static tsr_status find(const char *symbol, unsigned version, void *out)
{
    void *fn = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    TSR_CUDA(symbol,
             cudaGetDriverEntryPointByVersion(symbol, &fn, version, cudaEnableDefault, &result));
    if (!fn || result != cudaDriverEntryPointSuccess)
        return tsr_fail(TSR_EBACKEND, "CUDA: the driver has no %s", symbol);
    memcpy(out, &fn, sizeof fn); /* ISO C casts no void * to a function */
    return TSR_OK;
}

/* TSR_EBACKEND: the driver lacks one. */
static tsr_status open_driver(struct tsr_cuda_driver *d)
{
    const struct {
        const char *symbol;
        unsigned version;
        void *out;
    } table[] = {{"cuMemGetAllocationGranularity", 10020, &d->granularity},
                 {"cuMemAddressReserve", 10020, &d->reserve},
                 {"cuMemAddressFree", 10020, &d->unreserve},
                 {"cuMemCreate", 10020, &d->create},
                 {"cuMemRelease", 10020, &d->release},
                 {"cuMemMap", 10020, &d->map},
                 {"cuMemSetAccess", 10020, &d->set_access},
                 {"cuMemUnmap", 10020, &d->unmap},
                 {"cuDeviceGetAttribute", 2000, &d->attribute},
                 {"cuGetErrorString", 6000, &d->error_string}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        TSR_TRY(find(table[i].symbol, table[i].version, table[i].out));
    if (find("cuMulticastGetGranularity", 12010, &d->multicast) != TSR_OK)
        d->multicast = NULL;
    return TSR_OK;
}

static tsr_status check(const struct tsr_cuda_space *space, CUresult result, const char *tried)
{
    const char *text = NULL;
    if (result == CUDA_SUCCESS)
        return TSR_OK;
    if (space->driver.error_string(result, &text) != CUDA_SUCCESS || !text)
        text = "an unknown error";
    return tsr_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? TSR_EOOM : TSR_EBACKEND,
                    "%s: CUDA says '%s'", tried, text);
}

/* ---- addresses ------------------------------------------------------------------------------- */

static CUmemAllocationProp prop_of(const struct tsr_cuda_space *space)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    if (space->shared)
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable = space->shared && space->rdma;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = space->gpu;
    return prop;
}

/* NCCL registers windows with network adapters only where the memory was made for that, as
 * ncclMemAlloc() makes it. */
static tsr_status ask_rdma(struct tsr_cuda_space *space)
{
    const CUdevice_attribute asked = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    int value = 0;
    TSR_TRY(check(space, space->driver.attribute(&value, asked, space->gpu),
                  "whether adapters reach device memory"));
    space->rdma = value != 0;
    return TSR_OK;
}

/* Asks as ncclMemAlloc() does, but for the minimum: what is recommended may be 512 MiB. A driver
 * that does not answer has no multicast, and NCCL goes without it. */
static tsr_status ask_multicast(struct tsr_cuda_space *space)
{
    CUmulticastObjectProp prop = {.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .size = TSR_CUDA_SEGMENT_UNIT};
    int has = 0, n_gpus = 0;
    size_t bytes = 0;
    if (!space->shared || !space->driver.multicast)
        return TSR_OK;
    TSR_TRY(check(
        space, space->driver.attribute(&has, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, space->gpu),
        "whether the GPU has multicast"));
    TSR_CUDA("the number of GPUs", cudaGetDeviceCount(&n_gpus));
    prop.numDevices = (unsigned)n_gpus;
    if (!has || space->driver.multicast(&bytes, &prop, CU_MULTICAST_GRANULARITY_MINIMUM))
        return TSR_OK;
    space->multicast = bytes;
    if (bytes && TSR_CUDA_SEGMENT_UNIT % bytes == 0 && bytes % space->granularity == 0)
        space->granularity = bytes;
    return TSR_OK;
}

tsr_status tsr_cuda_space_init(struct tsr_cuda_space *space, int gpu, uint64_t unit, bool shared)
{
    *space = (struct tsr_cuda_space){
        .gpu = gpu, .unit = unit, .shared = shared, .slot_bytes = SLOT_BYTES};
    TSR_TRY(open_driver(&space->driver));
    TSR_TRY(ask_rdma(space));
    const CUmemAllocationProp prop = prop_of(space);
    size_t granularity = 0;
    TSR_TRY(check(space,
                  space->driver.granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                  "the granularity of device memory"));
    space->granularity = tsr_max_u64(granularity, 1);
    return ask_multicast(space);
}

void tsr_cuda_space_fini(struct tsr_cuda_space *space)
{
    for (size_t i = 0; i < space->n_pieces; i++)
        (void)space->driver.unmap((CUdeviceptr)(uintptr_t)space->pieces[i].at,
                                  space->pieces[i].bytes);
    for (unsigned i = 0; i < space->n_slots; i++)
        (void)space->driver.unreserve((CUdeviceptr)(uintptr_t)space->slots[i].base,
                                      space->slot_bytes);
    free(space->pieces);
    *space = (struct tsr_cuda_space){.gpu = space->gpu};
}

void *tsr_cuda_space_at(const struct tsr_cuda_space *space, uint64_t address)
{
    for (unsigned i = 0; i < space->n_slots; i++)
        if (space->slots[i].number == address / space->slot_bytes)
            return space->slots[i].base + address % space->slot_bytes;
    return NULL;
}

static tsr_status check_segment(const struct tsr_cuda_space *space, uint64_t address,
                                uint64_t bytes)
{
    uint64_t slot = space->slot_bytes;
    if (address % space->granularity == 0 && bytes > 0 && bytes <= slot &&
        address % slot <= slot - bytes)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED,
                    "a device segment of %llu bytes at %llu: a GPU backs segments inside %llu GiB "
                    "of addresses, at multiples of %llu",
                    (unsigned long long)bytes, (unsigned long long)address,
                    (unsigned long long)(slot >> 30), (unsigned long long)space->granularity);
}

/* The first slot decides how large all are. */
static tsr_status reserve(struct tsr_cuda_space *space, CUdeviceptr *base)
{
    CUresult result = space->driver.reserve(base, space->slot_bytes, 0, 0, 0);
    while (result != CUDA_SUCCESS && space->n_slots == 0 && space->slot_bytes > LEAST_SLOT_BYTES) {
        space->slot_bytes /= 2;
        result = space->driver.reserve(base, space->slot_bytes, 0, 0, 0);
    }
    return check(space, result, "reserving addresses");
}

static tsr_status open_slot(struct tsr_cuda_space *space, uint64_t address, uint64_t bytes)
{
    CUdeviceptr base = 0;
    TSR_TRY(check_segment(space, address, bytes));
    if (tsr_cuda_space_at(space, address))
        return TSR_OK;
    if (space->n_slots == TSR_CUDA_SLOTS)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "device segments in more than %d times %llu GiB of addresses",
                        TSR_CUDA_SLOTS, (unsigned long long)(space->slot_bytes >> 30));
    TSR_TRY(reserve(space, &base));
    space->slots[space->n_slots].number = address / space->slot_bytes;
    space->slots[space->n_slots++].base = (char *)(uintptr_t)base;
    return check_segment(space, address, bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Some containers refuse memory that can be shared, with errors of several kinds: then it is not,
 * and NCCL copies. */
static tsr_status create(struct tsr_cuda_space *space, uint64_t bytes,
                         CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = prop_of(space);
    CUresult result = space->driver.create(handle, bytes, &prop, 0);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && space->shared) {
        space->shared = false;
        prop = prop_of(space);
        result = space->driver.create(handle, bytes, &prop, 0);
    }
    return check(space, result, "device memory");
}

/* The mapping keeps the memory; the handle is not needed beyond it. */
static tsr_status map_piece(struct tsr_cuda_space *space, char *at, uint64_t bytes)
{
    const struct tsr_cuda_piece piece = {at, bytes};
    CUmemGenericAllocationHandle handle;
    if (!TSR_PUSH(space->pieces, space->n_pieces, space->cap_pieces, piece))
        return tsr_no_memory("device segments");
    space->n_pieces--;
    TSR_TRY(create(space, bytes, &handle));
    tsr_status status = check(
        space, space->driver.map((CUdeviceptr)(uintptr_t)at, bytes, 0, handle, 0), "a mapping");
    tsr_status released = check(space, space->driver.release(handle), "a mapping");
    if (status == TSR_OK)
        space->pieces[space->n_pieces++] = piece;
    return status == TSR_OK ? released : status;
}

static tsr_status map_pieces(struct tsr_cuda_space *space, char *at, uint64_t bytes)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = space->gpu},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    uint64_t unit = !space->unit               ? bytes
                    : bytes % space->unit == 0 ? space->unit
                                               : space->granularity;
    for (uint64_t done = 0; done < bytes; done += unit)
        TSR_TRY(map_piece(space, at + done, tsr_min_u64(unit, bytes - done)));
    return check(space, space->driver.set_access((CUdeviceptr)(uintptr_t)at, bytes, &access, 1),
                 "access to device memory");
}

static tsr_status unmap_pieces(struct tsr_cuda_space *space, const char *at, uint64_t bytes,
                               uint64_t *unmapped)
{
    *unmapped = 0;
    for (size_t i = space->n_pieces; i-- > 0;) {
        const struct tsr_cuda_piece p = space->pieces[i];
        if (p.at < at || p.at + p.bytes > at + bytes)
            continue;
        space->pieces[i] = space->pieces[--space->n_pieces];
        *unmapped += p.bytes;
        TSR_TRY(check(space, space->driver.unmap((CUdeviceptr)(uintptr_t)p.at, p.bytes),
                      "giving device memory back"));
    }
    return TSR_OK;
}

tsr_status tsr_cuda_space_map(struct tsr_cuda_space *space, uint64_t address, uint64_t bytes)
{
    uint64_t backed = tsr_round_up(bytes, space->granularity), unmapped;
    TSR_TRY(open_slot(space, address, backed));
    char *at = tsr_cuda_space_at(space, address), why[256];
    tsr_status status = map_pieces(space, at, backed);
    if (status != TSR_OK) {
        strncpy(why, tsr_error_text(), sizeof why - 1);
        why[sizeof why - 1] = 0;
        (void)!unmap_pieces(space, at, backed, &unmapped);
        return tsr_fail(status, "a device segment of %llu bytes beside %llu: %s",
                        (unsigned long long)bytes, (unsigned long long)space->mapped, why);
    }
    space->mapped += bytes;
    space->peak = tsr_max_u64(space->peak, space->mapped);
    return TSR_OK;
}

tsr_status tsr_cuda_space_unmap(struct tsr_cuda_space *space, uint64_t address, uint64_t bytes)
{
    const char *at = tsr_cuda_space_at(space, address);
    uint64_t backed = tsr_round_up(bytes, space->granularity), unmapped = 0;
    if (at)
        TSR_TRY(unmap_pieces(space, at, backed, &unmapped));
    if (unmapped != backed)
        return tsr_fail(
            TSR_EDEFECT, "a device segment of %llu bytes at %llu is given back; backed are %llu",
            (unsigned long long)bytes, (unsigned long long)address, (unsigned long long)unmapped);
    space->mapped -= bytes;
    return TSR_OK;
}
