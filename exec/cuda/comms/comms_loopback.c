/* comms_loopback.c: ranks that are threads of one process and share a GPU.
 *
 * The host threads of the members meet in every call, as in a world of threads (thread_call.h), and
 * tell each other their buffers. The device is never waited for; its order comes from three events
 * of each member:
 *   ready   its stream has come to the call: its input may be read
 *   summed  (all-reduce) the part that it sums is in its output
 *   done    it has read what it needs of the others
 * A stream goes on when all others are done with its buffers. An event is recorded again only after
 * all that wait for it have said so to CUDA: a wait is for the last record before it.
 */
#include "exec/cuda/comms/comms.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "exec/world/thread_call.h"

/* So long a rank that ends after a failure waits for the others, in seconds. */
#define OTHERS_END_S 3

struct events {
    bool made;
    cudaEvent_t ready, summed, done;
};

struct tsr_loopback {
    struct tsr_hub *hub;
    uint32_t size;
    atomic_uint n_open;    /* ranks whose work on the device may still read what others have */
    struct events *events; /* [size][TSR_THREAD_COMMS]; each written by its rank */
};

struct loopback {
    struct tsr_comms base;
    struct tsr_loopback *shared;
    struct tsr_world *world;
};

static struct loopback *of(struct tsr_comms *comms)
{
    return (struct loopback *)comms;
}

/* One call on the device. */
struct turn {
    struct tsr_visit visit;
    struct tsr_loopback *shared;
    const struct tsr_cuda_context *context;
};

/* ---- events ---------------------------------------------------------------------------------- */

static struct events *events_of(const struct turn *t, uint32_t member)
{
    size_t rank = tsr__call_rank(&t->visit.call, member);
    return &t->shared->events[rank * TSR_THREAD_COMMS + t->visit.call.comm_id];
}

static tsr_status make_events(struct events *e)
{
    cudaEvent_t *const all[] = {&e->ready, &e->summed, &e->done};
    for (int i = 0; !e->made && i < 3; i++)
        if (!*all[i])
            TSR_CUDA("an event", cudaEventCreateWithFlags(all[i], cudaEventDisableTiming));
    e->made = true;
    return TSR_OK;
}

static tsr_status record(const struct turn *t, cudaEvent_t event)
{
    TSR_CUDA("an event of a collective", cudaEventRecord(event, t->context->stream));
    return TSR_OK;
}

static tsr_status wait_for(const struct turn *t, cudaEvent_t event)
{
    TSR_CUDA("a wait of a collective", cudaStreamWaitEvent(t->context->stream, event, 0));
    return TSR_OK;
}

/* ---- the frame of every call ----------------------------------------------------------------- */

static tsr_status come(struct turn *t)
{
    TSR_TRY(make_events(events_of(t, t->visit.call.me)));
    TSR_TRY(record(t, events_of(t, t->visit.call.me)->ready));
    TSR_TRY(tsr__visit_enter(&t->visit));
    for (uint32_t j = 0; j < t->visit.call.n; j++)
        if (tsr__visit_has(&t->visit, j))
            TSR_TRY(wait_for(t, events_of(t, j)->ready));
    return TSR_OK;
}

/* Before leaving: a member that has left may record its event again, in a call with others and on
 * another stream, and a wait for that would say nothing of this call. */
static tsr_status wait_for_readers(struct turn *t)
{
    struct tsr_visit *v = &t->visit;
    tsr__visit_set(v, TSR_PHASE_RECORDED);
    for (uint32_t j = 0; j < v->call.n; j++) {
        if (!tsr__visit_has(v, j))
            continue;
        TSR_TRY(tsr__visit_wait(v, j, TSR_PHASE_RECORDED));
        TSR_TRY(wait_for(t, events_of(t, j)->done));
    }
    return TSR_OK;
}

/* Runs `run` between the meetings. v->own has been filled in. */
static tsr_status meet(struct turn *t, tsr_status (*run)(struct turn *t, const void *user),
                       const void *user)
{
    tsr_status status;
    TSR_GOTO(failed, come(t));
    TSR_GOTO(failed, run(t, user));
    TSR_GOTO(failed, record(t, events_of(t, t->visit.call.me)->done));
    TSR_GOTO(failed, wait_for_readers(t));
    return tsr__visit_leave(&t->visit, TSR_OK);
failed:
    return tsr__visit_leave(&t->visit, tsr__hub_give_up(t->visit.hub, status));
}

