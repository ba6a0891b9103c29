/* walk.c: the steps of a walk over the engine's state: numbers, events, storages, tensors. */
#include "engine/graph/walk.h"

#include <stdlib.h>

void tsr__walk_begin(struct tsr_state_walk *w, struct tsr_engine *e)
{
    w->n_buffers = w->n_events = w->n_places = 0;
    w->engine = e;
    w->is_unknown = w->no_memory = false;
    w->n_storages = w->n_pinned = 0;
    w->allocated = 0;
    w->digest = TSR_HASH_INIT;
    e->emit.n_walks++;
}

void tsr__walk_fini(struct tsr_state_walk *w)
{
    free(w->buffers);
    free(w->ids);
    free(w->events);
    free(w->places);
    *w = (struct tsr_state_walk){0};
}

/* ---- values ---------------------------------------------------------------------------------- */

void tsr__walk_u64(struct tsr_state_walk *w, uint64_t value)
{
    w->digest = tsr_hash_u64(w->digest, value);
}

void tsr__walk_unknown(struct tsr_state_walk *w, bool is_unknown)
{
    w->is_unknown |= is_unknown;
}

/* Events that live from step to step are few: one or two for each group. */
static uint32_t number_of(struct tsr_state_walk *w, uint32_t event)
{
    for (size_t i = w->n_events; i-- > 0;)
        if (w->events[i] == event)
            return (uint32_t)i;
    if (!TSR_PUSH(w->events, w->n_events, w->cap_events, event)) {
        w->no_memory = true;
        return 0;
    }
    return (uint32_t)(w->n_events - 1);
}

void tsr__walk_event(struct tsr_state_walk *w, uint32_t *event)
{
    if (*event == 0) {
        tsr__walk_u64(w, 0);
        return;
    }
    const struct tsr_event_place place = {event, number_of(w, *event)};
    tsr__walk_u64(w, 1 + (uint64_t)place.number);
    if (!TSR_PUSH(w->places, w->n_places, w->cap_places, place))
        w->no_memory = true;
}

/* ---- storages and tensors -------------------------------------------------------------------- */

static void walk_backing(struct tsr_state_walk *w, struct tsr_storage *s)
{
    tsr__walk_u64(w, s->live);
    if (!s->live)
        return;
    if (!tsr_grow(&w->ids, w->n_buffers, &w->cap_ids, sizeof *w->ids) ||
        !tsr_grow(&w->buffers, w->n_buffers, &w->cap_buffers, sizeof *w->buffers)) {
        w->no_memory = true;
        return;
    }
    w->ids[w->n_buffers] = s->buffer;
    w->buffers[w->n_buffers++] = &s->buffer;
    if (s->space == TSR_SPACE_DEVICE && s->block.handle) {
        tsr__walk_u64(w, s->block.address);
        tsr__walk_u64(w, s->block.bytes);
        tsr__walk_u64(w, s->block.segment);
        w->allocated += s->block.bytes;
    }
    tsr__walk_u64(w, s->counted);
}

void tsr__walk_storage(struct tsr_state_walk *w, struct tsr_storage *s)
{
    if (!s) {
        tsr__walk_u64(w, 0);
        return;
    }
    if (s->seen == w->engine->emit.n_walks) {
        tsr__walk_u64(w, s->number);
        return;
    }
    s->seen = w->engine->emit.n_walks;
    s->number = ++w->n_storages;
    tsr__walk_u64(w, s->number);
    tsr__walk_u64(w, (uint64_t)s->refs << 32 | (uint64_t)s->category << 24 |
                         (uint64_t)s->space << 16 | s->stream);
    tsr__walk_u64(w, s->bytes);
    walk_backing(w, s);
    if (s->pinned)
        tsr__walk_pinned_block(w, s->pinned);
}

/* A graph that outlives its step could do anything in the next one. */
void tsr__walk_tensor(struct tsr_state_walk *w, struct tsr_tensor *t)
{
    tsr__walk_u64(w, t != NULL);
    if (!t)
        return;
    tsr__walk_unknown(w, t->grad_fn || (t->accumulator && t->accumulator->hooks));
    tsr__walk_u64(w, (uint64_t)t->refs << 32 | (uint64_t)t->dtype << 24 |
                         (uint64_t)t->n_dims << 16 | (uint64_t)t->layout << 8 |
                         (uint64_t)t->requires_grad << 2 | (uint64_t)t->is_view << 1 | t->is_one);
    for (int i = 0; i < t->n_dims; i++)
        tsr__walk_u64(w, t->dims[i]);
    tsr__walk_u64(w, t->offset);
    tsr__walk_u64(w, (uint64_t)t->width << 32 | t->pitch);
    tsr__walk_storage(w, t->storage);
    tsr__walk_tensor(w, t->grad);
}
