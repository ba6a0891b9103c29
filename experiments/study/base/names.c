/* names.c: a hash table of keys and anchors. */
#include "experiments/study/base/names.h"

#include <stdlib.h>
#include <string.h>

/* The slot of a name: its own, or the free one where it would go. */
static struct tsr_name *slot_of(const struct tsr_names *names, const struct tsr_yaml_node *map,
                                const char *text)
{
    /* addresses differ from run to run: no file can be written to collide */
    uint64_t seed = tsr_hash_u64((uintptr_t)map, (uintptr_t)names->slots);
    uint64_t hash = tsr_hash_u64(tsr_hash_bytes(seed, text, strlen(text)), 0);
    size_t i = (size_t)hash & (names->n_slots - 1);
    while (names->slots[i].text &&
           (names->slots[i].map != map || strcmp(names->slots[i].text, text) != 0))
        i = (i + 1) & (names->n_slots - 1);
    return &names->slots[i];
}

static bool grow(struct tsr_names *names)
{
    struct tsr_names grown = {.n_slots = names->n_slots ? 2 * names->n_slots : 64, .n = names->n};
    grown.slots = calloc(grown.n_slots, sizeof *grown.slots);
    if (!grown.slots)
        return false;
    for (size_t i = 0; i < names->n_slots; i++)
        if (names->slots[i].text)
            *slot_of(&grown, names->slots[i].map, names->slots[i].text) = names->slots[i];
    free(names->slots);
    *names = grown;
    return true;
}

const struct tsr_name *tsr__name_find(const struct tsr_names *names,
                                      const struct tsr_yaml_node *map, const char *text)
{
    const struct tsr_name *slot = names->n_slots ? slot_of(names, map, text) : NULL;
    return slot && slot->text ? slot : NULL;
}

struct tsr_name *tsr__name_put(struct tsr_names *names, const struct tsr_yaml_node *map,
                               const char *text, bool *is_new)
{
    if (2 * names->n >= names->n_slots && !grow(names))
        return NULL;
    struct tsr_name *slot = slot_of(names, map, text);
    *is_new = !slot->text;
    names->n += *is_new;
    slot->map = map;
    slot->text = text;
    return slot;
}

void tsr__names_fini(struct tsr_names *names)
{
    free(names->slots);
    *names = (struct tsr_names){0};
}
