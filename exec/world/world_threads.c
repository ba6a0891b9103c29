/* world_threads.c: ranks as threads of one process. A member reads what it needs straight from the
 * buffers of the others.
 */
#include "exec/world/thread_call.h"

#include <stdlib.h>
#include <string.h>

struct thread_world {
    struct tsr_world base;
    struct tsr_hub *hub;
    uint64_t n_exchanges;
};

/* ---- collectives ----------------------------------------------------------------------------- */

static const void *sent_by(const struct tsr_visit *v, uint32_t member)
{
    return tsr__visit_post(v, member)->send;
}

/* recv[j] = what member j has for this one, in chunks of bytes / n. */
static void take_chunks(struct tsr_visit *v, const struct tsr_collective *c, bool all_to_all)
{
    uint32_t n = v->call.n;
    uint64_t bytes = c->bytes / n, from = all_to_all ? v->call.me * bytes : 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (v->call.me + i) % n; /* not all from the same one at the same time */
        tsr__copy((char *)c->recv + j * bytes, (const char *)sent_by(v, j) + from, bytes);
    }
}

/* Sums elements [first, first + n) of what the members sent into `out`. */
static tsr_status sum(struct tsr_visit *v, const struct tsr_collective *c, uint64_t first,
                      uint64_t n, void *out)
{
    const void **parts = malloc(v->call.n * sizeof *parts);
    if (!parts)
        return tsr__hub_give_up(v->hub, tsr__no_memory_on(v->call.rank));
    for (uint32_t j = 0; j < v->call.n; j++)
        parts[j] = (const char *)sent_by(v, j) + first * tsr_dtype_bytes(c->dtype);
    struct tsr_reduction how = tsr__reduction_of(c);
    tsr__reduce(&how, parts, v->call.n, out, n);
    free(parts);
    return TSR_OK;
}

/* Each member sums its part into its own output; then all fetch the others' parts. In place that
 * is safe, since a part of the input is read by its member only. */
static tsr_status all_reduce(struct tsr_visit *v, const struct tsr_collective *c)
{
    unsigned item = tsr_dtype_bytes(c->dtype);
    struct tsr_collective_part mine = tsr__all_reduce_part(c, v->call.me);
    TSR_TRY(sum(v, c, mine.first, mine.n, (char *)c->recv + mine.first * item));
    tsr__visit_set(v, TSR_PHASE_SUMMED);
    for (uint32_t i = 1; i < v->call.n; i++) {
        uint32_t j = (v->call.me + i) % v->call.n;
        struct tsr_collective_part part = tsr__all_reduce_part(c, j);
        TSR_TRY(tsr__visit_wait(v, j, TSR_PHASE_SUMMED));
        tsr__copy((char *)c->recv + part.first * item,
                  (const char *)tsr__visit_post(v, j)->recv + part.first * item, part.n * item);
    }
    return TSR_OK;
}

static tsr_status run(struct tsr_visit *v, const struct tsr_collective *c)
{
    uint64_t part = c->bytes / v->call.n;
    switch (c->kind) {
    case TSR_ALL_GATHER:
        take_chunks(v, c, false);
        return TSR_OK;
    case TSR_ALL_TO_ALL:
        take_chunks(v, c, true);
        return TSR_OK;
    case TSR_BROADCAST:
        tsr__copy(c->recv, sent_by(v, 0), c->bytes);
        return TSR_OK;
    case TSR_REDUCE_SCATTER: {
        uint64_t n = part / tsr_dtype_bytes(c->dtype);
        return sum(v, c, n * v->call.me, n, c->recv);
    }
    default:
        return all_reduce(v, c);
    }
}

static tsr_status collective(struct thread_world *w, const struct tsr_collective *c)
{
    if (tsr__aborted(&w->hub->abort))
        return tsr__abort_status(&w->hub->abort);
    tsr_status status = tsr__collective_check(&w->base, c);
    if (status != TSR_OK)
        return tsr__hub_give_up(w->hub, status);
    if (c->comm->size == 1) {
        tsr__collective_alone(c);
        return TSR_OK;
    }
    struct tsr_visit v = {.world = &w->base, .hub = w->hub, .call = tsr__call_of(&w->base, c)};
    TSR_TRY(tsr__visit_open(&v));
    v.own->sig = v.call.sig;
    v.own->send = c->kind == TSR_BROADCAST && !c->send ? c->recv : c->send;
    v.own->recv = c->recv;
    status = tsr__visit_enter(&v);
    if (status == TSR_OK)
        status = run(&v, c);
    return tsr__visit_leave(&v, status);
}

static tsr_status threads_collective(struct tsr_world *world, const struct tsr_collective *call)
{
    struct thread_world *w = (struct thread_world *)world;
    TSR_TRY(tsr__hub_check_comm(w->hub, call->comm_id));
    return collective(w, call);
}

/* The host's calls are an all-gather on a communicator of their own. */
static tsr_status threads_exchange(struct tsr_world *world, const void *in, void *out, size_t bytes)
{
    struct thread_world *w = (struct thread_world *)world;
    TSR_CHECK(in && out);
    const struct tsr_comm comm = {.name = "the hosts", .size = world->size, .stride = 1};
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_U8,
                                        .comm = &comm,
                                        .comm_id = TSR_THREAD_COMMS,
                                        .sequence = w->n_exchanges++,
                                        .send = in,
                                        .recv = out,
                                        .bytes = (uint64_t)bytes * world->size};
    return collective(w, &call);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Both sides count the same; then the k-th receive from a member takes its k-th send. */
