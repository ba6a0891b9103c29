/* host_space.h: the address space of a host device, of which segments are backed and given back.
 * What is not backed traps. Private to the host device.
 *
 * Device addresses may lie far apart (expandable segments reserve a range each), so the space is
 * made of slots of 1 TiB of addresses, reserved when the first byte of one is backed.
 */
#ifndef TSR_HOST_SPACE_H
#define TSR_HOST_SPACE_H

#include "engine/program/base.h"

enum { TSR_HOST_SLOTS = 64 };

struct tsr_host_space {
    struct {
        uint64_t number; /* address / slot size */
        char *base;
    } slots[TSR_HOST_SLOTS];
    unsigned n_slots;
    uint64_t mapped, peak; /* bytes that are backed now; the most */
};

void tsr_host_space_init(struct tsr_host_space *space);
void tsr_host_space_fini(struct tsr_host_space *space);
/* address and bytes: multiples of a page. TSR_EOOM: the machine has no memory; TSR_EUNSUPPORTED:
 * too many slots, or a segment that lies in two. */
tsr_status tsr_host_space_map(struct tsr_host_space *space, uint64_t address,
                              uint64_t bytes) TSR_MUST_USE;
tsr_status tsr_host_space_unmap(struct tsr_host_space *space, uint64_t address,
                                uint64_t bytes) TSR_MUST_USE;
/* NULL: the slot was never backed. */
void *tsr_host_space_at(const struct tsr_host_space *space, uint64_t address);

#endif