static tsr_status open_call(struct loopback *l, struct turn *t)
{
    t->visit.world = l->world;
    t->visit.hub = l->shared->hub;
    t->shared = l->shared;
    TSR_TRY(tsr__hub_check_comm(l->shared->hub, t->visit.call.comm_id));
    TSR_TRY(tsr__visit_open(&t->visit));
    t->visit.own->sig = t->visit.call.sig;
    return TSR_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* recv[j] = what member j has for this one, in chunks of bytes / n. */
static tsr_status take_chunks(struct turn *t, const struct tsr_collective *c)
{
    struct tsr_segment segments[TSR_LOOPBACK_RANKS];
    uint32_t n = t->visit.call.n;
    uint64_t bytes = c->bytes / n;
    uint64_t from = c->kind == TSR_ALL_TO_ALL ? t->visit.call.me * bytes : 0;
    for (uint32_t j = 0; j < n; j++)
        segments[j] = (struct tsr_segment){(const char *)tsr__visit_post(&t->visit, j)->send + from,
                                           (char *)c->recv + j * bytes, bytes};
    return tsr__device_copy(t->context, c->kind, segments, n);
}

/* Sums elements [first, first + n) of what the members sent into `out`. */
static tsr_status sum(struct turn *t, const struct tsr_collective *c, uint64_t first, uint64_t n,
                      void *out)
{
    const void *parts[TSR_LOOPBACK_RANKS];
    for (uint32_t j = 0; j < t->visit.call.n; j++)
        parts[j] =
            (const char *)tsr__visit_post(&t->visit, j)->send + first * tsr_dtype_bytes(c->dtype);
    const struct tsr_reduction how = tsr__reduction_of(c);
    return tsr__device_reduce(t->context, c->kind, &how, parts, t->visit.call.n, out, n);
}

/* Each member sums its part into its own output; then all fetch the others' parts. */
static tsr_status all_reduce(struct turn *t, const struct tsr_collective *c)
{
    struct tsr_segment segments[TSR_LOOPBACK_RANKS];
    struct tsr_visit *v = &t->visit;
    unsigned item = tsr_dtype_bytes(c->dtype);
    struct tsr_collective_part mine = tsr__all_reduce_part(c, v->call.me);
    TSR_TRY(sum(t, c, mine.first, mine.n, (char *)c->recv + mine.first * item));
    TSR_TRY(record(t, events_of(t, v->call.me)->summed));
    tsr__visit_set(v, TSR_PHASE_SUMMED);
    for (uint32_t j = 0; j < v->call.n; j++) {
        struct tsr_collective_part part = tsr__all_reduce_part(c, j);
        const struct tsr_post *post = tsr__visit_post(v, j);
        segments[j] = (struct tsr_segment){(const char *)post->recv + part.first * item,
                                           (char *)c->recv + part.first * item, part.n * item};
        if (j == v->call.me)
            continue;
        TSR_TRY(tsr__visit_wait(v, j, TSR_PHASE_SUMMED));
        TSR_TRY(wait_for(t, events_of(t, j)->summed));
    }
    return tsr__device_copy(t->context, c->kind, segments, v->call.n);
}

static tsr_status run_collective(struct turn *t, const void *user)
{
    const struct tsr_collective *c = user;
    uint64_t part = c->bytes / t->visit.call.n;
    switch (c->kind) {
    case TSR_ALL_GATHER:
    case TSR_ALL_TO_ALL:
        return take_chunks(t, c);
    case TSR_BROADCAST: {
        const struct tsr_segment whole = {tsr__visit_post(&t->visit, 0)->send, c->recv, c->bytes};
        return tsr__device_copy(t->context, c->kind, &whole, 1);
    }
    case TSR_REDUCE_SCATTER: {
        uint64_t n = part / tsr_dtype_bytes(c->dtype);
        return sum(t, c, n * t->visit.call.me, n, c->recv);
    }
    default:
        return all_reduce(t, c);
    }
}

static tsr_status loopback_collective(struct tsr_comms *comms,
                                      const struct tsr_cuda_context *context,
                                      const struct tsr_collective *c)
{
    struct loopback *l = of(comms);
    if (tsr__aborted(&l->shared->hub->abort))
        return tsr__abort_status(&l->shared->hub->abort);
    tsr_status status = tsr__collective_check(l->world, c);
    if (status == TSR_OK && c->comm->size == 1)
        status = tsr__device_alone(context, c);
    if (status != TSR_OK)
        return tsr__hub_give_up(l->shared->hub, status);
    if (c->comm->size == 1)
        return TSR_OK;
    struct turn t = {.context = context, .visit.call = tsr__call_of(l->world, c)};
    TSR_TRY(open_call(l, &t));
    t.visit.own->send = c->kind == TSR_BROADCAST && !c->send ? c->recv : c->send;
    t.visit.own->recv = c->recv;
    return meet(&t, run_collective, c);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Checks the sends of this member, too: who finds a difference tells all. */
static tsr_status match_all(struct turn *t, struct tsr_segment *segments, size_t *n)
{
    struct tsr_visit *v = &t->visit;
    uint32_t me = v->call.me;
    TSR_TRY(tsr__match_messages(&v->call, me, v->messages, v->n_messages, me, v->messages,
                                v->n_messages, segments, n));
    for (uint32_t j = 0; j < v->call.n; j++) {
        if (!tsr__visit_has(v, j))
            continue;
        const struct tsr_post *post = tsr__visit_post(v, j);
        TSR_TRY(tsr__match_messages(&v->call, j, post->messages, post->n_messages, me, v->messages,
                                    v->n_messages, segments, n));
        uint64_t mine = tsr__messages_count(v->messages, v->n_messages, true, j);
        uint64_t theirs = tsr__messages_count(post->messages, post->n_messages, false, me);
        if (mine != theirs)
            return tsr__messages_mismatch(&v->call, me, j, mine, theirs);
    }
    return TSR_OK;
}

static tsr_status run_messages(struct turn *t, const void *user)
{
    (void)user;
    size_t n = 0;
    struct tsr_segment *segments = calloc(t->visit.n_messages + 1, sizeof *segments);
    if (!segments)
        return tsr__no_memory_on(t->visit.call.rank);
    tsr_status status;
    TSR_GOTO(end, match_all(t, segments, &n));
    status = tsr__device_copy(t->context, TSR_RECV, segments, n);
end:
    free(segments);
    return status;
}

static tsr_status loopback_messages(struct tsr_comms *comms, const struct tsr_cuda_context *context,
                                    const struct tsr_comm *comm, uint16_t comm_id,
                                    uint64_t sequence, const struct tsr_message *messages, size_t n)
{
    struct loopback *l = of(comms);
    if (tsr__aborted(&l->shared->hub->abort))
        return tsr__abort_status(&l->shared->hub->abort);
    tsr_status status = tsr__messages_check(l->world, comm, messages, n);
    if (status != TSR_OK)
        return tsr__hub_give_up(l->shared->hub, status);
    struct turn t = {.context = context,
                     .visit = {.call = tsr__call_of_messages(l->world, comm, comm_id, sequence),
                               .messages = messages,
                               .n_messages = n}};
    TSR_TRY(open_call(l, &t));
    t.visit.own->messages = messages;
    t.visit.own->n_messages = n;
    return meet(&t, run_messages, NULL);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static tsr_status loopback_poll(struct tsr_comms *comms)
{
    struct tsr_abort *abort = &of(comms)->shared->hub->abort;
    return tsr__aborted(abort) ? tsr__abort_status(abort) : TSR_OK;
}

static void loopback_abort(struct tsr_comms *comms, tsr_status status, const char *why)
{
    struct loopback *l = of(comms);
    (void)tsr__abort_by(&l->shared->hub->abort, l->world->rank, status, why);
}

/* A stream goes on when the others have read its buffers, unless a failure came between. Then a
 * rank whose own work is done may not unmap its memory before the work of the others is. */
static void loopback_destroy(struct tsr_comms *comms)
{
    struct tsr_loopback *shared = of(comms)->shared;
    const struct timespec pause = {.tv_nsec = 100000};
    atomic_fetch_sub(&shared->n_open, 1);
    for (int i = 0; i < OTHERS_END_S * 10000; i++) {
        if (!tsr__aborted(&shared->hub->abort) || atomic_load(&shared->n_open) == 0)
            break;
        nanosleep(&pause, NULL);
    }
    free(of(comms));
}

static const struct tsr_comms_ops loopback_ops = {
    .name = "loopback",
    .collective = loopback_collective,
    .messages = loopback_messages,
    .poll = loopback_poll,
    .abort = loopback_abort,
    .destroy = loopback_destroy,
};

tsr_status tsr_comms_loopback(struct tsr_loopback *loopback, const struct tsr_comms_config *config,
                              struct tsr_comms **out)
{
    struct loopback *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l)
        return tsr_no_memory("a communicator");
    TSR_CHECK(config->world->size == loopback->size);
    *l = (struct loopback){.base = {&loopback_ops, config->world, config->timeout_s},
                           .shared = loopback,
                           .world = config->world};
    atomic_fetch_add(&loopback->n_open, 1);
    *out = &l->base;
    return TSR_OK;
}

tsr_status tsr_loopback_create(uint32_t size, struct tsr_loopback **out)
{
    *out = NULL;
    if (size == 0 || size > TSR_LOOPBACK_RANKS)
        return tsr_fail(TSR_EVALUE, "%u ranks on one GPU; allowed: 1 to %d", size,
                        TSR_LOOPBACK_RANKS);
    struct tsr_loopback *l = calloc(1, sizeof *l);
    if (l) {
        l->size = size;
        l->hub = tsr__hub_create(size);
        l->events = calloc((size_t)size * TSR_THREAD_COMMS, sizeof *l->events);
    }
    if (l && l->hub && l->events) {
        *out = l;
        return TSR_OK;
    }
    tsr_loopback_destroy(l);
    return tsr_no_memory("ranks on one GPU");
}

/* Events go last: a rank may end while another still waits for one of its events. */
void tsr_loopback_destroy(struct tsr_loopback *loopback)
{
    if (!loopback)
        return;
    for (size_t i = 0; loopback->events && i < (size_t)loopback->size * TSR_THREAD_COMMS; i++) {
        cudaEvent_t const all[] = {loopback->events[i].ready, loopback->events[i].summed,
                                   loopback->events[i].done};
        for (int j = 0; j < 3; j++)
            if (all[j])
                (void)cudaEventDestroy(all[j]);
    }
    free(loopback->events);
    tsr__hub_destroy(loopback->hub);
    free(loopback);
}
