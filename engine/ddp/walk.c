/* walk.c: what the reducer keeps from step to step, gone through for a digest. */
#include "engine/graph/walk.h"
#include "engine/ddp/reducer.h"

static void walk_slots(struct tsr_state_walk *w, const struct tsr_reducer *r)
{
    for (size_t i = 0; i < r->n_params; i++) {
        const struct slot *s = &r->slots[r->params[i]->id];
        tsr__walk_u64(w, (uint64_t)s->bucket << 32 | s->index);
        tsr__walk_u64(w, (uint64_t)s->member << 3 | (uint64_t)s->ready << 2 |
                             (uint64_t)s->used << 1 | s->delayed);
        tsr__walk_u64(w, s->delayed_offset);
    }
}

static void walk_bucket(struct tsr_state_walk *w, struct bucket *b)
{
    tsr__walk_u64(w, b->n);
    tsr__walk_u64(w, b->waiting);
    for (size_t i = 0; i < b->n; i++) {
        tsr__walk_u64(w, b->params[i]->id);
        tsr__walk_u64(w, b->offsets[i]);
    }
    tsr__walk_u64(w, b->bytes);
    tsr__walk_storage(w, b->buffer);
    if (b->stale)
        tsr__walk_storage(w, b->stale);
    if (b->reduced)
        tsr__walk_storage(w, b->reduced);
    tsr__walk_event(w, &b->event);
    tsr__walk_u64(w, b->launched);
}

/* Nothing looks further back than one backward. */
static uint64_t first_backwards(const struct tsr_reducer *r)
{
    return tsr_min_u64(r->n_synced, 2);
}

void tsr__walk_reducer(struct tsr_state_walk *w, struct tsr_wrapper *wrapper)
{
    struct tsr_reducer *r = (struct tsr_reducer *)wrapper;
    tsr__walk_unknown(w, r->user_hook != NULL);
    tsr__walk_u64(w, (uint64_t)r->sync << 5 | (uint64_t)r->rebuilt << 4 |
                         (uint64_t)r->has_order << 3 | (uint64_t)r->reducing << 2 |
                         (uint64_t)r->has_launched << 1 | r->has_hook);
    tsr__walk_u64(w, r->hook);
    tsr__walk_u64(w, first_backwards(r));
    tsr__walk_u64(w, r->next);
    tsr__walk_u64(w, r->n_ready);
    for (size_t i = 0; i < r->n_ready; i++)
        tsr__walk_u64(w, r->ready_order[i]->id);
    tsr__walk_u64(w, r->n_buckets);
    for (size_t i = 0; i < r->n_buckets; i++)
        walk_bucket(w, &r->buckets[i]);
    walk_slots(w, r);
    tsr__walk_u64(w, r->n_delayed);
    tsr__walk_storage(w, r->delayed_buffer);
    if (r->used_map)
        tsr__walk_storage(w, r->used_map);
    tsr__walk_event(w, &r->delayed_event);
    tsr__walk_u64(w, (uint64_t)r->has_run_backward << 2 | (uint64_t)r->holds_copies << 1 |
                         r->skips_buffers);
    for (size_t i = 0; r->copied && i < w->engine->tree.n_modules; i++)
        tsr__walk_event(w, &r->copied[i]);
}