static tsr_status take_messages(struct tsr_visit *v, uint32_t member)
{
    const struct tsr_post *post = tsr__visit_post(v, member);
    uint32_t me = v->call.me;
    uint64_t sends = tsr__messages_count(post->messages, post->n_messages, true, me);
    uint64_t receives = tsr__messages_count(v->messages, v->n_messages, false, member);
    if (sends != receives)
        return tsr__hub_give_up(v->hub,
                                tsr__messages_mismatch(&v->call, member, me, sends, receives));
    uint64_t mine = tsr__messages_count(v->messages, v->n_messages, true, member);
    uint64_t theirs = tsr__messages_count(post->messages, post->n_messages, false, me);
    if (mine != theirs)
        return tsr__hub_give_up(v->hub, tsr__messages_mismatch(&v->call, me, member, mine, theirs));
    for (uint64_t k = 0; k < receives; k++) {
        const struct tsr_message *from =
            tsr__message_at(post->messages, post->n_messages, true, me, k);
        const struct tsr_message *to =
            tsr__message_at(v->messages, v->n_messages, false, member, k);
        if (from->bytes != to->bytes)
            return tsr__hub_give_up(
                v->hub, tsr__message_size_mismatch(&v->call, member, me, from->bytes, to->bytes));
        tsr__copy(to->data, from->data, from->bytes);
    }
    return TSR_OK;
}

static tsr_status exchange_messages(struct tsr_visit *v)
{
    tsr_status status = tsr__messages_to_self(&v->call, v->messages, v->n_messages);
    if (status != TSR_OK)
        return tsr__hub_give_up(v->hub, status);
    for (uint32_t j = 0; j < v->call.n; j++)
        if (tsr__visit_has(v, j))
            TSR_TRY(take_messages(v, j));
    return TSR_OK;
}

static tsr_status threads_messages(struct tsr_world *world, const struct tsr_comm *comm,
                                   uint16_t comm_id, uint64_t sequence,
                                   const struct tsr_message *messages, size_t n)
{
    struct thread_world *w = (struct thread_world *)world;
    if (tsr__aborted(&w->hub->abort))
        return tsr__abort_status(&w->hub->abort);
    TSR_TRY(tsr__hub_check_comm(w->hub, comm_id));
    tsr_status status = tsr__messages_check(world, comm, messages, n);
    if (status != TSR_OK)
        return tsr__hub_give_up(w->hub, status);
    struct tsr_visit v = {.world = world,
                          .hub = w->hub,
                          .call = tsr__call_of_messages(world, comm, comm_id, sequence),
                          .messages = messages,
                          .n_messages = n};
    TSR_TRY(tsr__visit_open(&v));
    v.own->sig = v.call.sig;
    v.own->messages = messages;
    v.own->n_messages = n;
    status = tsr__visit_enter(&v);
    if (status == TSR_OK)
        status = exchange_messages(&v);
    return tsr__visit_leave(&v, status);
}

/* ---- the world ------------------------------------------------------------------------------- */

static void threads_abort(struct tsr_world *world, tsr_status status, const char *why)
{
    struct thread_world *w = (struct thread_world *)world;
    (void)tsr__abort_by(&w->hub->abort, world->rank, status, why);
}

static tsr_status threads_check(struct tsr_world *world)
{
    struct tsr_abort *abort = &((struct thread_world *)world)->hub->abort;
    return tsr__aborted(abort) ? tsr__abort_status(abort) : TSR_OK;
}

static void threads_destroy(struct tsr_world *world)
{
    struct thread_world *w = (struct thread_world *)world;
    if (atomic_fetch_sub(&w->hub->n_worlds, 1) == 1)
        tsr__hub_destroy(w->hub);
    free(w);
}

static const struct tsr_world_ops threads_ops = {
    .name = "threads",
    .collective = threads_collective,
    .messages = threads_messages,
    .exchange = threads_exchange,
    .abort = threads_abort,
    .check = threads_check,
    .destroy = threads_destroy,
};

tsr_status tsr_world_threads(uint32_t size, double timeout_s, struct tsr_world **worlds)
{
    memset(worlds, 0, size * sizeof *worlds);
    if (size == 0)
        return tsr_fail(TSR_EVALUE, "a world of 0 ranks; allowed: 1 or more");
    struct tsr_hub *hub = tsr__hub_create(size);
    uint32_t made = 0;
    for (; hub && made < size; made++) {
        struct thread_world *w = calloc(1, sizeof *w);
        if (!w)
            break;
        w->base = (struct tsr_world){&threads_ops, made, size, timeout_s};
        w->hub = hub;
        worlds[made] = &w->base;
    }
    if (made == size)
        return TSR_OK;
    for (uint32_t r = 0; r < made; r++) {
        free(worlds[r]);
        worlds[r] = NULL;
    }
    tsr__hub_destroy(hub);
    return tsr_no_memory("a world");
}
