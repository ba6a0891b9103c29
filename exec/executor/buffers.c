/* buffers.c: open addressing with linear probing; a removal moves later entries back. */
#include "exec/executor/buffers.h"

#include <stdlib.h>

void tsr_buffers_init(struct tsr_buffers *buffers)
{
    *buffers = (struct tsr_buffers){0};
}

void tsr_buffers_fini(struct tsr_buffers *buffers)
{
    for (size_t i = 0; i < buffers->n_slots; i++)
        if (buffers->slots[i].data && buffers->slots[i].owned)
            free(buffers->slots[i].data);
    free(buffers->slots);
    tsr_buffers_init(buffers);
}

static size_t home(const struct tsr_buffers *buffers, uint32_t id)
{
    return (id * UINT32_C(2654435769)) & (buffers->n_slots - 1);
}

static struct tsr_buffer *probe(const struct tsr_buffers *buffers, uint32_t id)
{
    size_t i = home(buffers, id);
    while (buffers->slots[i].data && buffers->slots[i].id != id)
        i = (i + 1) & (buffers->n_slots - 1);
    return &buffers->slots[i];
}

static bool grow(struct tsr_buffers *buffers)
{
    struct tsr_buffers bigger = {.n_slots = buffers->n_slots ? 2 * buffers->n_slots : 1024,
                                 .n = buffers->n};
    bigger.slots = calloc(bigger.n_slots, sizeof *bigger.slots);
    if (!bigger.slots)
        return false;
    for (size_t i = 0; i < buffers->n_slots; i++)
        if (buffers->slots[i].data)
            *probe(&bigger, buffers->slots[i].id) = buffers->slots[i];
    free(buffers->slots);
    *buffers = bigger;
    return true;
}

tsr_status tsr_buffers_add(struct tsr_buffers *buffers, const struct tsr_buffer *b)
{
    if (2 * (buffers->n + 1) > buffers->n_slots && !grow(buffers))
        return tsr_no_memory("the table of buffers");
    struct tsr_buffer *slot = probe(buffers, b->id);
    if (slot->data)
        return tsr_fail(TSR_EDEFECT, "buffer %u is allocated twice", b->id);
    *slot = *b;
    buffers->n++;
    return TSR_OK;
}

struct tsr_buffer *tsr_buffers_find(const struct tsr_buffers *buffers, uint32_t id)
{
    if (buffers->n_slots == 0)
        return NULL;
    struct tsr_buffer *slot = probe(buffers, id);
    return slot->data ? slot : NULL;
}

void tsr_buffers_remove(struct tsr_buffers *buffers, uint32_t id)
{
    size_t mask = buffers->n_slots - 1;
    struct tsr_buffer *slot = tsr_buffers_find(buffers, id);
    if (!slot)
        return;
    size_t hole = (size_t)(slot - buffers->slots);
    for (size_t i = (hole + 1) & mask; buffers->slots[i].data; i = (i + 1) & mask) {
        size_t from_home = (i - home(buffers, buffers->slots[i].id)) & mask;
        if (from_home < ((i - hole) & mask))
            continue; /* it would lie before its home */
        buffers->slots[hole] = buffers->slots[i];
        hole = i;
    }
    buffers->slots[hole] = (struct tsr_buffer){0};
    buffers->n--;
}
