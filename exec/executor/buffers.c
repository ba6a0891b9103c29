/* buffers.c: buffers one after the other, and a map from ids to their places. */
#include "exec/executor/buffers.h"

#include <stdlib.h>

void tsr_buffers_init(struct tsr_buffers *buffers)
{
    *buffers = (struct tsr_buffers){0};
}

void tsr_buffers_fini(struct tsr_buffers *buffers)
{
    for (size_t i = 0; i < buffers->n; i++)
        if (buffers->items[i].owned)
            free(buffers->items[i].data);
    free(buffers->items);
    tsr_map_fini(&buffers->places);
    tsr_buffers_init(buffers);
}

tsr_status tsr_buffers_add(struct tsr_buffers *buffers, const struct tsr_buffer *b)
{
    if (tsr_buffers_find(buffers, b->id))
        return tsr_fail(TSR_EDEFECT, "buffer %u is allocated twice", b->id);
    if (!tsr_grow(&buffers->items, buffers->n, &buffers->cap, sizeof *buffers->items) ||
        !tsr_map_put(&buffers->places, b->id, (uint32_t)buffers->n))
        return tsr_no_memory("the table of buffers");
    buffers->items[buffers->n++] = *b;
    return TSR_OK;
}

struct tsr_buffer *tsr_buffers_find(const struct tsr_buffers *buffers, uint32_t id)
{
    uint32_t place = tsr_map_get(&buffers->places, id);
    return place == TSR_MAP_NONE ? NULL : &buffers->items[place];
}

/* The last one takes its place. */
void tsr_buffers_remove(struct tsr_buffers *buffers, uint32_t id)
{
    struct tsr_buffer *b = tsr_buffers_find(buffers, id);
    if (!b)
        return;
    tsr_map_remove(&buffers->places, id);
    const struct tsr_buffer *last = &buffers->items[--buffers->n];
    if (b == last)
        return;
    *b = *last;
    /* Its key is there already: no slot is added, so this cannot fail. */
    TSR_CHECK(tsr_map_put(&buffers->places, b->id, (uint32_t)(b - buffers->items)));
}
