/* thread_call.c: posts, phases, and the frame of every call between threads. */
#include "exec/world/thread_call.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    SPINS = 64,
    LOOK_MS = 20, /* how often a sleeper looks whether the world has failed */
};

/* ---- what the ranks share -------------------------------------------------------------------- */

struct tsr_hub *tsr__hub_create(uint32_t size)
{
    struct tsr_hub *hub = calloc(1, sizeof *hub);
    if (!hub)
        return NULL;
    hub->size = size;
    hub->post_bytes = sizeof(struct tsr_post) * size * (TSR_THREAD_COMMS + 1) * TSR_THREAD_SLOTS;
    hub->posts = mmap(NULL, hub->post_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hub->posts == MAP_FAILED) {
        free(hub);
        return NULL;
    }
    atomic_store(&hub->n_worlds, size);
    return hub;
}

void tsr__hub_destroy(struct tsr_hub *hub)
{
    if (!hub)
        return;
    (void)munmap(hub->posts, hub->post_bytes);
    free(hub);
}

tsr_status tsr__hub_check_comm(struct tsr_hub *hub, uint16_t comm_id)
{
    if (comm_id < TSR_THREAD_COMMS)
        return TSR_OK;
    return tsr__hub_give_up(hub, tsr_fail(TSR_EUNSUPPORTED,
                                          "communicator %u: a world of threads has room for %d",
                                          comm_id, TSR_THREAD_COMMS));
}

/* ---- posts and phases ------------------------------------------------------------------------ */

struct tsr_post *tsr__visit_post(const struct tsr_visit *v, uint32_t member)
{
    const struct tsr_hub *hub = v->hub;
    size_t rank = tsr__call_rank(&v->call, member);
    size_t slot = (size_t)(v->call.sequence % TSR_THREAD_SLOTS);
    return &hub->posts[(rank * (TSR_THREAD_COMMS + 1) + v->call.comm_id) * TSR_THREAD_SLOTS + slot];
}

static uint32_t value_of(uint64_t sequence, enum tsr_thread_phase phase)
{
    return (uint32_t)(sequence * 8 + phase) & UINT32_C(0x7fffffff);
}

static uint32_t word_value(const struct tsr_visit *v, enum tsr_thread_phase phase)
{
    return value_of(v->call.sequence, phase);
}

void tsr__visit_set(const struct tsr_visit *v, enum tsr_thread_phase phase)
{
    tsr__word_set(&v->own->word, word_value(v, phase));
}

tsr_status tsr__hub_give_up(struct tsr_hub *hub, tsr_status status)
{
    (void)tsr__abort_set(&hub->abort, status, tsr_error_text());
    return tsr__abort_status(&hub->abort);
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

static const char *const missing[] = {[TSR_PHASE_ARRIVED] = "arrive at",
                                      [TSR_PHASE_SUMMED] = "sum in",
                                      [TSR_PHASE_RECORDED] = "finish",
                                      [TSR_PHASE_READ] = "finish"};

tsr_status tsr__visit_wait(struct tsr_visit *v, uint32_t member, enum tsr_thread_phase phase)
{
    struct tsr_word *word = &tsr__visit_post(v, member)->word;
    uint32_t target = word_value(v, phase), value;
    for (int turn = 0;; turn += turn < SPINS + 4) {
        if (tsr__word_reached(value = tsr__word_get(word), target))
            return TSR_OK;
        if (tsr__aborted(&v->hub->abort))
            return tsr__abort_status(&v->hub->abort);
        double left = turn < SPINS ? 1 : v->call.deadline - tsr__now();
        if (left <= 0)
            return tsr__hub_give_up(v->hub,
                                    tsr__call_timeout(v->world, &v->call, member, missing[phase]));
        pause_for(word, value, turn, left);
    }
}

/* The post is free when the call SLOTS before is closed. Not just any call: that one may be on
 * another stream, which has not come to it yet. */
tsr_status tsr__visit_open(struct tsr_visit *v)
{
    v->own = tsr__visit_post(v, v->call.me);
    struct tsr_word *word = &v->own->word;
    uint64_t s = v->call.sequence;
    uint32_t free = s < TSR_THREAD_SLOTS ? 0 : value_of(s - TSR_THREAD_SLOTS, TSR_PHASE_CLOSED);
    for (int turn = 0;; turn += turn < SPINS + 4) {
        uint32_t value = tsr__word_get(word);
        if (value == free)
            return TSR_OK;
        if (tsr__aborted(&v->hub->abort))
            return tsr__abort_status(&v->hub->abort);
        double left = v->call.deadline - tsr__now();
        if (left <= 0)
            return tsr__hub_give_up(
                v->hub,
                tsr_fail(TSR_EPEER, "rank %u: more than %d calls of '%s' in flight for %g s",
                         v->call.rank, TSR_THREAD_SLOTS, v->call.comm->name, v->world->timeout_s));
        pause_for(word, value, turn, left);
    }
}

/* ---- the frame of every call ----------------------------------------------------------------- */

bool tsr__visit_has(const struct tsr_visit *v, uint32_t member)
{
    if (member == v->call.me)
        return false;
    return v->call.sig.kind != TSR_SEND ||
           tsr__messages_count(v->messages, v->n_messages, true, member) > 0 ||
           tsr__messages_count(v->messages, v->n_messages, false, member) > 0;
}

static tsr_status pin(struct tsr_visit *v, uint32_t member)
{
    struct tsr_post *post = tsr__visit_post(v, member);
    (void)atomic_fetch_add(&post->readers, 1);
    if (!tsr__aborted(&v->hub->abort))
        return TSR_OK;
    (void)atomic_fetch_sub(&post->readers, 1);
    return tsr__abort_status(&v->hub->abort);
}

static void unpin_all(struct tsr_visit *v)
{
    for (uint32_t j = 0; j < v->n_entered; j++)
        if (tsr__visit_has(v, j))
            (void)atomic_fetch_sub(&tsr__visit_post(v, j)->readers, 1);
    v->n_entered = 0;
}

tsr_status tsr__visit_enter(struct tsr_visit *v)
{
    tsr__visit_set(v, TSR_PHASE_ARRIVED);
    for (uint32_t j = 0; j < v->call.n; j++, v->n_entered++) {
        if (!tsr__visit_has(v, j))
            continue;
        TSR_TRY(tsr__visit_wait(v, j, TSR_PHASE_ARRIVED));
        TSR_TRY(pin(v, j));
        tsr_status status = tsr__signature_check(&v->call, j, &tsr__visit_post(v, j)->sig);
        if (status != TSR_OK) {
            (void)atomic_fetch_sub(&tsr__visit_post(v, j)->readers, 1);
            return tsr__hub_give_up(v->hub, status);
        }
    }
    return TSR_OK;
}

static tsr_status wait_all(struct tsr_visit *v, enum tsr_thread_phase phase)
{
    for (uint32_t j = 0; j < v->call.n; j++)
        if (tsr__visit_has(v, j))
            TSR_TRY(tsr__visit_wait(v, j, phase));
    return TSR_OK;
}

tsr_status tsr__visit_leave(struct tsr_visit *v, tsr_status status)
{
    unpin_all(v);
    if (status == TSR_OK) {
        tsr__visit_set(v, TSR_PHASE_READ);
        status = wait_all(v, TSR_PHASE_READ);
    }
    if (status == TSR_OK) {
        tsr__visit_set(v, TSR_PHASE_CLOSED);
        return TSR_OK;
    }
    while (atomic_load(&v->own->readers) != 0)
        (void)sched_yield();
    return status;
}
