/* stream.c: streams and events of the stand-in: a thread and a one-way queue for each stream, a
 * word for each event. The host releases, the stream acquires; what the stream says back (how far
 * it is) is relaxed and orders nothing, but for events that are recorded and waited for.
 *
 * [Note: records stay] A record may still be waited for by queued work when its event is recorded
 * again, by another stream even, or destroyed; counting who waits would order the streams. So
 * records are kept until the process ends.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/standin/capture.h"
#include "tests/standin/impl.h"

enum { DEPTH = 4096, MAX_STREAMS = 1024 };

struct work {
    tsr_standin_fn run;
    bool is_order;                     /* an event's: no delay, not counted */
    _Alignas(16) unsigned char data[]; /* the work's copy */
};

struct CUstream_st {
    pthread_t thread;
    sem_t ready;
    _Atomic(struct work *) slots[DEPTH];
    uint64_t pushed; /* of the host's thread */
    _Atomic uint64_t ran;
    uint64_t random;
    int priority;
    struct tsr_standin_place place; /* while it is captured */
};

/* One cudaEventRecord(). */
struct record {
    _Atomic bool done;
    double seconds; /* when */
    _Atomic(struct record *) next_kept;
};
static _Atomic(struct record *) kept; /* [Note: records stay] */

struct CUevent_st {
    _Atomic(struct record *)
        last; /* relaxed: whoever waits for another thread's record orders it */
    unsigned flags;
    struct tsr_standin_place place; /* if it was last recorded by a captured stream */
};

struct tsr_standin_place *tsr_standin_place_of(cudaStream_t s)
{
    return &s->place;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void doze(unsigned *turns)
{
    if (++*turns < 50)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* ---- the queue ---------------------------------------------------------------------------------
 */

/* xorshift64*: what a stream does by chance follows from the seed. */
static uint64_t chance(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717) >> 33;
}

static void delay(cudaStream_t s)
{
    uint64_t longest = tsr_standin()->delay_us;
    if (!longest || chance(&s->random) % 4)
        return;
    uint64_t us = chance(&s->random) % longest;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1000000),
                                 .tv_nsec = (long)(us % 1000000) * 1000},
              NULL);
}

static int enter_work(void)
{
    static struct tsr_standin_entry entry = {.name = "(work)"};
    return tsr_standin_enter(&entry);
}

/* What is queued behind a failure is dropped, but for events: whoever waits sees the failure. */
static void run_work(cudaStream_t s, struct work *w)
{
    int error = 0;
    if (!w->is_order) {
        if (tsr_standin_sticky() != cudaSuccess)
            return;
        delay(s);
        error = enter_work();
    }
    if (!error)
        error = w->run(w->data);
    if (error)
        tsr_standin_stick(error);
}

int tsr_standin_run_node(tsr_standin_fn run, void *data)
{
    int error = enter_work();
    return error ? error : run(data);
}

static void *stream_main(void *user)
{
    cudaStream_t s = user;
    for (uint64_t i = 0;; i++) {
        while (sem_wait(&s->ready) != 0) /* a signal */
            ;
        struct work *w = atomic_load_explicit(&s->slots[i % DEPTH], memory_order_acquire);
        if (!w)
            return NULL;
        run_work(s, w);
        free(w);
        atomic_store_explicit(&s->ran, i + 1, memory_order_relaxed);
    }
}

static void push(cudaStream_t s, struct work *w)
{
    unsigned turns = 0;
    while (s->pushed - atomic_load_explicit(&s->ran, memory_order_relaxed) >= DEPTH)
        doze(&turns);
    atomic_store_explicit(&s->slots[s->pushed % DEPTH], w, memory_order_release);
    s->pushed++;
    sem_post(&s->ready);
}

