/* outside_save.c: saving a checkpoint, in one go or while training goes on: each rank its shards
 * through pinned memory, or full tensors that every device gathers and rank 0 (or every device)
 * keeps.
 */
#include <stdlib.h>

#include "engine/graph/wrapper.h"
#include "engine/step/step_impl.h"

/* ---- saving while training goes on ----------------------------------------------------------- */

/* Saving shards while training goes on (OPTIONS.md, `save: sharded_async`).
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

/* Takes items->v. Nothing is being saved. */
static void tsr__save_begin(struct tsr_engine *e, struct tsr__items *items)
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
static void tsr__save_finish(struct tsr_engine *e)
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

/* ---- saving shards --------------------------------------------------------------------------- */

/* Smallest first; of equal ones the first stays first. */
static int by_bytes(const void *a, const void *b)
{
    const struct tsr__item *x = a, *y = b;
    uint64_t m = tsr__item_local_bytes(x), n = tsr__item_local_bytes(y);
    if (m != n)
        return m < n ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

/* Copies ahead of the writing, into pinned memory, until so many bytes are under way. */
enum { COPY_AHEAD_BYTES = 10000000 };

struct stager {
    struct tsr_engine *e;
    const struct tsr__items *items;
    struct tsr_storage **staged; /* [items.n] */
    size_t next, oldest;
    uint64_t in_flight;
};

static void stage_ahead(struct stager *s)
{
    struct tsr_engine *e = s->e;
    for (; s->next < s->items->n && s->in_flight < COPY_AHEAD_BYTES; s->next++) {
        const struct tsr__item *item = &s->items->v[s->next];
        uint64_t bytes = tsr__item_local_bytes(item);
        bool device = item->s && item->s->space == TSR_SPACE_DEVICE;
        tsr__item_origin(e, item);
        if (bytes && (device || item->s->bytes != bytes)) { /* .to("cpu"), or a copy unpadded */
            s->staged[s->next] = tsr__storage_empty(e, bytes, tsr__item_category(item),
                                                    device ? TSR_SPACE_PINNED : TSR_SPACE_HOST);
            tsr__transfer(e, item->s, 0, s->staged[s->next], bytes, item->dtype, "save_shard");
        }
        s->in_flight += bytes;
    }
}

static void write_staged(struct stager *s, size_t i)
{
    const struct tsr__item *item = &s->items->v[i];
    uint64_t bytes = tsr__item_local_bytes(item);
    tsr__item_origin(s->e, item);
    if (bytes && tsr__ok(s->e)) {
        tsr__operand(s->e, s->staged[i] ? s->staged[i] : item->s, 0, bytes, TSR_READ, item->dtype);
        tsr__piece_args(s->e, item->p, item->what, tsr__param_hash(item->p));
        tsr__host_work(s->e, "write_checkpoint", item->dtype, bytes, 0);
    }
    tsr__storage_release(s->e, &s->staged[i]);
}

static void save_shards(struct tsr_engine *e, struct tsr__items *items)
{
    struct stager s = {.e = e, .items = items};
    s.staged = calloc(items->n + 1, sizeof(struct tsr_storage *));
    if (!s.staged) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return;
    }
    if (items->n)
        qsort(items->v, items->n, sizeof *items->v, by_bytes);
    stage_ahead(&s);
    while (s.next < items->n) {
        size_t first = s.oldest;
        if (s.in_flight >= COPY_AHEAD_BYTES)
            tsr__host_waits(e);
        for (; s.oldest < s.next && s.in_flight >= COPY_AHEAD_BYTES; s.oldest++)
            s.in_flight -= tsr__item_local_bytes(&items->v[s.oldest]);
        stage_ahead(&s);
        for (size_t i = first; i < s.oldest; i++)
            write_staged(&s, i);
    }
    if (s.oldest < items->n)
        tsr__host_waits(e);
    for (size_t i = s.oldest; i < items->n; i++)
        write_staged(&s, i);
    free(s.staged);
}

/* ---- saving a full state dict ---------------------------------------------------------------- */

/* This rank's part on the device, as long as the longest rank's: what an all-gather takes. */
static struct tsr_storage *gather_input(struct tsr_engine *e, const struct tsr__item *item)
{
    struct tsr_param *p = item->p;
    struct tsr_storage *in = item->s;
    uint64_t bytes = tsr__item_local_bytes(item);
    uint64_t padded = p->fsdp->shard_numel * tsr_dtype_bytes(item->dtype);
    if (in)
        tsr__storage_retain(in);
    if (in && in->space != TSR_SPACE_DEVICE) {
        struct tsr_storage *device = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
        tsr__transfer(e, in, 0, device, bytes, item->dtype, "h2d_shard");
        tsr__storage_release(e, &in);
        in = device;
    }
    if (in && bytes == padded)
        return in;
    struct tsr_storage *pad = tsr__storage_new(e, padded, TSR_CAT_ALL_GATHER_INPUT);
    tsr__fill(e, pad);
    tsr__transfer(e, in, 0, pad, bytes, item->dtype, "pad_shard");
    tsr__storage_release(e, &in);
    return pad;
}

