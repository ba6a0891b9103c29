/* host_space.c: see host_space.h. */
#include "host_space.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

tsr_status tsr_host_space_create(struct tsr_host_space *space, uint64_t bytes)
{
    *space = (struct tsr_host_space){.bytes = bytes};
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return tsr_fail(TSR_EBACKEND, "%llu bytes of addresses cannot be reserved: %s",
                        (unsigned long long)bytes, strerror(errno));
    space->base = base;
    return TSR_OK;
}

void tsr_host_space_destroy(struct tsr_host_space *space)
{
    if (space->base)
        munmap(space->base, space->bytes);
    space->base = NULL;
}

static tsr_status check(const struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    uint64_t end;
    if (!tsr_add_u64(address, bytes, &end) || end > space->bytes)
        return tsr_fail(TSR_EVALUE,
                        "a device allocation of %llu bytes at %llu lies outside the device's "
                        "address space of %llu bytes",
                        (unsigned long long)bytes, (unsigned long long)address,
                        (unsigned long long)space->bytes);
    return TSR_OK;
}

tsr_status tsr_host_space_map(struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    TSR_TRY(check(space, address, bytes));
    if (mprotect(space->base + address, bytes, PROT_READ | PROT_WRITE) != 0)
        return tsr_fail(TSR_EOOM, "the machine has no %llu bytes left for a device segment: %s",
                        (unsigned long long)bytes, strerror(errno));
    space->mapped += bytes;
    space->peak = tsr_max_u64(space->peak, space->mapped);
    return TSR_OK;
}

/* A fresh mapping over the range: its pages go back, and touching them traps. */
tsr_status tsr_host_space_unmap(struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    TSR_TRY(check(space, address, bytes));
    void *again = mmap(space->base + address, bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (again == MAP_FAILED)
        return tsr_fail(TSR_EBACKEND, "a device segment cannot be given back: %s", strerror(errno));
    space->mapped -= bytes;
    return TSR_OK;
}
