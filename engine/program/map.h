/* map.h: the hash map of the project: from 32-bit ids to indices. */
#ifndef TSR_ENGINE_MAP_H
#define TSR_ENGINE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSR_MAP_NONE UINT32_MAX /* no key and no value */

/* Zeroed: empty. */
struct tsr_map {
    uint32_t *keys, *values; /* owned; key TSR_MAP_NONE: an empty slot */
    size_t n_slots, n;       /* slots: 0 or a power of two, at most half of them taken */
};
/* Adds or replaces; neither is TSR_MAP_NONE. False when there is no memory for another key: nothing
 * has changed then. */
bool tsr_map_put(struct tsr_map *map, uint32_t key, uint32_t value);
/* TSR_MAP_NONE: it is not there. */
uint32_t tsr_map_get(const struct tsr_map *map, uint32_t key);
void tsr_map_remove(struct tsr_map *map, uint32_t key); /* a key that is not there is fine */
void tsr_map_fini(struct tsr_map *map);

#endif
