/* world_threads.c: ranks as threads of one process. A member reads what it needs straight from the
 * buffers of the others.
 *
 * Each rank has a post per communicator and sequence number (modulo SLOTS), where it puts up its
 * call: signature, buffers, and a word with the phase it has reached. A call waits for words of the
 * other members and for nothing else. So a collective orders the calls of its members, and two
 * streams of one rank meet only when a post is used again, SLOTS calls of one communicator later: a
 * missing wait between them stays visible to a race detector.
 *
 * A failed call returns while others may look at its buffers. They announce that in `readers` of
 * the post and then look whether the world has failed; the owner lets the world fail and then waits
 * for `readers` to be 0. One of the two sees the other.
 */
#include "abort.h"
#include "collective.h"
#include "word.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    COMMS = 256, /* communicators */
    SLOTS = 64,  /* calls of one communicator that may be on their way */
    SPINS = 64,
    LOOK_MS = 20, /* how often a sleeper looks whether the world has failed */
};

/* What a member has done of call s; its word is 8 s + phase. */
enum phase {
    PHASE_ARRIVED = 1,
    PHASE_SUMMED, /* its part of an all-reduce is in its output */
    PHASE_READ,   /* needs nothing more of the others */
    PHASE_CLOSED, /* nobody needs anything of it: the post is free */
};

struct post {
    struct tsr_word word;
    _Atomic uint32_t readers;
    struct tsr_signature sig;
    const void *send;
    void *recv;
    const struct tsr_message *messages;
    size_t n_messages;
};

/* Shared by the ranks; the last one frees it. */
struct hub {
    struct tsr_abort abort;
    _Atomic uint32_t n_worlds;
    uint32_t size;
    size_t post_bytes;
    struct post *posts; /* [size][COMMS + 1][SLOTS]; the last communicator is the host's */
};

struct thread_world {
    struct tsr_world base;
    struct hub *hub;
    uint64_t n_exchanges;
};

/* One call in progress. */
struct visit {
    struct thread_world *w;
    struct tsr_call call;
    struct post *own;
    const struct tsr_message *messages; /* of a launch of messages */
    size_t n_messages;
    uint32_t n_entered; /* members [0, n_entered) that take part have arrived and are pinned */
};

/* ---- posts and phases --------------------------------------------------------------------------
 */

static struct post *post_of(const struct visit *v, uint32_t member)
{
    const struct hub *hub = v->w->hub;
    size_t rank = tsr__call_rank(&v->call, member);
    size_t slot = (size_t)(v->call.sequence % SLOTS);
    return &hub->posts[(rank * (COMMS + 1) + v->call.comm_id) * SLOTS + slot];
}

static uint32_t word_value(const struct visit *v, enum phase phase)
{
    return (uint32_t)(v->call.sequence * 8 + phase) & UINT32_C(0x7fffffff);
}

static void set_phase(const struct visit *v, enum phase phase)
{
    tsr__word_set(&v->own->word, word_value(v, phase));
}

/* Makes the failure known to all ranks, and fails as they do. */
static tsr_status give_up(struct thread_world *w, tsr_status status)
{
    (void)tsr__abort_set(&w->hub->abort, status, tsr_error_text());
    return tsr__abort_status(&w->hub->abort);
}

static void pause_for(struct tsr_word *word, uint32_t value, int turn, double left)
{
    if (turn < SPINS)
        return;
    if (turn < SPINS + 4)
        (void)sched_yield();
    else
        tsr__word_sleep(word, value, left < LOOK_MS * 1e-3 ? left : LOOK_MS * 1e-3);
}

static const char *const missing[] = {
    [PHASE_ARRIVED] = "arrive at", [PHASE_SUMMED] = "sum in", [PHASE_READ] = "finish"};

