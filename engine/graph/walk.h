/* walk.h: a walk over everything that the next step depends on, between two steps: a digest of it,
 * and the places where ids of live buffers and events are kept. Ids do not enter the digest but by
 * the order in which the walk meets them, so states that differ in their ids only have equal
 * digests. Here are the walk itself and its steps; each folder walks its own state with them, and
 * replay/digest.c puts the parts together. Private to engine/.
 *
 * Part of the state is what makes the engine emit other instructions, other addresses, or leave
 * another state behind. Names, shapes and options that are fixed once wrapping is over are not.
 */
#ifndef TSR_ENGINE_WALK_H
#define TSR_ENGINE_WALK_H

#include "engine/graph/engine.h"

/* Where an event is kept, and its number in the walk. */
struct tsr_event_place {
    uint32_t *event;
    uint32_t number;
};

/* Invariant: number i belongs to the i-th live buffer (event) that the walk has met, so
 * ids[i] == *buffers[i] as long as the engine has not moved on; events may be kept in several
 * places, which then have one number. */
struct tsr_state_walk {
    uint64_t digest; /* 0: the state cannot be told (replay.h says when) */
    /* by number */
    size_t n_buffers, cap_buffers, n_events, cap_events;
    uint32_t **buffers; /* where the id of the live buffer is kept */
    uint32_t *ids;      /* what it was then; n_buffers */
    size_t cap_ids;
    uint32_t *events; /* ids */
    size_t n_places, cap_places;
    struct tsr_event_place *places;
    /* of the walk itself */
    struct tsr_engine *engine;
    bool is_unknown, no_memory;
    uint32_t n_storages, n_pinned;
    uint64_t allocated; /* blocks that it has met */
};

/* The arrays of *walk are used again if it comes from an earlier walk; begin with {0}. */
void tsr__walk_begin(struct tsr_state_walk *walk, struct tsr_engine *e);
void tsr__walk_fini(struct tsr_state_walk *walk);

void tsr__walk_u64(struct tsr_state_walk *w, uint64_t value);
void tsr__walk_event(struct tsr_state_walk *w, uint32_t *event); /* 0: none */
void tsr__walk_storage(struct tsr_state_walk *w, struct tsr_storage *s);
void tsr__walk_tensor(struct tsr_state_walk *w, struct tsr_tensor *t);
/* There is something whose effect the engine cannot know. */
void tsr__walk_unknown(struct tsr_state_walk *w, bool is_unknown);

/* host_memory.c: blocks of the pinned cache; one that a storage has. */
void tsr__walk_pinned(struct tsr_state_walk *w);
void tsr__walk_pinned_block(struct tsr_state_walk *w, const struct tsr_pinned *block);

#endif
