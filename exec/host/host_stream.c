/* host_stream.c: what streams of the host device are made of: a thread with a one-way queue, and
 * the events that order them.
 */
#include "exec/host/host_device.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- a task of one's own --------------------------------------------------------------------- */

/* Cuts pieces off one allocation. */
struct pieces {
    char *next;
};

static size_t rounded(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

static void *cut(struct pieces *p, const void *from, size_t bytes)
{
    char *to = p->next;
    if (bytes == 0)
        return NULL;
    memcpy(to, from, bytes);
    p->next += rounded(bytes);
    return to;
}

struct tsr_queued *tsr_queued_new(const struct tsr_task *task)
{
    const struct tsr_work *work = task->call.work;
    size_t views = task->call.n_views * sizeof *task->call.views;
    size_t args = work ? work->n_args * sizeof *work->args : 0;
    size_t collectives = task->n_collectives * sizeof *task->collectives;
    size_t messages = task->n_messages * sizeof *task->messages;
    struct tsr_queued *q = malloc(rounded(sizeof *q) + rounded(views) + rounded(args) +
                                  rounded(collectives) + rounded(messages));
    if (!q)
        return NULL;
    struct pieces p = {(char *)q + rounded(sizeof *q)};
    q->task = *task;
    q->task.call.views = cut(&p, task->call.views, views);
    q->task.collectives = cut(&p, task->collectives, collectives);
    q->task.messages = cut(&p, task->messages, messages);
    if (task->instr) {
        q->instr = *task->instr;
        q->task.instr = &q->instr;
    }
    if (work) {
        q->work = *work;
        q->work.args = cut(&p, work->args, args);
        q->task.call.work = &q->work;
        q->instr.work = &q->work;
    }
    if (task->call.scalars) {
        memcpy(q->scalars, task->call.scalars, sizeof q->scalars);
        q->task.call.scalars = q->scalars;
    }
    return q;
}

/* ---- the queue ------------------------------------------------------------------------------- */

static void *worker(void *user)
{
    struct tsr_host_stream *s = user;
    for (uint64_t i = 0;; i++) {
        while (sem_wait(&s->ready) != 0) /* a signal */
            ;
        _Atomic(struct tsr_queued *) *slot = &s->slots[i % s->depth];
        struct tsr_queued *queued = atomic_load_explicit(slot, memory_order_acquire);
        if (!queued)
            return NULL;
        s->run(s->user, s, queued);
        if (queued != &s->tail)
            free(queued);
        atomic_store_explicit(&s->ran, i + 1, memory_order_relaxed);
    }
}

tsr_status tsr_host_stream_start(struct tsr_host_stream *s, unsigned depth)
{
    s->depth = depth;
    s->slots = calloc(depth, sizeof *s->slots);
    if (!s->slots)
        return tsr_no_memory("the queue of a stream");
    if (sem_init(&s->ready, 0, 0) != 0 || pthread_create(&s->thread, NULL, worker, s) != 0) {
        free(s->slots);
        s->slots = NULL;
        return tsr_fail(TSR_EBACKEND, "a thread for stream %u cannot be started", s->index);
    }
    return TSR_OK;
}

void tsr_host_stream_push(struct tsr_host_stream *s, struct tsr_queued *queued)
{
    while (s->pushed - atomic_load_explicit(&s->ran, memory_order_relaxed) >= s->depth)
        usleep(50);
    atomic_store_explicit(&s->slots[s->pushed % s->depth], queued, memory_order_release);
    s->pushed++;
    sem_post(&s->ready);
}

void tsr_host_stream_stop(struct tsr_host_stream *s)
{
    if (!s->slots)
        return;
    tsr_host_stream_push(s, NULL);
    pthread_join(s->thread, NULL);
    sem_destroy(&s->ready);
    free(s->slots);
    s->slots = NULL;
}

/* ---- events: words that count, and futexes to sleep on them ---------------------------------- */

tsr_status tsr_host_events_create(uint32_t n, struct tsr_host_events *events)
{
    events->n = n;
    events->done = malloc(n * sizeof *events->done);
    atomic_init(&events->aborted, false);
    if (!events->done)
        return tsr_no_memory("events of a device");
    for (uint32_t i = 0; i < n; i++)
        atomic_init(&events->done[i], 0);
    return TSR_OK;
}

void tsr_host_events_destroy(struct tsr_host_events *events)
{
    free(events->done);
    events->done = NULL;
}

static _Atomic uint32_t *word_of(struct tsr_host_events *events, uint32_t event)
{
    return &events->done[event % events->n];
}

/* Numbers only grow, but for the wrap after 2^32 of them. */
static bool reached(uint32_t now, uint32_t event)
{
    return (int32_t)(now - event) >= 0 && now != 0;
}

void tsr_host_event_record(struct tsr_host_events *events, uint32_t event)
{
    _Atomic uint32_t *word = word_of(events, event);
    atomic_store_explicit(word, event, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

bool tsr_host_event_wait(struct tsr_host_events *events, uint32_t event)
{
    const struct timespec pause = {.tv_nsec = 5000000}; /* to see an abort */
    _Atomic uint32_t *word = word_of(events, event);
    for (;;) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (reached(now, event))
            return true;
        if (atomic_load_explicit(&events->aborted, memory_order_acquire))
            return false;
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, now, &pause, NULL, 0);
    }
}

void tsr_host_events_abort(struct tsr_host_events *events)
{
    atomic_store_explicit(&events->aborted, true, memory_order_release);
}
