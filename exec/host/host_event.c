/* host_event.c: words that count, and futexes to sleep on them. */
#include "exec/host/host_event.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

tsr_status tsr_host_events_create(struct tsr_host_events *events)
{
    events->done = calloc(TSR_HOST_EVENTS, sizeof *events->done);
    atomic_init(&events->aborted, false);
    if (!events->done)
        return tsr_no_memory("events of a device");
    return TSR_OK;
}

void tsr_host_events_destroy(struct tsr_host_events *events)
{
    free(events->done);
    events->done = NULL;
}

static _Atomic uint32_t *word_of(struct tsr_host_events *events, uint32_t event)
{
    return &events->done[event % TSR_HOST_EVENTS];
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