static tsr_status wait_phase(struct visit *v, uint32_t member, enum phase phase)
{
    struct tsr_word *word = &post_of(v, member)->word;
    uint32_t target = word_value(v, phase), value;
    for (int turn = 0;; turn += turn < SPINS + 4) {
        if (tsr__word_reached(value = tsr__word_get(word), target))
            return TSR_OK;
        if (tsr__aborted(&v->w->hub->abort))
            return tsr__abort_status(&v->w->hub->abort);
        double left = turn < SPINS ? 1 : v->call.deadline - tsr__now();
        if (left <= 0)
            return give_up(v->w, tsr__call_timeout(&v->w->base, &v->call, member, missing[phase]));
        pause_for(word, value, turn, left);
    }
}

/* A post is free when it was never used, or when its last call is closed. */
static tsr_status open_post(struct visit *v)
{
    struct tsr_word *word = &v->own->word;
    for (int turn = 0;; turn += turn < SPINS + 4) {
        uint32_t value = tsr__word_get(word);
        if (value == 0 || value % 8 == PHASE_CLOSED)
            return TSR_OK;
        if (tsr__aborted(&v->w->hub->abort))
            return tsr__abort_status(&v->w->hub->abort);
        double left = v->call.deadline - tsr__now();
        if (left <= 0)
            return give_up(
                v->w, tsr_fail(TSR_EPEER, "rank %u: more than %d calls of '%s' in flight for %g s",
                               v->call.rank, SLOTS, v->call.comm->name, v->w->base.timeout_s));
        pause_for(word, value, turn, left);
    }
}

/* ---- the frame of every call -------------------------------------------------------------------
 */

static bool takes_part(const struct visit *v, uint32_t member)
{
    if (member == v->call.me)
        return false;
    return v->call.sig.kind != TSR_SEND ||
           tsr__messages_count(v->messages, v->n_messages, true, member) > 0 ||
           tsr__messages_count(v->messages, v->n_messages, false, member) > 0;
}

static tsr_status pin(struct visit *v, uint32_t member)
{
    struct post *post = post_of(v, member);
    (void)atomic_fetch_add(&post->readers, 1);
    if (!tsr__aborted(&v->w->hub->abort))
        return TSR_OK;
    (void)atomic_fetch_sub(&post->readers, 1);
    return tsr__abort_status(&v->w->hub->abort);
}

static void unpin_all(struct visit *v)
{
    for (uint32_t j = 0; j < v->n_entered; j++)
        if (takes_part(v, j))
            (void)atomic_fetch_sub(&post_of(v, j)->readers, 1);
    v->n_entered = 0;
}

/* Puts up the call and waits until all others have put up theirs, and agree. */
static tsr_status enter(struct visit *v)
{
    set_phase(v, PHASE_ARRIVED);
    for (uint32_t j = 0; j < v->call.n; j++, v->n_entered++) {
        if (!takes_part(v, j))
            continue;
        TSR_TRY(wait_phase(v, j, PHASE_ARRIVED));
        TSR_TRY(pin(v, j));
        tsr_status status = tsr__signature_check(&v->call, j, &post_of(v, j)->sig);
        if (status != TSR_OK) {
            (void)atomic_fetch_sub(&post_of(v, j)->readers, 1);
            return give_up(v->w, status);
        }
    }
    return TSR_OK;
}

static tsr_status wait_all(struct visit *v, enum phase phase)
{
    for (uint32_t j = 0; j < v->call.n; j++)
        if (takes_part(v, j))
            TSR_TRY(wait_phase(v, j, phase));
    return TSR_OK;
}

/* Ends a call: nobody reads its buffers any more when this returns. */
static tsr_status leave(struct visit *v, tsr_status status)
{
    unpin_all(v);
    if (status == TSR_OK) {
        set_phase(v, PHASE_READ);
        status = wait_all(v, PHASE_READ);
    }
    if (status == TSR_OK) {
        set_phase(v, PHASE_CLOSED);
        return TSR_OK;
    }
    while (atomic_load(&v->own->readers) != 0)
        (void)sched_yield();
    return status;
}

/* ---- collectives -------------------------------------------------------------------------------
 */

static const void *sent_by(const struct visit *v, uint32_t member)
{
    return post_of(v, member)->send;
}