static cudaError_t enqueue(cudaStream_t s, tsr_standin_fn run, const void *data, size_t bytes,
                           bool is_order)
{
    struct work *w = malloc(sizeof *w + bytes);
    if (!w)
        return tsr_standin_note(cudaErrorMemoryAllocation);
    w->run = run;
    w->is_order = is_order;
    if (bytes)
        memcpy(w->data, data, bytes);
    if (s) {
        push(s, w);
        return cudaSuccess;
    }
    int error = w->run(w->data);
    free(w);
    return (cudaError_t)error;
}

cudaError_t tsr_standin_enqueue(cudaStream_t s, tsr_standin_fn run, const void *data, size_t bytes)
{
    if (s && s->place.capture)
        return tsr_standin_capture_work(&s->place, run, data, bytes, false);
    return enqueue(s, run, data, bytes, false);
}

cudaError_t tsr_standin_enqueue_in_order(cudaStream_t s, tsr_standin_fn run, const void *data,
                                         size_t bytes)
{
    if (s && s->place.capture)
        return tsr_standin_capture_work(&s->place, run, data, bytes, true);
    return enqueue(s, run, data, bytes, false);
}

bool tsr_standin_is_captured(cudaStream_t s)
{
    return s && s->place.capture;
}

cudaError_t tsr_standin_enqueue_always(cudaStream_t s, tsr_standin_fn run, const void *data,
                                       size_t bytes)
{
    return enqueue(s, run, data, bytes, true);
}

/* ---- streams -----------------------------------------------------------------------------------
 */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    TSR_STANDIN_CUDA(cudaDeviceGetStreamPriorityRange);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    static _Atomic uint64_t n;
    TSR_STANDIN_CUDA(cudaStreamCreateWithPriority);
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5)
        return tsr_standin_note(cudaErrorInvalidValue);
    cudaStream_t s = calloc(1, sizeof *s);
    if (!s)
        return tsr_standin_note(cudaErrorMemoryAllocation);
    s->priority = priority;
    s->random = (tsr_standin()->seed + 1) * UINT64_C(0x9e3779b97f4a7c15) +
                atomic_fetch_add_explicit(&n, 1, memory_order_relaxed) + 1;
    if (sem_init(&s->ready, 0, 0) != 0 || pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        free(s);
        return tsr_standin_note(cudaErrorUnknown);
    }
    atomic_fetch_add_explicit(&tsr_standin_objects, 1, memory_order_relaxed);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

/* After its work. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    static struct tsr_standin_entry entry = {.name = "cudaStreamDestroy"};
    int error = tsr_standin_enter(&entry);
    push(s, NULL);
    pthread_join(s->thread, NULL);
    sem_destroy(&s->ready);
    tsr_standin_place_clear(&s->place);
    free(s);
    atomic_fetch_sub_explicit(&tsr_standin_objects, 1, memory_order_relaxed);
    return (cudaError_t)error;
}

/* A capture here takes no notice of other threads. */
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static _Thread_local enum cudaStreamCaptureMode of_thread = cudaStreamCaptureModeGlobal;
    TSR_STANDIN_CUDA(cudaThreadExchangeStreamCaptureMode);
    enum cudaStreamCaptureMode before = of_thread;
    of_thread = *mode;
    *mode = before;
    return cudaSuccess;
}

static int tell(void *data)
{
    atomic_store_explicit(*(_Atomic bool **)data, true, memory_order_release);
    return 0;
}

void tsr_standin_wait(cudaStream_t s)
{
    _Atomic bool done = false, *address = &done;
    unsigned turns = 0;
    if (enqueue(s, tell, &address, sizeof address, true) != cudaSuccess)
        return;
    while (!atomic_load_explicit(&done, memory_order_acquire))
        doze(&turns);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    TSR_STANDIN_CUDA(cudaStreamSynchronize);
    if (s && s->place.capture)
        return tsr_standin_spoil(&s->place, cudaErrorStreamCaptureUnsupported);
    if (s) /* what is launched on the NULL stream has run at once */
        tsr_standin_wait(s);
    return tsr_standin_note(tsr_standin_sticky());
}

