/* events.h: the events of a program on a GPU: their numbers only grow, CUDA's events are few and
 * used again. Private to the CUDA device.
 */
#ifndef TSR_CUDA_EVENTS_H
#define TSR_CUDA_EVENTS_H

#include <cuda_runtime_api.h>

#include "engine/program/base.h"

/* More than may be recorded and not done at one time without the host waiting. */
enum { TSR_CUDA_EVENTS = 1 << 13 };

struct tsr_cuda_event {
    uint32_t number; /* of the program; 0: none yet */
    bool done;       /* is known to be */
    cudaEvent_t event;
    cudaEvent_t shared; /* the end of the graph in which it was recorded; NULL: `event` is it */
    uint64_t launch;    /* of that graph; 0: none */
};

static inline cudaEvent_t tsr_cuda_event_of(const struct tsr_cuda_event *e)
{
    return e->shared ? e->shared : e->event;
}

struct tsr_cuda_events {
    struct tsr_cuda_event *slots; /* [TSR_CUDA_EVENTS] */
};

tsr_status tsr_cuda_events_create(struct tsr_cuda_events *events) TSR_MUST_USE;
void tsr_cuda_events_destroy(struct tsr_cuda_events *events);
/* The place of an event; it may still be an earlier one's. */
struct tsr_cuda_event *tsr_cuda_event_slot(struct tsr_cuda_events *events, uint32_t number);
/* The event, to be waited for. NULL in *out: it is done. TSR_EDEFECT: it was not recorded. */
tsr_status tsr_cuda_event_find(struct tsr_cuda_events *events, uint32_t number,
                               struct tsr_cuda_event **out) TSR_MUST_USE;

/* Events that measure time, made as they are needed and kept for the next one. */
struct tsr_cuda_timers {
    cudaEvent_t *free;
    size_t n_free, cap_free;
};
tsr_status tsr_cuda_timer_take(struct tsr_cuda_timers *timers, cudaEvent_t *out) TSR_MUST_USE;
/* Takes it over; one that cannot be kept is destroyed. */
void tsr_cuda_timer_give(struct tsr_cuda_timers *timers, cudaEvent_t event);
void tsr_cuda_timers_fini(struct tsr_cuda_timers *timers);

#endif