static void emit_gather(struct tsr_engine *e, const struct tsr_group *g, struct tsr_storage *in,
                        struct tsr_storage *out, tsr_dtype dtype)
{
    if (!in || !out || !tsr__ok(e))
        return;
    tsr__operand(e, in, 0, out->bytes / g->shard_size, TSR_READ, dtype);
    tsr__operand_storage(e, out, TSR_WRITE, dtype);
    struct tsr_instr instr = {.kind = TSR_ALL_GATHER,
                              .dtype = (uint8_t)dtype,
                              .stream = e->stream,
                              .comm = g->shard_comm,
                              .bytes = out->bytes};
    tsr__emit(e, &instr);
}

/* The full tensor, in the dtype that it is kept in; a new reference. */
static struct tsr_storage *gather_full(struct tsr_engine *e, const struct tsr__item *item)
{
    struct tsr_param *p = item->p;
    if (!tsr__is_cut(p)) {
        tsr__storage_retain(item->s);
        return item->s;
    }
    const struct tsr_group *g = p->fsdp->group;
    uint64_t padded = p->fsdp->shard_numel * tsr_dtype_bytes(item->dtype);
    struct tsr_storage *in = gather_input(e, item);
    struct tsr_storage *out = tsr__storage_new(e, padded * g->shard_size, TSR_CAT_ALL_GATHER);
    emit_gather(e, g, in, out, item->dtype);
    tsr__storage_release(e, &in);
    if (p->fsdp->shard_dim == 0 || !out)
        return out;
    struct tsr_storage *cat = tsr__storage_new(e, out->bytes, TSR_CAT_ALL_GATHER);
    tsr__transfer(e, out, 0, cat, out->bytes, item->dtype, "cat_shards");
    tsr__storage_release(e, &out);
    return cat;
}

/* A tensor of the full state dict as rank 0 keeps it: on the host, or where it was gathered. */
static struct tsr_storage *keep_tensor(struct tsr_engine *e, const struct tsr__item *item,
                                       bool device)
{
    tsr__item_origin(e, item);
    struct tsr_storage *full = gather_full(e, item), *host = NULL;
    if (device || !full || !tsr__ok(e))
        return full;
    if (e->config.rank == 0 && full->space == TSR_SPACE_DEVICE) {
        host = tsr__storage_empty(e, tsr__item_full_bytes(item), tsr__item_category(item),
                                  TSR_SPACE_HOST);
        tsr__transfer(e, full, 0, host, tsr__item_full_bytes(item), item->dtype, "d2h_full");
    }
    if (e->config.rank == 0 && !host)
        return full; /* it is on the host */
    tsr__storage_release(e, &full);
    return host;
}

/* torch.save(): tensors of a device come over one by one. */
static void write_tensor(struct tsr_engine *e, const struct tsr__item *item, struct tsr_storage *s)
{
    tsr__item_origin(e, item);
    uint64_t bytes = tsr__item_full_bytes(item);
    struct tsr_storage *host = NULL;
    if (bytes == 0 || !s || !tsr__ok(e))
        return;
    if (s->space == TSR_SPACE_DEVICE) {
        host = tsr__storage_empty(e, bytes, tsr__item_category(item), TSR_SPACE_HOST);
        tsr__transfer(e, s, 0, host, bytes, item->dtype, "d2h_full");
    }
    if (tsr__ok(e)) {
        tsr__operand(e, host ? host : s, 0, bytes, TSR_READ, item->dtype);
        tsr__host_work(e, "write_full_checkpoint", item->dtype, bytes, 0);
    }
    tsr__storage_release(e, &host);
}

static void save_full(struct tsr_engine *e, const struct tsr__items *items, bool device)
{
    struct tsr_storage **dict = calloc(items->n + 1, sizeof(struct tsr_storage *));
    if (!dict) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return;
    }
    for (size_t i = 0; i < items->n && tsr__ok(e); i++)
        dict[i] = keep_tensor(e, &items->v[i], device);
    for (size_t i = 0; i < items->n && e->config.rank == 0; i++)
        write_tensor(e, &items->v[i], dict[i]);
    for (size_t i = 0; i < items->n; i++)
        tsr__storage_release(e, &dict[i]);
    free(dict);
}

tsr_status tsr_save_run(struct tsr_engine *e, enum tsr_save how)
{
    if (!tsr_save_is_sharded(how))
        TSR_TRY(tsr__check_full(e));
    TSR_TRY(tsr__section_begin(e, TSR_PHASE_SAVE));
    tsr__save_finish(e); /* one at a time */
    TSR__EACH_WRAPPER (e, w, state_dict)
        TSR_TRY(w->ops->state_dict(e, w));
    struct tsr__items items = tsr__items_collect(e, true);
    if (how == TSR_SAVE_SHARDED)
        save_shards(e, &items);
    else if (how == TSR_SAVE_SHARDED_ASYNC)
        tsr__save_begin(e, &items);
    else
        save_full(e, &items, how == TSR_SAVE_FULL_DEVICE);
    free(items.v);
    return e->status;
}
