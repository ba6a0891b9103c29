/* watchdog.c: the thread that looks, and the collectives that it has been told of. The age of a
 * collective counts from when it was enqueued or from when another one ended, whatever is later: a
 * host that runs ahead of the GPU is no failure.
 */
#include "exec/cuda/comms/watchdog.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "exec/base/word.h"

enum { NOTES = 128, TEXT = 96, WHY = 512 };
static const double look_every_s = 0.05;

struct note {
    cudaEvent_t event; /* made when first used */
    double since;
    char what[TEXT];
};

struct tsr_watchdog {
    struct tsr_watchdog_config config;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    size_t first, n; /* a ring: [first, first + n) */
    struct note notes[NOTES];
    double moved; /* when a note was last seen done */
};

/* ---- notes ----------------------------------------------------------------------------------- */

static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

static tsr_status add_note(struct tsr_watchdog *w, cudaStream_t stream, const char *what)
{
    struct note *note = &w->notes[(w->first + w->n) % NOTES];
    if (!note->event)
        TSR_CUDA("an event", cudaEventCreateWithFlags(&note->event, cudaEventDisableTiming));
    TSR_CUDA("an event", cudaEventRecord(note->event, stream));
    note->since = tsr__now();
    (void)snprintf(note->what, sizeof note->what, "%s", what);
    w->n++;
    return TSR_OK;
}

/* When there are too many the oldest ones tell enough: the new one is not noted. */
tsr_status tsr_watchdog_note(struct tsr_watchdog *w, cudaStream_t stream, const char *what)
{
    if (is_captured(stream))
        return TSR_OK;
    (void)pthread_mutex_lock(&w->lock);
    tsr_status status = w->n < NOTES ? add_note(w, stream, what) : TSR_OK;
    (void)pthread_mutex_unlock(&w->lock);
    return status;
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Done ones are dropped from the front. On another stream a later one may be done before: it is
 * seen when its turn comes, and counts as movement then. */
static tsr_status look_at_notes(struct tsr_watchdog *w)
{
    const struct tsr_comms *comms = w->config.comms;
    double now = tsr__now();
    for (; w->n > 0; w->first = (w->first + 1) % NOTES, w->n--) {
        struct note *note = &w->notes[w->first];
        cudaError_t error = cudaEventQuery(note->event);
        if (error == cudaErrorNotReady) {
            (void)cudaGetLastError();
            double since = note->since > w->moved ? note->since : w->moved;
            if (now - since < comms->timeout_s)
                return TSR_OK;
            return tsr_fail(TSR_EPEER,
                            "rank %u: %s has not ended within %g s: another rank is lost, or does "
                            "not come",
                            comms->world->rank, note->what, comms->timeout_s);
        }
        if (error != cudaSuccess)
            return tsr_cuda_error(error, note->what);
        w->moved = now;
    }
    return TSR_OK;
}

static tsr_status look(struct tsr_watchdog *w)
{
    struct tsr_comms *comms = w->config.comms;
    TSR_TRY(comms->world->ops->check(comms->world));
    TSR_TRY(comms->ops->poll(comms));
    (void)pthread_mutex_lock(&w->lock);
    tsr_status status = look_at_notes(w);
    (void)pthread_mutex_unlock(&w->lock);
    return status;
}

/* True: asked to stop. */
static bool sleep_for(struct tsr_watchdog *w, double seconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    long ns = until.tv_nsec + (long)((seconds - (double)(long)seconds) * 1e9);
    until.tv_sec += (long)seconds + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    (void)pthread_mutex_lock(&w->lock);
    while (!w->stop && pthread_cond_timedwait(&w->wake, &w->lock, &until) == 0)
        ;
    bool stop = w->stop;
    (void)pthread_mutex_unlock(&w->lock);
    return stop;
}

/* The host's waits end first, so that it does not enqueue more; then the other ranks hear of it;
 * then what runs on the GPU is ended, which may take a while. */
static void bark(struct tsr_watchdog *w, tsr_status status, const char *why)
{
    struct tsr_comms *comms = w->config.comms;
    if (w->config.lost)
        w->config.lost(w->config.user, status, why);
    comms->world->ops->abort(comms->world, status, why);
    comms->ops->abort(comms, status, why);
    if (!sleep_for(w, w->config.grace_s) && w->config.stuck)
        w->config.stuck(w->config.user, status, why);
}

static void *watch(void *user)
{
    struct tsr_watchdog *w = user;
    enum cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
    char why[WHY];
    (void)cudaSetDevice(w->config.gpu);
    (void)cudaThreadExchangeStreamCaptureMode(&relaxed); /* captures of others stay valid */
    while (!sleep_for(w, look_every_s)) {
        tsr_status status = look(w);
        if (status == TSR_OK)
            continue;
        (void)snprintf(why, sizeof why, "%s", tsr_error_text());
        bark(w, status, why);
        return NULL;
    }
    return NULL;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

tsr_status tsr_watchdog_start(const struct tsr_watchdog_config *config, struct tsr_watchdog **out)
{
    *out = NULL;
    pthread_condattr_t monotonic;
    struct tsr_watchdog *w = calloc(1, sizeof *w);
    if (!w)
        return tsr_no_memory("a watchdog");
    w->config = *config;
    if (w->config.grace_s <= 0)
        w->config.grace_s = 15;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (pthread_create(&w->thread, NULL, watch, w) != 0) {
        free(w);
        return tsr_fail(TSR_EBACKEND, "a thread for the watchdog cannot be started");
    }
    *out = w;
    return TSR_OK;
}

void tsr_watchdog_stop(struct tsr_watchdog *w)
{
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->stop = true;
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    for (size_t i = 0; i < NOTES; i++)
        if (w->notes[i].event)
            (void)cudaEventDestroy(w->notes[i].event);
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}