/* recv[j] = what member j has for this one, in chunks of bytes / n. */
static void take_chunks(struct visit *v, const struct tsr_collective *c, bool all_to_all)
{
    uint32_t n = v->call.n;
    uint64_t bytes = c->bytes / n, from = all_to_all ? v->call.me * bytes : 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (v->call.me + i) % n; /* not all from the same one at the same time */
        tsr__copy((char *)c->recv + j * bytes, (const char *)sent_by(v, j) + from, bytes);
    }
}

/* Sums elements [first, first + n) of what the members sent into `out`. */
static tsr_status sum(struct visit *v, const struct tsr_collective *c, uint64_t first, uint64_t n,
                      void *out)
{
    const void **parts = malloc(v->call.n * sizeof *parts);
    if (!parts)
        return give_up(v->w, tsr_fail(TSR_ENOMEM, "rank %u: no memory left", v->call.rank));
    for (uint32_t j = 0; j < v->call.n; j++)
        parts[j] = (const char *)sent_by(v, j) + first * tsr_dtype_bytes(c->dtype);
    struct tsr_reduction how = tsr__reduction_of(c);
    tsr__reduce(&how, parts, v->call.n, out, n);
    free(parts);
    return TSR_OK;
}

/* Each member sums its part into its own output; then all fetch the others' parts. In place that
 * is safe, since a part of the input is read by its member only. */
static tsr_status all_reduce(struct visit *v, const struct tsr_collective *c)
{
    unsigned item = tsr_dtype_bytes(c->dtype);
    struct tsr_part mine = tsr__all_reduce_part(c, v->call.me);
    TSR_TRY(sum(v, c, mine.first, mine.n, (char *)c->recv + mine.first * item));
    set_phase(v, PHASE_SUMMED);
    for (uint32_t i = 1; i < v->call.n; i++) {
        uint32_t j = (v->call.me + i) % v->call.n;
        struct tsr_part part = tsr__all_reduce_part(c, j);
        TSR_TRY(wait_phase(v, j, PHASE_SUMMED));
        tsr__copy((char *)c->recv + part.first * item,
                  (const char *)post_of(v, j)->recv + part.first * item, part.n * item);
    }
    return TSR_OK;
}

static tsr_status run(struct visit *v, const struct tsr_collective *c)
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
        return give_up(w, status);
    if (c->comm->size == 1) {
        tsr__collective_alone(c);
        return TSR_OK;
    }
    struct visit v = {.w = w, .call = tsr__call_of(&w->base, c)};
    v.own = post_of(&v, v.call.me);
    TSR_TRY(open_post(&v));
    v.own->sig = v.call.sig;
    v.own->send = c->kind == TSR_BROADCAST && !c->send ? c->recv : c->send;
    v.own->recv = c->recv;
    status = enter(&v);
    if (status == TSR_OK)
        status = run(&v, c);
    return leave(&v, status);
}

static tsr_status check_comm_id(struct thread_world *w, uint16_t comm_id)
{
    if (comm_id < COMMS)
        return TSR_OK;
    return give_up(w,
                   tsr_fail(TSR_EUNSUPPORTED, "communicator %u: a world of threads has room for %d",
                            comm_id, COMMS));
}

static tsr_status threads_collective(struct tsr_world *world, const struct tsr_collective *call)
{
    struct thread_world *w = (struct thread_world *)world;
    TSR_TRY(check_comm_id(w, call->comm_id));
    return collective(w, call);
}

/* The host's calls are an all-gather on a communicator of their own. */
static tsr_status threads_exchange(struct tsr_world *world, const void *in, void *out, size_t bytes)
{
    struct thread_world *w = (struct thread_world *)world;
    const struct tsr_comm comm = {.name = "the hosts", .size = world->size, .stride = 1};
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_U8,
                                        .comm = &comm,
                                        .comm_id = COMMS,
                                        .sequence = w->n_exchanges++,
                                        .send = in,
                                        .recv = out,
                                        .bytes = (uint64_t)bytes * world->size};
    return collective(w, &call);
}

/* ---- messages ----------------------------------------------------------------------------------
 */

