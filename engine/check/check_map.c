/* check_map.c: the checker's hash map from ids to indices (check_impl.h). */
#include <stdlib.h>

#include "engine/check/check_impl.h"

enum { FIRST_SLOTS = 256 };

/* Fibonacci hashing: ids are dense numbers and would cluster. */
static size_t home_of(uint32_t key, size_t n_slots)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (n_slots - 1);
}

/* The slot that holds `key`, or the empty one where it belongs. */
static size_t slot_of(const struct tsr__map *map, uint32_t key)
{
    size_t i = home_of(key, map->n_slots);
    while (map->keys[i] != TSR__NONE && map->keys[i] != key)
        i = (i + 1) & (map->n_slots - 1);
    return i;
}

static bool rebuild(struct tsr__map *map, size_t n_slots)
{
    struct tsr__map wide = {.n_slots = n_slots, .n = map->n};
    wide.keys = malloc(n_slots * sizeof *wide.keys);
    wide.values = malloc(n_slots * sizeof *wide.values);
    if (!wide.keys || !wide.values) {
        tsr__map_fini(&wide);
        return false;
    }
    for (size_t i = 0; i < n_slots; i++)
        wide.keys[i] = TSR__NONE;
    for (size_t i = 0; i < map->n_slots; i++) {
        if (map->keys[i] == TSR__NONE)
            continue;
        size_t to = slot_of(&wide, map->keys[i]);
        wide.keys[to] = map->keys[i];
        wide.values[to] = map->values[i];
    }
    tsr__map_fini(map);
    *map = wide;
    return true;
}

bool tsr__map_put(struct tsr__map *map, uint32_t key, uint32_t value)
{
    if (map->n * 2 >= map->n_slots && !rebuild(map, map->n_slots ? map->n_slots * 2 : FIRST_SLOTS))
        return false;
    size_t i = slot_of(map, key);
    map->n += map->keys[i] == TSR__NONE;
    map->keys[i] = key;
    map->values[i] = value;
    return true;
}

uint32_t tsr__map_get(const struct tsr__map *map, uint32_t key)
{
    if (map->n_slots == 0 || key == TSR__NONE)
        return TSR__NONE;
    size_t i = slot_of(map, key);
    return map->keys[i] == key ? map->values[i] : TSR__NONE;
}

/* Later members of the same run move back, so that no probe meets a hole. */
void tsr__map_remove(struct tsr__map *map, uint32_t key)
{
    if (tsr__map_get(map, key) == TSR__NONE)
        return;
    size_t mask = map->n_slots - 1, hole = slot_of(map, key);
    for (size_t i = (hole + 1) & mask; map->keys[i] != TSR__NONE; i = (i + 1) & mask) {
        if (((i - home_of(map->keys[i], map->n_slots)) & mask) >= ((i - hole) & mask)) {
            map->keys[hole] = map->keys[i];
            map->values[hole] = map->values[i];
            hole = i;
        }
    }
    map->keys[hole] = TSR__NONE;
    map->n--;
}

void tsr__map_fini(struct tsr__map *map)
{
    free(map->keys);
    free(map->values);
    *map = (struct tsr__map){0};
}
