/* host_space.h: the address space of a host device: a large reserved range of which segments are
 * backed and given back. What is not backed traps. Private to the host device.
 */
#ifndef TSR_HOST_SPACE_H
#define TSR_HOST_SPACE_H

#include "engine/base.h"

struct tsr_host_space {
    char *base;
    uint64_t bytes;
    uint64_t mapped, peak; /* bytes that are backed now; the most */
};

tsr_status tsr_host_space_create(struct tsr_host_space *space, uint64_t bytes) TSR_MUST_USE;
void tsr_host_space_destroy(struct tsr_host_space *space);
/* address and bytes: multiples of a page. TSR_EOOM: the machine has no memory; TSR_EVALUE: outside
 * the range. */
tsr_status tsr_host_space_map(struct tsr_host_space *space, uint64_t address,
                              uint64_t bytes) TSR_MUST_USE;
tsr_status tsr_host_space_unmap(struct tsr_host_space *space, uint64_t address,
                                uint64_t bytes) TSR_MUST_USE;

#endif
