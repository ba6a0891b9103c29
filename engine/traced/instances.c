/* instances.c: which storages of the segments that were played still live. */
#include "engine/traced/traced.h"

bool tsr__instances_init(struct tsr__instances *t, struct tsr_arena *arena, size_t n_classes)
{
    t->arena = arena;
    t->n_classes = n_classes;
    t->latest = tsr_arena_alloc(arena, (n_classes + 1) * sizeof(struct tsr__instance *));
    t->unused = tsr_arena_alloc(arena, (n_classes + 1) * sizeof(struct tsr__instance *));
    return t->latest && t->unused;
}

static struct tsr__instance *new_instance(struct tsr__instances *t,
                                          const struct tsr_traced_segment *segment)
{
    struct tsr__instance *i = t->unused[segment->class_of];
    if (i) {
        t->unused[segment->class_of] = i->older;
        return i;
    }
    i = tsr_arena_alloc(t->arena, sizeof *i);
    if (!i)
        return NULL;
    i->slots = tsr_arena_alloc(t->arena, (segment->n_storages + 1) * sizeof *i->slots);
    i->n_slots = segment->n_storages;
    i->class_of = segment->class_of;
    return i->slots ? i : NULL;
}

struct tsr__instance *tsr__instance_begin(struct tsr__instances *t,
                                          const struct tsr_traced_segment *segment, uint32_t step,
                                          bool is_batch)
{
    struct tsr__instance *i = new_instance(t, segment);
    if (!i)
        return NULL;
    i->older = t->latest[i->class_of];
    i->newer = NULL;
    if (i->older)
        i->older->newer = i;
    t->latest[i->class_of] = i;
    i->step = step;
    i->n_used = 0;
    i->running = true;
    i->is_batch = is_batch;
    return i;
}

static void unlink_unused(struct tsr__instances *t, struct tsr__instance *i)
{
    if (i->running || i->n_used > 0)
        return;
    if (i->newer)
        i->newer->older = i->older;
    else
        t->latest[i->class_of] = i->older;
    if (i->older)
        i->older->newer = i->newer;
    i->older = t->unused[i->class_of];
    t->unused[i->class_of] = i;
}

void tsr__instance_end(struct tsr__instances *t, struct tsr__instance *i)
{
    i->running = false;
    unlink_unused(t, i);
}

struct tsr__slot *tsr__instance_find(struct tsr__instances *t, struct tsr__instance *running,
                                     const struct tsr_traced_event *event,
                                     struct tsr__instance **owner)
{
    if (event->of == TSR_NO_ID) {
        *owner = running;
        struct tsr__slot *own = &running->slots[event->n];
        return own->state == TSR__SLOT_DEAD ? NULL : own;
    }
    uint32_t back = event->back;
    for (struct tsr__instance *i = t->latest[event->of]; i; i = i->older) {
        if (i == running || i->slots[event->n].state == TSR__SLOT_DEAD)
            continue;
        if (back-- == 0) {
            *owner = i;
            return &i->slots[event->n];
        }
    }
    return NULL;
}

void tsr__slot_drop(struct tsr__instances *t, struct tsr__instance *i, struct tsr__slot *slot)
{
    slot->state = TSR__SLOT_DEAD;
    slot->storage = NULL;
    i->n_used--;
    unlink_unused(t, i);
}

/* Of batches what lives, else what is given. */
static void drop_all(struct tsr__instances *t, struct tsr_engine *e, bool batches)
{
    uint8_t state = batches ? TSR__SLOT_LIVE : TSR__SLOT_GIVEN;
    for (size_t c = 0; c < t->n_classes; c++)
        for (struct tsr__instance *i = t->latest[c], *older; i; i = older) {
            older = i->older;
            for (uint32_t n = 0; n < i->n_slots && i->n_used > 0; n++) {
                if (i->slots[n].state != state || (batches && !i->is_batch))
                    continue;
                if (e)
                    tsr__storage_release(e, &i->slots[n].storage);
                tsr__slot_drop(t, i, &i->slots[n]);
            }
        }
}

void tsr__drop_given(struct tsr__instances *t)
{
    drop_all(t, NULL, false);
}

void tsr__drop_batches(struct tsr__instances *t, struct tsr_engine *e)
{
    drop_all(t, e, true);
}
