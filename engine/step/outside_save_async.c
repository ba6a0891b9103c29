/* outside_save_async.c: saving shards while training goes on (OPTIONS.md, `save: sharded_async`).
 *
 *   save           stream `save` waits for the compute stream and copies every shard into pinned
 *                  memory of its own; the host waits for nothing
 *   next step      runs beside the copies; its optimizer, the first to write what is copied, waits
 *                  for them (tsr__save_guard()); at its end the host does, and lends the copies to
 *                  whoever writes them (tsr__save_hand_over())
 *   later          before the next save, or at the end of the run, the host waits until they are
 *                  written, and their memory goes back (tsr_save_end())
 *
 * Shards that lie in host memory are copied there at once, by the host: its optimizer changes them.
 */
#include "engine/step/outside_step.h"

#include <stdlib.h>

static struct tsr_storage *new_copy(struct tsr_engine *e, const struct tsr__item *item,
                                    bool on_device)
{
    return tsr__storage_empty(e, tsr__item_local_bytes(item), tsr__item_category(item),
                              on_device ? TSR_SPACE_PINNED : TSR_SPACE_HOST);
}

/* On the stream that is current. */
static void copy_item(struct tsr_engine *e, struct tsr__save_copy *copy)
{
    const struct tsr__item *item = copy->item;
    bool on_device = item->s->space == TSR_SPACE_DEVICE;
    tsr__item_origin(e, item);
    copy->storage = new_copy(e, item, on_device);
    tsr__transfer(e, item->s, 0, copy->storage, tsr__item_local_bytes(item), item->dtype,
                  "save_shard");
    e->step->save.has_device_copies |= on_device;
}

/* Takes items->v. False: the host has no memory. */
static bool keep_items(struct tsr_engine *e, struct tsr__items *items)
{
    struct tsr__save *save = &e->step->save;
    save->items = items->v;
    save->copies = calloc(items->n + 1, sizeof *save->copies);
    items->v = NULL;
    if (!save->copies) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return false;
    }
    for (size_t i = 0; i < items->n; i++)
        if (save->items[i].s && tsr__item_local_bytes(&save->items[i]) > 0)
            save->copies[save->n++].item = &save->items[i];
    return true;
}

void tsr__save_begin(struct tsr_engine *e, struct tsr__items *items)
{
    struct tsr__save *save = &e->step->save;
    uint16_t current = e->stream;
    if (!keep_items(e, items))
        return;
    if (!save->has_stream)
        save->stream = tsr__stream_add(e, "save", TSR_ROLE_COPY_OUT, 0);
    save->has_stream = true;
    tsr__wait_stream(e, save->stream, current);
    e->stream = save->stream;
    for (size_t i = 0; i < save->n && tsr__ok(e); i++)
        copy_item(e, &save->copies[i]);
    e->stream = current;
    e->origin.module = e->origin.group = TSR_NO_ID;
    save->is_copying = true;
    if (save->has_device_copies)
        save->event = tsr__record_event(e, save->stream);
}

void tsr__save_guard(struct tsr_engine *e)
{
    struct tsr__save *save = &e->step->save;
    if (!save->is_copying || !save->event || save->is_guarded)
        return;
    tsr__wait_event(e, e->stream, save->event);
    save->is_guarded = true;
}

/* The copy is not written to until join_checkpoint has run. */
static void hand_over(struct tsr_engine *e, const struct tsr__save_copy *copy)
{
    const struct tsr__item *item = copy->item;
    if (!copy->storage || !tsr__ok(e))
        return;
    tsr__item_origin(e, item);
    tsr__operand_storage(e, copy->storage, TSR_READ, item->dtype);
    tsr__piece_args(e, item->p, item->what, tsr__param_hash(item->p));
    tsr__host_work(e, "lend_checkpoint", item->dtype, 0, 0); /* no pass over it: another thread's */
}

void tsr__save_hand_over(struct tsr_engine *e)
{
    struct tsr__save *save = &e->step->save;
    if (!save->is_copying)
        return;
    if (save->event) {
        tsr__host_wait_event(e, save->event);
        e->emit.stream_busy[save->stream] = false;
    }
    for (size_t i = 0; i < save->n; i++)
        hand_over(e, &save->copies[i]);
    e->origin.module = e->origin.group = TSR_NO_ID;
    save->event = 0;
    save->is_copying = save->is_guarded = save->has_device_copies = false;
}

static void join(struct tsr_engine *e)
{
    const struct tsr__save *save = &e->step->save;
    for (size_t i = 0; i < save->n; i++)
        if (save->copies[i].storage)
            tsr__operand_storage(e, save->copies[i].storage, TSR_READ, save->copies[i].item->dtype);
    tsr__host_work(e, "join_checkpoint", TSR_U8, 0, 0);
    tsr__pinned_settle(e);
}

/* From the last to the first: the next save finds each copy's block again. */
void tsr__save_finish(struct tsr_engine *e)
{
    struct tsr__save *save = &e->step->save;
    if (!save->copies)
        return;
    tsr__save_hand_over(e);
    join(e);
    for (size_t i = save->n; i-- > 0;)
        tsr__storage_release(e, &save->copies[i].storage);
    tsr__save_drop(e);
}

void tsr__save_drop(struct tsr_engine *e)
{
    struct tsr__save *save = &e->step->save;
    free(save->items);
    free(save->copies);
    *save = (struct tsr__save){.stream = save->stream, .has_stream = save->has_stream};
}

bool tsr_save_is_copying(const struct tsr_engine *e)
{
    return e->step->save.is_copying;
}

tsr_status tsr_save_end(struct tsr_engine *e)
{
    if (!e->step->save.copies)
        return e->status;
    TSR_TRY(tsr__section_begin(e, TSR_PHASE_SAVE));
    tsr__save_finish(e);
    return e->status;
}

/* The step behind a save is one of its kind: it is emitted. */
void tsr__walk_save(struct tsr_state_walk *w)
{
    const struct tsr__save *save = &w->engine->step->save;
    tsr__walk_unknown(w, save->is_copying);
    tsr__walk_u64(w, (uint64_t)save->n << 1 | save->has_stream);
    for (size_t i = 0; i < save->n; i++)
        tsr__walk_storage(w, save->copies[i].storage);
}
