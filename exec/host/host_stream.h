/* host_stream.h: a stream of the host device: a thread that runs queued tasks in order. Private to
 * the host device.
 *
 * The queue has one writer (the host) and one reader (the stream). The host releases, the stream
 * acquires; what the stream says back (how far it is) is relaxed, so that it orders nothing.
 */
#ifndef TSR_HOST_STREAM_H
#define TSR_HOST_STREAM_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "exec/host/host_device.h"

/* A task and everything that it points to, in one allocation. */
struct tsr_queued {
    struct tsr_task task;
    struct tsr_work work;
    struct tsr_instr instr;
    double scalars[TSR_N_SCALARS];
};
/* NULL: out of memory. Freed with free(). */
struct tsr_queued *tsr_queued_new(const struct tsr_task *task);

struct tsr_host_stream {
    pthread_t thread;
    sem_t ready; /* one post per task */
    _Atomic(struct tsr_queued *) *slots;
    unsigned depth;
    uint64_t pushed;      /* host only */
    _Atomic uint64_t ran; /* relaxed: the host waits for room, nothing else */
    _Atomic bool stop;
    void (*run)(void *user, struct tsr_host_stream *stream, struct tsr_queued *queued);
    void *user;
    uint16_t index;
    uint64_t random; /* of the jitter */
};

tsr_status tsr_host_stream_start(struct tsr_host_stream *stream, unsigned depth) TSR_MUST_USE;
/* Blocks while the queue is full. Takes over `queued`. */
void tsr_host_stream_push(struct tsr_host_stream *stream, struct tsr_queued *queued);
/* Runs what is queued, then ends the thread. */
void tsr_host_stream_stop(struct tsr_host_stream *stream);

#endif
