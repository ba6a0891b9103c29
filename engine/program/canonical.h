/* canonical.h: numbers ids by first appearance, so that programs that differ only in the ids of
 * their buffers or events read, hash and print the same. Private to program_hash.c and
 * program_dump.c.
 */
#ifndef TSR_CANONICAL_H
#define TSR_CANONICAL_H

#include "engine/program/base.h"

/* Open addressing; n_slots is a power of two. */
struct tsr_canonical {
    struct tsr_canonical_slot {
        uint32_t id, number; /* number 0: free slot; else 1 + canonical number */
    } * slots;
    uint32_t n_slots, n;
};

void tsr_canonical_init(struct tsr_canonical *map);
void tsr_canonical_fini(struct tsr_canonical *map);
/* False when out of memory. */
bool tsr_canonical_number(struct tsr_canonical *map, uint32_t id, uint32_t *number);

#endif
