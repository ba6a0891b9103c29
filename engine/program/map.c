/* map.c: open addressing with linear probing; a removal moves later entries back. */
#include "engine/program/map.h"

#include <stdlib.h>

enum { FIRST_SLOTS = 256 };

/* Fibonacci hashing: ids are dense numbers and would cluster. */
static size_t home_of(uint32_t key, size_t n_slots)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (n_slots - 1);
}

/* The slot that holds `key`, or the empty one where it belongs. */
static size_t slot_of(const struct tsr_map *map, uint32_t key)
{
    size_t i = home_of(key, map->n_slots);
    while (map->keys[i] != TSR_MAP_NONE && map->keys[i] != key)
        i = (i + 1) & (map->n_slots - 1);
    return i;
}

static bool rebuild(struct tsr_map *map, size_t n_slots)
{
    struct tsr_map wide = {.n_slots = n_slots, .n = map->n};
    wide.keys = malloc(n_slots * sizeof *wide.keys);
    wide.values = malloc(n_slots * sizeof *wide.values);
    if (!wide.keys || !wide.values) {
        tsr_map_fini(&wide);
        return false;
    }
    for (size_t i = 0; i < n_slots; i++)
        wide.keys[i] = TSR_MAP_NONE;
    for (size_t i = 0; i < map->n_slots; i++) {
        if (map->keys[i] == TSR_MAP_NONE)
            continue;
        size_t to = slot_of(&wide, map->keys[i]);
        wide.keys[to] = map->keys[i];
        wide.values[to] = map->values[i];
    }
    tsr_map_fini(map);
    *map = wide;
    return true;
}

bool tsr_map_put(struct tsr_map *map, uint32_t key, uint32_t value)
{
    bool is_new = tsr_map_get(map, key) == TSR_MAP_NONE;
    if (is_new && map->n * 2 >= map->n_slots &&
        !rebuild(map, map->n_slots ? map->n_slots * 2 : FIRST_SLOTS))
        return false;
    size_t i = slot_of(map, key);
    map->n += is_new;
    map->keys[i] = key;
    map->values[i] = value;
    return true;
}

uint32_t tsr_map_get(const struct tsr_map *map, uint32_t key)
{
    if (map->n_slots == 0 || key == TSR_MAP_NONE)
        return TSR_MAP_NONE;
    size_t i = slot_of(map, key);
    return map->keys[i] == key ? map->values[i] : TSR_MAP_NONE;
}

/* Later members of the same run move back, so that no probe meets a hole. */
void tsr_map_remove(struct tsr_map *map, uint32_t key)
{
    if (tsr_map_get(map, key) == TSR_MAP_NONE)
        return;
    size_t mask = map->n_slots - 1, hole = slot_of(map, key);
    for (size_t i = (hole + 1) & mask; map->keys[i] != TSR_MAP_NONE; i = (i + 1) & mask) {
        if (((i - home_of(map->keys[i], map->n_slots)) & mask) >= ((i - hole) & mask)) {
            map->keys[hole] = map->keys[i];
            map->values[hole] = map->values[i];
            hole = i;
        }
    }
    map->keys[hole] = TSR_MAP_NONE;
    map->n--;
}

void tsr_map_fini(struct tsr_map *map)
{
    free(map->keys);
    free(map->values);
    *map = (struct tsr_map){0};
}