/* ---- events ------------------------------------------------------------------------------------
 */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    TSR_STANDIN_CUDA(cudaEventCreateWithFlags);
    cudaEvent_t e = calloc(1, sizeof *e);
    if (!e)
        return tsr_standin_note(cudaErrorMemoryAllocation);
    e->flags = flags;
    atomic_fetch_add_explicit(&tsr_standin_objects, 1, memory_order_relaxed);
    *out = e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    static struct tsr_standin_entry entry = {.name = "cudaEventDestroy"};
    int error = tsr_standin_enter(&entry);
    tsr_standin_place_clear(&e->place);
    free(e);
    atomic_fetch_sub_explicit(&tsr_standin_objects, 1, memory_order_relaxed);
    return (cudaError_t)error;
}

/* Relaxed: a host that waits for an event of another must come after its record by what the two
 * tell each other, else the sanitizer shows it. */
static struct record *last_of(cudaEvent_t e)
{
    return atomic_load_explicit(&e->last, memory_order_relaxed);
}

static struct record *new_record(void)
{
    struct record *r = calloc(1, sizeof *r);
    struct record *first = atomic_load_explicit(&kept, memory_order_relaxed);
    if (!r)
        return NULL;
    do
        atomic_store_explicit(&r->next_kept, first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&kept, &first, r, memory_order_relaxed,
                                                  memory_order_relaxed));
    return r;
}

static int record(void *data)
{
    struct record *r = *(struct record **)data;
    r->seconds = seconds_now();
    atomic_store_explicit(&r->done, true, memory_order_release);
    return 0;
}

/* An event that was never recorded is done. */
static bool is_done(const struct record *r)
{
    return !r || atomic_load_explicit(&r->done, memory_order_acquire);
}

static int wait_for(void *data)
{
    const struct record *r = *(struct record **)data;
    unsigned turns = 0;
    while (!is_done(r))
        doze(&turns);
    return 0;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    TSR_STANDIN_CUDA(cudaEventRecord);
    if (s && s->place.capture)
        return tsr_standin_capture_record(&e->place, &s->place);
    if (e->place.capture) /* no longer */
        tsr_standin_place_clear(&e->place);
    struct record *r = new_record();
    if (!r)
        return tsr_standin_note(cudaErrorMemoryAllocation);
    atomic_store_explicit(&e->last, r, memory_order_relaxed);
    return enqueue(s, record, &r, sizeof r, true);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    TSR_STANDIN_CUDA(cudaStreamWaitEvent);
    struct record *r = last_of(e);
    if (flags != cudaEventWaitDefault)
        return tsr_standin_note(cudaErrorInvalidValue);
    if ((s && s->place.capture) || e->place.capture)
        return tsr_standin_capture_wait(&s->place, &e->place, s);
    return enqueue(s, wait_for, &r, sizeof r, true);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    TSR_STANDIN_CUDA(cudaEventQuery);
    if (e->place.capture)
        return tsr_standin_spoil(&e->place, cudaErrorCapturedEvent);
    return is_done(last_of(e)) ? cudaSuccess : tsr_standin_note(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    TSR_STANDIN_CUDA(cudaEventSynchronize);
    if (e->place.capture)
        return tsr_standin_spoil(&e->place, cudaErrorCapturedEvent);
    struct record *r = last_of(e);
    wait_for(&r);
    return tsr_standin_note(tsr_standin_sticky());
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    TSR_STANDIN_CUDA(cudaEventElapsedTime);
    const struct record *a = last_of(from), *b = last_of(to);
    if ((from->flags | to->flags) & cudaEventDisableTiming || !a || !b)
        return tsr_standin_note(cudaErrorInvalidResourceHandle);
    if (!is_done(a) || !is_done(b))
        return cudaErrorNotReady;
    *ms = (float)((b->seconds - a->seconds) * 1e3);
    return cudaSuccess;
}
