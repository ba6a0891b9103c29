/* space.h: the address space of a GPU of which a rank backs segments: ranges of virtual addresses,
 * reserved once, and physical memory that is mapped there (the driver's cuMem functions). What is
 * not backed traps. A segment's memory can be shared with other processes and other GPUs if that
 * is asked for.
 */
#ifndef TSR_EXEC_SPACE_H
#define TSR_EXEC_SPACE_H

#include <cudaTypedefs.h>

#include "engine/program/base.h"

/* Functions of the driver, found at run time: nothing is linked with libcuda. */
struct tsr_cuda_driver {
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 unreserve;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuDeviceGetAttribute_v2000 attribute;
    PFN_cuGetErrorString_v6000 error_string;
    PFN_cuMulticastGetGranularity_v12010 multicast; /* NULL: the driver is older */
};

enum { TSR_CUDA_SLOTS = 64 };
/* Segments begin at multiples of so many bytes and have as many, as PyTorch's allocator makes them.
 */
#define TSR_CUDA_SEGMENT_UNIT (UINT64_C(2) << 20)

/* Device addresses may lie far apart (expandable segments reserve a range each), so the space is
 * made of slots of 1 TiB of addresses, or less where there is less, reserved when the first byte of
 * one is backed. */
struct tsr_cuda_space {
    struct tsr_cuda_driver driver;
    int gpu;
    uint64_t granularity; /* of addresses, and of each physical allocation */
    /* NCCL can sum and gather in NVLink's switches (NVLS) only in memory whose physical allocations
     * are multiples of this; 0: the GPU has no multicast, or the memory is not shared. Where it
     * divides TSR_CUDA_SEGMENT_UNIT, granularity is a multiple of it. */
    uint64_t multicast;
    uint64_t unit; /* see tsr_cuda_space_init() ... */
    bool shared;   /* ... this, too */
    bool rdma;     /* network adapters can read and write the memory (GPUDirect RDMA) */
    uint64_t slot_bytes;
    struct {
        uint64_t number; /* address / slot_bytes */
        char *base;
    } slots[TSR_CUDA_SLOTS];
    unsigned n_slots;
    struct tsr_cuda_piece { /* of physical memory */
        char *at;
        uint64_t bytes;
    } * pieces;
    size_t n_pieces, cap_pieces;
    uint64_t mapped, peak; /* bytes that are backed now; the most */
};

/* unit: ranges are given back in multiples of so many bytes (expandable segments); 0: as they were
 * backed. shared: NCCL can be given handles of the memory (windows), where the system allows that.
 * Of the GPU that is this thread's. */
tsr_status tsr_cuda_space_init(struct tsr_cuda_space *space, int gpu, uint64_t unit,
                               bool shared) TSR_MUST_USE;
/* Gives all back. Nothing on the GPU may use it any more. */
void tsr_cuda_space_fini(struct tsr_cuda_space *space);
/* TSR_EOOM: the GPU has no memory; TSR_EUNSUPPORTED: too many slots, a segment that lies in two, or
 * an address that is no multiple of the granularity. */
tsr_status tsr_cuda_space_map(struct tsr_cuda_space *space, uint64_t address,
                              uint64_t bytes) TSR_MUST_USE;
/* TSR_EDEFECT: the range was not backed so. */
tsr_status tsr_cuda_space_unmap(struct tsr_cuda_space *space, uint64_t address,
                                uint64_t bytes) TSR_MUST_USE;
/* NULL: the slot was never backed. */
void *tsr_cuda_space_at(const struct tsr_cuda_space *space, uint64_t address);

#endif
