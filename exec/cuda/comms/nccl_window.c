/* nccl_window.c: the device's segments as symmetric windows of the communicators that gather, for
 * copies without multiprocessors.
 *
 * A window is registered by all members at once, and its buffers must lie at the same offsets on
 * all of them. Segments come and go with the ranks' allocators, so ranks compare what they have at
 * certain calls of a communicator (the 1st, 2nd, 4th, 8th, ...), which all of them make: where a
 * rank differs, nothing is registered, and NCCL copies as it would have. So it does where it
 * refuses a window (no peer access, older driver): tsr_comms_ops.describe() tells.
 */
#include "exec/cuda/comms/nccl_impl.h"

#include <stdlib.h>

tsr_status tsr__nccl_map(struct tsr_comms *comms, void *memory, uint64_t bytes)
{
    struct tsr_nccl *n = (struct tsr_nccl *)comms;
    const struct tsr_nccl_segment segment = {memory, bytes};
    if (!TSR_PUSH(n->segments, n->n_segments, n->cap_segments, segment))
        return tsr__no_memory_on(n->world->rank);
    return TSR_OK;
}

static void forget_window(struct tsr_nccl_comm *c, const void *memory)
{
    for (size_t i = 0; i < c->n_windows; i++) {
        if (c->windows[i].memory != memory)
            continue;
        if (c->windows[i].window)
            (void)ncclCommWindowDeregister(c->comm, c->windows[i].window);
        c->windows[i] = c->windows[--c->n_windows];
        return;
    }
}

/* Appends what of a segment lies in [from, to). */
static tsr_status keep_part(struct tsr_nccl *n, char *from, char *to)
{
    return from < to ? tsr__nccl_map(&n->base, from, (uint64_t)(to - from)) : TSR_OK;
}

/* Memory may go in other parts than it came: what is left of a segment is a segment of its own. */
tsr_status tsr__nccl_unmap(struct tsr_comms *comms, void *memory, uint64_t bytes)
{
    struct tsr_nccl *n = (struct tsr_nccl *)comms;
    char *begin = memory, *end = begin + bytes;
    for (size_t i = 0; i < n->n_segments;) {
        struct tsr_nccl_segment s = n->segments[i];
        char *first = s.memory, *last = first + s.bytes;
        if (last <= begin || end <= first) {
            i++;
            continue;
        }
        for (size_t j = 0; j < n->n_comms && !tsr__aborted(&n->abort); j++)
            forget_window(n->comms[j], s.memory);
        for (size_t j = i + 1; j < n->n_segments; j++)
            n->segments[j - 1] = n->segments[j];
        n->n_segments--;
        TSR_TRY(keep_part(n, first, begin));
        TSR_TRY(keep_part(n, end, last));
    }
    return TSR_OK;
}

void tsr__nccl_windows_free(struct tsr_nccl *n, struct tsr_nccl_comm *c)
{
    for (size_t i = 0; i < c->n_windows && !tsr__aborted(&n->abort); i++)
        if (c->windows[i].window)
            (void)ncclCommWindowDeregister(c->comm, c->windows[i].window);
    free(c->windows);
}

static bool has_window(const struct tsr_nccl_comm *c, const void *memory)
{
    for (size_t i = 0; i < c->n_windows; i++)
        if (c->windows[i].memory == memory)
            return true;
    return false;
}

/* What a rank has: sizes and distances, and what of it is registered. Addresses are its own. */
static uint64_t hash_segments(const struct tsr_nccl *n, const struct tsr_nccl_comm *c)
{
    uint64_t hash = tsr_hash_u64(TSR_HASH_INIT, n->n_segments);
    for (size_t i = 0; i < n->n_segments; i++) {
        const struct tsr_nccl_segment *s = &n->segments[i];
        hash = tsr_hash_u64(hash, s->bytes);
        hash = tsr_hash_u64(hash, (uintptr_t)s->memory - (uintptr_t)n->segments[0].memory);
        hash = tsr_hash_u64(hash, has_window(c, s->memory));
    }
    return hash;
}

static tsr_status all_have(struct tsr_nccl *n, uint64_t hash, bool *same)
{
    uint64_t *all = malloc(n->world->size * sizeof *all);
    if (!all)
        return tsr__no_memory_on(n->world->rank);
    tsr_status status = n->world->ops->exchange(n->world, &hash, all, sizeof hash);
    *same = true;
    for (uint32_t r = 0; status == TSR_OK && r < n->world->size; r++)
        *same = *same && all[r] == all[0];
    free(all);
    return status;
}

tsr_status tsr__nccl_register(struct tsr_nccl *n, struct tsr_nccl_comm *c)
{
    bool same = false;
    TSR_TRY(all_have(n, hash_segments(n, c), &same));
    n->segments_differ = !same;
    for (size_t i = 0; i < n->n_segments && same; i++) {
        const struct tsr_nccl_segment *s = &n->segments[i];
        struct tsr_nccl_window w = {.memory = s->memory};
        if (has_window(c, s->memory))
            continue;
        ncclResult_t result = ncclCommWindowRegister(c->comm, s->memory, s->bytes, &w.window,
                                                     NCCL_WIN_COLL_SYMMETRIC);
        if (result == ncclRemoteError || result == ncclSystemError)
            return tsr__nccl_check(n, result, c->name, "a window");
        n->windows_refused = n->windows_refused || result != ncclSuccess || !w.window;
        if (!TSR_PUSH(c->windows, c->n_windows, c->cap_windows, w))
            return tsr__no_memory_on(n->world->rank);
    }
    return TSR_OK;
}
