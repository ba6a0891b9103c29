/* sync_state.c: what DDP broadcasts from rank 0: all parameters and buffers when it is constructed,
 * and the buffers again before a forward (broadcast_coalesced() of PyTorch's comm.cpp).
 *
 * Tensors of one dtype travel together, up to 250 MiB of them in a flat buffer of their own; at
 * most two of these exist at a time. The copies into a flat buffer and out of it are not in the
 * program: its broadcast reads and writes the tensors, while the buffer takes its place in memory.
 */
#include <stdlib.h>

#include "engine/ddp/bucket.h"
#include "engine/ddp/reducer.h"

enum { IN_FLIGHT = 2 };
#define CHUNK_BYTES (UINT64_C(250) << 20)

/* The tensors that are broadcast, in PyTorch's order. Owns `items`; storages are borrowed. */
struct states {
    struct tsr_engine *e;
    size_t n, cap;
    struct state {
        struct tsr_storage *storage;
        tsr_dtype dtype;
    } * items;
};

static bool add_state(struct states *all, struct tsr_storage *storage, tsr_dtype dtype)
{
    const struct state s = {storage, dtype};
    if (!storage || TSR_PUSH(all->items, all->n, all->cap, s))
        return true;
    TSR__RAISE(all->e, TSR_ENOMEM, "out of memory");
    return false;
}

static bool add_buffers(void *user, struct tsr_module *m)
{
    struct states *all = user;
    for (size_t i = 0; i < m->n_buffers; i++)
        if (!add_state(all, m->buffers[i].storage, m->buffers[i].dtype))
            return false;
    return true;
}

/* The communicator and stream that a broadcast is issued on. Its flat buffer belongs to the compute
 * stream in any case. */
struct channel {
    uint16_t comm, stream;
};

static void broadcast(struct tsr_engine *e, struct channel channel, const struct states *all,
                      const size_t *which, size_t n)
{
    struct tsr_instr instr = {.kind = TSR_BROADCAST,
                              .dtype = (uint8_t)all->items[which[0]].dtype,
                              .stream = channel.stream,
                              .comm = channel.comm};
    for (size_t i = 0; i < n; i++) {
        const struct state *s = &all->items[which[i]];
        tsr__slot(e, 0);
        tsr__operand_storage(e, s->storage, TSR_READ_WRITE, s->dtype);
        instr.bytes += s->storage->bytes;
    }
    tsr__emit(e, &instr);
}

static uint64_t bytes_of(const struct states *all, const size_t *which, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += all->items[which[i]].storage->bytes;
    return bytes;
}

/* A tensor alone is its own flat buffer. */
static void broadcast_plan(struct tsr_engine *e, struct channel channel, const struct states *all,
                           const struct tsr_bucket_plan *plan)
{
    struct tsr_storage *flat[IN_FLIGHT] = {NULL};
    for (size_t b = 0; b < plan->n_buckets && tsr__ok(e); b++) {
        const size_t *which = plan->items + plan->first[b];
        size_t n = plan->first[b + 1] - plan->first[b];
        struct tsr_storage **mine = &flat[b % IN_FLIGHT];
        tsr__storage_release(e, mine);
        if (n > 1)
            *mine = tsr__storage_new(e, bytes_of(all, which, n), TSR_CAT_TEMP);
        broadcast(e, channel, all, which, n);
    }
    for (size_t b = 0; b < IN_FLIGHT; b++) /* the older one first */
        tsr__storage_release(e, &flat[(plan->n_buckets + b) % IN_FLIGHT]);
}

/* Broadcasts the tensors of the list and frees it. */
static void broadcast_coalesced(struct tsr_engine *e, struct channel channel, struct states *all)
{
    const uint64_t limit = CHUNK_BYTES;
    struct tsr_bucket_plan plan = {.n_buckets = 0};
    struct tsr_bucket_item *items = calloc(all->n + 1, sizeof *items);
    tsr_status status = items ? TSR_OK : tsr_no_memory(NULL);
    for (size_t i = 0; i < all->n && items; i++)
        items[i] = (struct tsr_bucket_item){all->items[i].storage->bytes, all->items[i].dtype};
    if (status == TSR_OK)
        status = tsr_bucket_assign(items, all->n, &limit, 1, &plan);
    if (status == TSR_OK)
        status = tsr_bucket_sort(&plan);
    if (status == TSR_OK)
        broadcast_plan(e, channel, all, &plan);
    tsr_bucket_plan_fini(&plan);
    free(items);
    free(all->items);
    tsr__set_error(e, status);
}

void tsr__reducer_sync_state(struct tsr_engine *e, struct tsr_reducer *r)
{
    struct states all = {.e = e}, delayed = {.e = e};
    for (size_t i = 0; i < r->n_mixed; i++)
        if (!r->slots[r->mixed[i]->id].delayed)
            (void)add_state(&all, r->mixed[i]->master, r->mixed[i]->dtype);
    if (r->options.broadcast_buffers)
        tsr__module_walk(e->tree.root, add_buffers, &all);
    for (size_t i = 0; i < r->n_delayed; i++)
        (void)add_state(&delayed, r->delayed[i]->master, r->delayed[i]->dtype);
    broadcast_coalesced(e, (struct channel){r->comm, e->stream}, &all);
    broadcast_coalesced(e, (struct channel){r->comm, e->stream}, &delayed);
}

void tsr__reducer_sync_buffers(struct tsr_engine *e, struct tsr_reducer *r)
{
    struct states all = {.e = e};
    bool is_due = r->options.broadcast_buffers && !r->skips_buffers;
    r->skips_buffers = !e->grad_enabled || !r->sync;
    if (is_due)
        tsr__module_walk(e->tree.root, add_buffers, &all);
    if (all.n == 0)
        return;
    tsr__reducer_order(e, e->stream, r->stream, tsr__new_event(e));
    broadcast_coalesced(e, (struct channel){r->comm, r->stream}, &all);
    tsr__reducer_order(e, r->stream, e->stream, tsr__new_event(e));
}
