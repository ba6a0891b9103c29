/* world.c: what is the same in all worlds, on top of their operations. */
#include "exec/world/world.h"

#include <stdio.h>
#include <stdlib.h>

/* What a rank says of itself. */
struct word {
    uint32_t status;
    char text[508];
};

static bool is_mistake(tsr_status status)
{
    return status != TSR_ENOMEM && status != TSR_EIO && status != TSR_EBACKEND &&
           status != TSR_EOOM && status != TSR_EDEFECT && status != TSR_EPEER;
}

static bool any_failed(const struct word *all, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        if (all[r].status != TSR_OK)
            return true;
    return false;
}

static tsr_status first_failure(const struct word *all)
{
    uint32_t r = 0;
    while (all[r].status == TSR_OK)
        r++;
    tsr_status status = all[r].status <= TSR_EPEER ? (tsr_status)all[r].status : TSR_EPEER;
    if (is_mistake(status))
        return tsr_fail(status, "%s", all[r].text);
    return tsr_fail(status, "rank %u: %s", r, all[r].text);
}

/* All know of a failure before one of them leaves and aborts the world. */
static void settle(struct tsr_world *world)
{
    (void)!tsr_world_barrier(world);
}

tsr_status tsr_world_agree(struct tsr_world *world, tsr_status status)
{
    if (!world)
        return status;
    struct word mine = {.status = (uint32_t)status}, *all = malloc(world->size * sizeof *all);
    if (!all)
        return tsr_no_memory(NULL);
    if (status != TSR_OK)
        (void)snprintf(mine.text, sizeof mine.text, "%s", tsr_error_text());
    status = world->ops->exchange(world, &mine, all, sizeof mine);
    if (status == TSR_OK && any_failed(all, world->size)) {
        settle(world);
        status = first_failure(all);
    }
    free(all);
    return status;
}

tsr_status tsr_world_same(struct tsr_world *world, const char *what, uint64_t hash)
{
    uint64_t *all = malloc(world->size * sizeof *all);
    if (!all)
        return tsr_no_memory(NULL);
    tsr_status status = world->ops->exchange(world, &hash, all, sizeof hash);
    for (uint32_t r = 1; status == TSR_OK && r < world->size; r++) {
        if (all[r] == all[0])
            continue;
        settle(world);
        status = tsr_fail(TSR_ECONFIG, "rank %u runs another configuration than rank 0 (what: %s)",
                          r, what);
    }
    free(all);
    return status;
}
