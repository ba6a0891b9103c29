/* nccl_comm.c: how NCCL's communicators are made: that of the world by an id that rank 0 tells the
 * others, the rest by splitting it. Nothing waits without a deadline.
 *
 * The communicator of the world does not block, so that a start that fails can end. The others do:
 * a launch on a communicator that does not block costs a thread each time, and cannot be captured.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exec/base/word.h"
#include "exec/cuda/comms/nccl_impl.h"

static void tsr__nccl_windows_free(struct tsr_nccl *n, struct tsr_nccl_comm *c);

static bool is_lost(ncclResult_t result)
{
    return result == ncclRemoteError || result == ncclSystemError;
}

tsr_status tsr__nccl_check(struct tsr_nccl *n, ncclResult_t result, const char *name,
                           const char *tried)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return TSR_OK;
    if (tsr__aborted(&n->abort))
        return tsr__abort_status(&n->abort);
    const char *more = ncclGetLastError(NULL);
    bool has_more = more && more[0];
    tsr_status status =
        tsr_fail(is_lost(result) ? TSR_EPEER : TSR_EBACKEND,
                 "rank %u: %s of '%s': NCCL says '%s'%s%.200s", n->world->rank, tried, name,
                 ncclGetErrorString(result), has_more ? ": " : "", has_more ? more : "");
    (void)tsr__abort_set(&n->abort, status, tsr_error_text());
    return status;
}

/* Polls until `comm` is done with what it does; TSR_EPEER: not before the deadline. */
static tsr_status settle(struct tsr_nccl *n, ncclComm_t comm, const char *name, const char *tried)
{
    double deadline = tsr__now() + n->config.timeout_s;
    for (;;) {
        ncclResult_t state = ncclSuccess, result = ncclCommGetAsyncError(comm, &state);
        TSR_TRY(tsr__nccl_check(n, result, name, tried));
        if (state != ncclInProgress)
            return tsr__nccl_check(n, state, name, tried);
        if (tsr__aborted(&n->abort))
            return tsr__abort_status(&n->abort);
        if (tsr__now() > deadline) {
            tsr_status status = tsr_fail(TSR_EPEER,
                                         "rank %u: %s of '%s' is not done within %g s: a rank does "
                                         "not come",
                                         n->world->rank, tried, name, n->config.timeout_s);
            (void)tsr__abort_set(&n->abort, status, tsr_error_text());
            return status;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

/* ---- the communicator of the world ----------------------------------------------------------- */

/* What a rank tells the others; the id is rank 0's. */
struct word {
    ncclUniqueId id;
    int32_t version, result;
};

static bool is_like(const struct word *a, const struct word *b)
{
    return a->result == ncclSuccess && a->version == b->version;
}

/* All ranks find the same. They know before one of them leaves and aborts the world. */
static tsr_status compare_words(struct tsr_nccl *n, const struct word *all)
{
    for (uint32_t r = 0; r < n->world->size; r++) {
        if (is_like(&all[r], &all[0]))
            continue;
        (void)!tsr_world_barrier(n->world);
        if (all[r].result != ncclSuccess)
            return tsr_fail(TSR_EBACKEND, "rank %u: NCCL does not start: '%s'", r,
                            ncclGetErrorString((ncclResult_t)all[r].result));
        return tsr_fail(TSR_ECONFIG,
                        "rank %u has NCCL %d.%d.%d, rank 0 has %d.%d.%d: all ranks need the same",
                        r, all[r].version / 10000, all[r].version / 100 % 100, all[r].version % 100,
                        all[0].version / 10000, all[0].version / 100 % 100, all[0].version % 100);
    }
    return TSR_OK;
}

static tsr_status tell_id(struct tsr_nccl *n, ncclUniqueId *id)
{
    struct word mine = {.version = 0}, *all = calloc(n->world->size, sizeof *all);
    if (!all)
        return tsr__no_memory_on(n->world->rank);
    mine.result = ncclGetVersion(&mine.version);
    if (mine.result == ncclSuccess && n->world->rank == 0)
        mine.result = ncclGetUniqueId(&mine.id);
    tsr_status status;
    TSR_GOTO(end, n->world->ops->exchange(n->world, &mine, all, sizeof mine));
    TSR_GOTO(end, compare_words(n, all));
    *id = all[0].id;
end:
    free(all);
    return status;
}

/* By the host thread, of a communicator that is not ready. */
static tsr_status drop_root(struct tsr_nccl *n, tsr_status status)
{
    char text[TSR_ABORT_TEXT];
    (void)snprintf(text, sizeof text, "%s", tsr_error_text());
    if (n->root)
        (void)ncclCommAbort(n->root);
    n->root = NULL;
    return tsr_fail(status, "%s", text);
}

static tsr_status make_root(struct tsr_nccl *n)
{
    static const char tried[] = "the start", name[] = "world";
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "tessera world";
    TSR_TRY(tell_id(n, &id));
    int size = (int)n->world->size, rank = (int)n->world->rank;
    tsr_status status;
    TSR_GOTO(failed, tsr__nccl_check(n, ncclCommInitRankConfig(&n->root, size, id, rank, &config),
                                     name, tried));
    TSR_GOTO(failed, settle(n, n->root, name, tried));
    return TSR_OK;
failed:
    return drop_root(n, status);
}

/* ---- the communicators of the tables --------------------------------------------------------- */

static ncclConfig_t config_of(const struct tsr_nccl *n, const struct tsr_nccl_comm *c)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.splitShare = 0;
    config.commName = c->name;
    if (c->gathers && n->config.zero_cta)
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    if (!c->gathers && n->config.reduce_ctas > 0)
        config.maxCTAs = n->config.reduce_ctas;
    return config;
}

/* The ranks must make the same communicators in the same order. */
static tsr_status agree(struct tsr_nccl *n, const struct tsr_comm *comm,
                        const struct tsr_nccl_comm *c)
{
    uint64_t hash = tsr_hash_bytes(TSR_HASH_INIT, c->name, strlen(c->name));
    hash = tsr_hash_u64(hash, c->id);
    hash = tsr_hash_u64(hash, (uint64_t)comm->size << 32 | comm->stride);
    return tsr_world_same(n->world, "the next communicator", tsr_hash_u64(hash, c->gathers));
}

static tsr_status split(struct tsr_nccl *n, const struct tsr_comm *comm, struct tsr_nccl_comm *c)
{
    static const char tried[] = "the making";
    ncclConfig_t config = config_of(n, c);
    int me = (int)tsr_comm_index(comm, n->world->rank);
    int color = (int)tsr_comm_member(comm, n->world->rank, 0);
    TSR_TRY(agree(n, comm, c));
    if (!n->root)
        TSR_TRY(make_root(n));
    tsr_status status;
    TSR_GOTO(failed, tsr__nccl_check(n, ncclCommSplit(n->root, color, me, &c->comm, &config),
                                     c->name, tried));
    TSR_GOTO(failed, settle(n, n->root, c->name, tried));
    if (c->comm)
        return TSR_OK;
    status =
        tsr_fail(TSR_EBACKEND, "rank %u: NCCL made no communicator '%s'", n->world->rank, c->name);
failed:
    return drop_root(n, status);
}

static tsr_status append(struct tsr_nccl *n, struct tsr_nccl_comm *c)
{
    (void)pthread_mutex_lock(&n->life);
    bool pushed = TSR_PUSH(n->comms, n->n_comms, n->cap_comms, c);
    (void)pthread_mutex_unlock(&n->life);
    return pushed ? TSR_OK
                  : tsr_fail(TSR_ENOMEM, "rank %u: out of memory: communicator '%s'",
                             n->world->rank, c->name);
}

static tsr_status make(struct tsr_nccl *n, const struct tsr_comm *comm, uint16_t id, uint8_t kind,
                       struct tsr_nccl_comm **out)
{
    struct tsr_nccl_comm *c = calloc(1, sizeof *c);
    if (!c)
        return tsr__no_memory_on(n->world->rank);
    c->id = id;
    c->size = comm->size;
    c->gathers = kind == TSR_ALL_GATHER;
    (void)snprintf(c->name, sizeof c->name, "%s", comm->name ? comm->name : "?");
    tsr_status status;
    TSR_GOTO(failed, split(n, comm, c));
    TSR_GOTO(failed, append(n, c));
    *out = c;
    return TSR_OK;
failed:
    if (c->comm)
        (void)ncclCommAbort(c->comm);
    free(c);
    return status;
}

tsr_status tsr__nccl_comm_of(struct tsr_nccl *n, const struct tsr_comm *comm, uint16_t comm_id,
                             uint8_t kind, struct tsr_nccl_comm **out)
{
    uint16_t id = comm->separate ? comm_id : comm->queue;
    for (size_t i = 0; i < n->n_comms; i++) {
        *out = n->comms[i];
        if ((*out)->id == id && (*out)->size == comm->size)
            return TSR_OK;
    }
    return make(n, comm, id, kind, out);
}

/* Ends the communicator of the world. ncclCommDestroy() alone would finalize it inside the call,
 * and wait there without a deadline for a rank that does not come; ncclCommFinalize() returns at
 * once. */
static void end_root(struct tsr_nccl *n, bool failed)
{
    static const char tried[] = "the end", name[] = "world";
    if (!failed)
        failed = tsr__nccl_check(n, ncclCommFinalize(n->root), name, tried) != TSR_OK ||
                 settle(n, n->root, name, tried) != TSR_OK;
    (void)(failed ? ncclCommAbort(n->root) : ncclCommDestroy(n->root));
    n->root = NULL;
}

/* The last made goes first. After a failure nothing waits for other ranks. */
void tsr__nccl_comms_free(struct tsr_nccl *n)
{
    bool failed = tsr__aborted(&n->abort);
    (void)pthread_mutex_lock(&n->life);
    while (n->n_comms > 0) {
        struct tsr_nccl_comm *c = n->comms[--n->n_comms];
        tsr__nccl_windows_free(n, c);
        for (size_t i = 0; i < c->n_ops; i++)
            (void)ncclRedOpDestroy(c->ops[i].op, c->comm);
        (void)(failed ? ncclCommAbort(c->comm) : ncclCommDestroy(c->comm));
        free(c->ops);
        free(c);
    }
    free(n->comms);
    n->comms = NULL;
    ncclComm_t root = n->root;
    (void)pthread_mutex_unlock(&n->life);
    if (root)
        end_root(n, failed);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* The device's segments as symmetric windows of the communicators that gather, for
 * copies without multiprocessors.
 *
 * A window is registered by all members at once, and its buffers must lie at the same offsets on
 * all of them. Segments come and go with the ranks' allocators, so ranks compare what they have at
 * certain calls of a communicator (the 1st, 2nd, 4th, 8th, ...), which all of them make: where a
 * rank differs, nothing is registered, and NCCL copies as it would have. So it does where it
 * refuses a window (no peer access, older driver): tsr_comms_ops.describe() tells. */

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

static void tsr__nccl_windows_free(struct tsr_nccl *n, struct tsr_nccl_comm *c)
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
