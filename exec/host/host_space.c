/* host_space.c: reserves addresses by the TiB and backs parts of them with memory. */
#include "exec/host/host_space.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* ThreadSanitizer leaves a program less than two TiB of addresses. */
#if defined(__SANITIZE_THREAD__)
#define SLOT_BYTES (UINT64_C(1) << 34)
#else
#define SLOT_BYTES (UINT64_C(1) << 40)
#endif

static void *reserve(void *at, uint64_t bytes, int flags)
{
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

void tsr_host_space_init(struct tsr_host_space *space)
{
    *space = (struct tsr_host_space){0};
}

void tsr_host_space_fini(struct tsr_host_space *space)
{
    for (unsigned i = 0; i < space->n_slots; i++)
        munmap(space->slots[i].base, SLOT_BYTES);
    tsr_host_space_init(space);
}

void *tsr_host_space_at(const struct tsr_host_space *space, uint64_t address)
{
    for (unsigned i = 0; i < space->n_slots; i++)
        if (space->slots[i].number == address / SLOT_BYTES)
            return space->slots[i].base + address % SLOT_BYTES;
    return NULL;
}

static tsr_status open_slot(struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    if (bytes > SLOT_BYTES || address % SLOT_BYTES > SLOT_BYTES - bytes)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "a device segment of %llu bytes at %llu: the host backs segments inside "
                        "one TiB of addresses",
                        (unsigned long long)bytes, (unsigned long long)address);
    if (tsr_host_space_at(space, address))
        return TSR_OK;
    if (space->n_slots == TSR_HOST_SLOTS)
        return tsr_fail(TSR_EUNSUPPORTED, "device segments in more than %d TiB of addresses",
                        TSR_HOST_SLOTS);
    void *base = reserve(NULL, SLOT_BYTES, 0);
    if (base == MAP_FAILED)
        return tsr_fail(TSR_EBACKEND, "a TiB of addresses cannot be reserved: %s", strerror(errno));
    space->slots[space->n_slots].number = address / SLOT_BYTES;
    space->slots[space->n_slots++].base = base;
    return TSR_OK;
}

tsr_status tsr_host_space_map(struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    TSR_TRY(open_slot(space, address, bytes));
    if (mprotect(tsr_host_space_at(space, address), bytes, PROT_READ | PROT_WRITE) != 0)
        return tsr_fail(TSR_EOOM, "the machine has no %llu bytes left for a device segment: %s",
                        (unsigned long long)bytes, strerror(errno));
    space->mapped += bytes;
    space->peak = tsr_max_u64(space->peak, space->mapped);
    return TSR_OK;
}

/* A fresh mapping over the range: its pages go back, and touching them traps. */
tsr_status tsr_host_space_unmap(struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    TSR_TRY(open_slot(space, address, bytes));
    if (reserve(tsr_host_space_at(space, address), bytes, MAP_FIXED) == MAP_FAILED)
        return tsr_fail(TSR_EBACKEND, "a device segment cannot be given back: %s", strerror(errno));
    space->mapped -= bytes;
    return TSR_OK;
}