/* Both sides count the same; then the k-th receive from a member takes its k-th send. */
static tsr_status take_messages(struct visit *v, uint32_t member)
{
    const struct post *post = post_of(v, member);
    uint32_t me = v->call.me;
    uint64_t sends = tsr__messages_count(post->messages, post->n_messages, true, me);
    uint64_t receives = tsr__messages_count(v->messages, v->n_messages, false, member);
    if (sends != receives)
        return give_up(v->w, tsr__messages_mismatch(&v->call, member, me, sends, receives));
    uint64_t mine = tsr__messages_count(v->messages, v->n_messages, true, member);
    uint64_t theirs = tsr__messages_count(post->messages, post->n_messages, false, me);
    if (mine != theirs)
        return give_up(v->w, tsr__messages_mismatch(&v->call, me, member, mine, theirs));
    for (uint64_t k = 0; k < receives; k++) {
        const struct tsr_message *from =
            tsr__message_at(post->messages, post->n_messages, true, me, k);
        const struct tsr_message *to =
            tsr__message_at(v->messages, v->n_messages, false, member, k);
        if (from->bytes != to->bytes)
            return give_up(
                v->w, tsr__message_size_mismatch(&v->call, member, me, from->bytes, to->bytes));
        tsr__copy(to->data, from->data, from->bytes);
    }
    return TSR_OK;
}

static tsr_status exchange_messages(struct visit *v)
{
    tsr_status status = tsr__messages_to_self(&v->call, v->messages, v->n_messages);
    if (status != TSR_OK)
        return give_up(v->w, status);
    for (uint32_t j = 0; j < v->call.n; j++)
        if (takes_part(v, j))
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
    TSR_TRY(check_comm_id(w, comm_id));
    tsr_status status = tsr__messages_check(world, comm, messages, n);
    if (status != TSR_OK)
        return give_up(w, status);
    struct visit v = {.w = w,
                      .call = tsr__call_of_messages(world, comm, comm_id, sequence),
                      .messages = messages,
                      .n_messages = n};
    v.own = post_of(&v, v.call.me);
    TSR_TRY(open_post(&v));
    v.own->sig = v.call.sig;
    v.own->messages = messages;
    v.own->n_messages = n;
    status = enter(&v);
    if (status == TSR_OK)
        status = exchange_messages(&v);
    return leave(&v, status);
}

/* ---- the world ---------------------------------------------------------------------------------
 */

static void threads_abort(struct tsr_world *world, const char *why)
{
    struct thread_world *w = (struct thread_world *)world;
    (void)tsr__abort_by(&w->hub->abort, world->rank, why);
}

static void hub_destroy(struct hub *hub)
{
    if (hub->posts != MAP_FAILED)
        (void)munmap(hub->posts, hub->post_bytes);
    free(hub);
}

static void threads_destroy(struct tsr_world *world)
{
    struct thread_world *w = (struct thread_world *)world;
    if (atomic_fetch_sub(&w->hub->n_worlds, 1) == 1)
        hub_destroy(w->hub);
    free(w);
}

static const struct tsr_world_ops threads_ops = {
    .name = "threads",
    .collective = threads_collective,
    .messages = threads_messages,
    .exchange = threads_exchange,
    .abort = threads_abort,
    .destroy = threads_destroy,
};

/* Pages of posts that are never used cost nothing. */
static struct hub *hub_create(uint32_t size)
{
    struct hub *hub = calloc(1, sizeof *hub);
    if (!hub)
        return NULL;
    hub->size = size;
    hub->post_bytes = sizeof(struct post) * size * (COMMS + 1) * SLOTS;
    hub->posts = mmap(NULL, hub->post_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hub->posts == MAP_FAILED) {
        hub_destroy(hub);
        return NULL;
    }
    atomic_store(&hub->n_worlds, size);
    return hub;
}

tsr_status tsr_world_threads(uint32_t size, double timeout_s, struct tsr_world **worlds)
{
    memset(worlds, 0, size * sizeof *worlds);
    if (size == 0)
        return tsr_fail(TSR_EVALUE, "a world of 0 ranks; allowed: 1 or more");
    struct hub *hub = hub_create(size);
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
    if (hub)
        hub_destroy(hub);
    return tsr_fail(TSR_ENOMEM, "no memory left for a world of %u ranks", size);
}
