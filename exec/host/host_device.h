/* host_device.h: a device made of threads: every stream is a worker with a one-way queue, memory is
 * a reserved range of addresses, events are counters.
 *
 * Made so that a missing wait shows. No lock, queue or counter is shared by two streams, and
 * nothing flows from a stream back to the host but what events and waits say; under ThreadSanitizer
 * every task announces its operands. So two streams that lack an order are a race that can be seen.
 */
#ifndef TSR_HOST_DEVICE_H
#define TSR_HOST_DEVICE_H

#include <time.h>

#include "exec/executor/executor.h"
#include "exec/host/host_event.h"
#include "exec/host/host_space.h"

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

/* ---- one rank on the host: such a device with an executor on it -------------------------------
 */

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
