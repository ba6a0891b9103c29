/* host_device.h: a device made of threads: every stream is a worker with a one-way queue, memory is
 * a reserved range of addresses, events are counters.
 *
 * Made so that a missing wait shows. No lock, queue or counter is shared by two streams, and
 * nothing flows from a stream back to the host but what events and waits say; under ThreadSanitizer
 * every task announces its operands. So two streams that lack an order are a race that can be seen.
 */
#ifndef TSR_EXEC_HOST_DEVICE_H
#define TSR_EXEC_HOST_DEVICE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/program/base.h"
#include "exec/executor/executor.h"

/* ---- addresses ------------------------------------------------------------------------------- */

/* The address space of a host device, of which segments are backed and given back.
 * What is not backed traps.
 *
 * Device addresses may lie far apart (expandable segments reserve a range each), so the space is
 * made of slots of up to 1 TiB of addresses, reserved when the first byte of one is backed. */

enum { TSR_HOST_SLOTS = 64 };

struct tsr_host_space {
    struct {
        uint64_t number; /* address / slot size */
        char *base;
    } slots[TSR_HOST_SLOTS];
    unsigned n_slots;
    uint64_t slot_bytes;   /* a power of two */
    uint64_t mapped, peak; /* bytes that are backed now; the most */
};

/* ranks: how many devices the process may have at once; slots get smaller the more there are. */
void tsr_host_space_init(struct tsr_host_space *space, uint32_t ranks);
void tsr_host_space_fini(struct tsr_host_space *space);
/* address and bytes: multiples of a page. TSR_EOOM: the machine has no memory; TSR_EUNSUPPORTED:
 * too many slots, or a segment that lies in two. */
tsr_status tsr_host_space_map(struct tsr_host_space *space, uint64_t address,
                              uint64_t bytes) TSR_MUST_USE;
tsr_status tsr_host_space_unmap(struct tsr_host_space *space, uint64_t address,
                                uint64_t bytes) TSR_MUST_USE;
/* NULL: the slot was never backed. */
void *tsr_host_space_at(const struct tsr_host_space *space, uint64_t address);

/* ---- events ---------------------------------------------------------------------------------- */

/* The events of the host device: one word each in a table that event numbers wrap
 * around in.
 *
 * Done means: the word holds the event's number, or a later one. Recording releases, waiting
 * acquires, so an event carries everything that its stream had done. Waiters sleep in the kernel.
 */

struct tsr_host_events {
    _Atomic uint32_t *done; /* [n] */
    uint32_t n;             /* a power of two */
    _Atomic bool aborted;
};

/* As many as all queues of a device together can hold by default: when a number comes around again,
 * its predecessor in the same word is long done. */
enum { TSR_HOST_EVENTS = 1 << 18 };

/* All of the table is touched now, so that a run of many steps takes what one of few takes. */
tsr_status tsr_host_events_create(uint32_t n, struct tsr_host_events *events) TSR_MUST_USE;
void tsr_host_events_destroy(struct tsr_host_events *events);
void tsr_host_event_record(struct tsr_host_events *events, uint32_t event);
/* False: aborted meanwhile. */
bool tsr_host_event_wait(struct tsr_host_events *events, uint32_t event);
/* Wakes nobody at once: waiters look every few milliseconds. */
void tsr_host_events_abort(struct tsr_host_events *events);

/* ---- the device ------------------------------------------------------------------------------ */

struct tsr_host_device_config {
    struct tsr_world *world; /* borrowed; collectives go there. NULL: a world of one */
    unsigned queue_depth;    /* tasks that a stream may have waiting; 0: 4096 */
    uint32_t jitter_us;      /* longest random delay before a task; 0: none */
    uint64_t jitter_seed;
    bool serial;           /* tasks run inside submit(), on the host thread */
    tsr_task_done_fn done; /* may be NULL */
    void *user;
};

tsr_status tsr_host_device_create(const struct tsr_host_device_config *config,
                                  struct tsr_device **out) TSR_MUST_USE;

enum { TSR_HOST_STREAMS = 64 };
struct tsr_host_stream;

/* The device from inside, for host_*.c and for tests.
 *
 * The host thread alone maps memory, makes streams and pushes tasks; a stream writes its own events
 * and what is atomic here. `text` is written once, by whoever sets `failing` first, before
 * `failed`: who has seen `failed` may read it. Nothing else goes from one stream to another. */
struct tsr_host_device {
    struct tsr_device base;
    struct tsr_host_device_config config;
    struct tsr_host_space space;
    struct tsr_host_events events, tails; /* the program's; one behind what a host wait waits for */
    struct tsr_host_stream *streams[TSR_HOST_STREAMS]; /* NULL: no task yet */
    uint32_t n_tails;
    struct timespec start;
    _Atomic int failed; /* enum tsr_status, once `text` is there */
    _Atomic bool failing;
    char text[512];
    _Atomic unsigned busy, peak_busy; /* workers inside a kernel or collective; the most */
};

/* ---- streams --------------------------------------------------------------------------------- */

/* A stream of the host device: a thread that runs queued tasks in order.
 *
 * The queue has one writer (the host) and one reader (the stream). The host releases, the stream
 * acquires; what the stream says back (how far it is) is relaxed, so that it orders nothing. */

/* A task and everything that it points to, in one allocation. */
struct tsr_queued {
    struct tsr_task task;
    struct tsr_work work;
    struct tsr_instr instr;
    double scalars[TSR_N_SCALARS];
};
/* NULL: out of memory. Freed with free(). */
struct tsr_queued *tsr_queued_new(const struct tsr_task *task);

/* Invariant: pushed - ran <= depth. The host writes slot pushed % depth, the worker takes slot ran
 * % depth; nobody else touches them. */
struct tsr_host_stream {
    pthread_t thread;
    sem_t ready; /* one post per task */
    _Atomic(struct tsr_queued *) *slots;
    unsigned depth;
    uint64_t pushed;      /* host only */
    _Atomic uint64_t ran; /* relaxed: the host waits for room, nothing else */
    void (*run)(void *user, struct tsr_host_stream *stream, struct tsr_queued *queued);
    void *user;
    uint16_t index;
    uint64_t random; /* of the jitter */
    struct tsr_queued
        tail; /* what a wait for the whole stream pushes: it takes no memory, so it cannot fail */
};

tsr_status tsr_host_stream_start(struct tsr_host_stream *stream, unsigned depth) TSR_MUST_USE;
/* Blocks while the queue is full. Takes over `queued`. */
void tsr_host_stream_push(struct tsr_host_stream *stream, struct tsr_queued *queued);
/* Runs what is queued, then ends the thread. */
void tsr_host_stream_stop(struct tsr_host_stream *stream);

/* ---- one rank on the host: such a device with an executor on it -------------------------------
 */

/* What a device of threads and the executor on it are made of; see struct tsr_host_device_config
 * and struct tsr_exec_config. */
struct tsr_host_rank_config {
    struct tsr_world *world; /* borrowed; NULL: a world of one */
    const struct tsr_source *source;
    size_t n_kernels;
    const struct tsr_user_kernel *kernels;
    uint32_t jitter_us;
    uint64_t jitter_seed;
    bool serial, poison, profile;
    bool verify; /* the declared operands of all that runs (verify.h); with serial only */
    struct tsr_executor *watcher; /* borrowed; NULL: none */
};

/* Destroyed through its ops. */
tsr_status tsr_host_rank_create(const struct tsr_host_rank_config *config,
                                struct tsr_executor **out) TSR_MUST_USE;

#endif
