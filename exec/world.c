/* world.c: what is the same in all worlds, on top of their operations. */
#include "world.h"

#include <stdlib.h>

tsr_status tsr_world_same(struct tsr_world *world, const char *what, uint64_t hash)
{
    uint64_t *all = malloc(world->size * sizeof *all);
    if (!all)
        return tsr_fail(TSR_ENOMEM, "no memory left");
    tsr_status status = world->ops->exchange(world, &hash, all, sizeof hash);
    for (uint32_t r = 1; status == TSR_OK && r < world->size; r++)
        if (all[r] != all[0])
            status = tsr_fail(TSR_ECONFIG,
                              "rank %u runs another configuration than rank 0 (what: %s)", r, what);
    free(all);
    return status;
}
