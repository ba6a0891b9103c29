/* events.c: events of the program in CUDA's, which are used again; pairs that take times. */
#include "exec/cuda/gpu/events.h"

#include <stdlib.h>

#include "exec/cuda/gpu/context.h"

tsr_status tsr_cuda_events_create(struct tsr_cuda_events *events)
{
    events->slots = calloc(TSR_CUDA_EVENTS, sizeof *events->slots);
    return events->slots ? TSR_OK : tsr_no_memory("events");
}

void tsr_cuda_events_destroy(struct tsr_cuda_events *events)
{
    for (int i = 0; events->slots && i < TSR_CUDA_EVENTS; i++)
        if (events->slots[i].event)
            (void)cudaEventDestroy(events->slots[i].event);
    free(events->slots);
    events->slots = NULL;
}

struct tsr_cuda_event *tsr_cuda_event_slot(struct tsr_cuda_events *events, uint32_t number)
{
    return &events->slots[number % TSR_CUDA_EVENTS];
}

/* Numbers only grow, but for the wrap after 2^32 of them; a slot goes to a later event when the
 * earlier one is done. */
tsr_status tsr_cuda_event_find(struct tsr_cuda_events *events, uint32_t number,
                               struct tsr_cuda_event **out)
{
    struct tsr_cuda_event *e = tsr_cuda_event_slot(events, number);
    bool later = e->number != 0 && (int32_t)(e->number - number) > 0;
    *out = NULL;
    if (later || (e->number == number && e->done))
        return TSR_OK;
    if (e->number != number)
        return tsr_fail(TSR_EDEFECT, "event %u is waited for and was not recorded", number);
    *out = e;
    return TSR_OK;
}

/* ---- timers ---------------------------------------------------------------------------------- */

tsr_status tsr_cuda_timer_take(struct tsr_cuda_timers *timers, cudaEvent_t *out)
{
    if (timers->n_free == 0) {
        TSR_CUDA("an event", cudaEventCreateWithFlags(out, cudaEventDefault));
        return TSR_OK;
    }
    *out = timers->free[--timers->n_free];
    return TSR_OK;
}

void tsr_cuda_timer_give(struct tsr_cuda_timers *timers, cudaEvent_t event)
{
    if (!TSR_PUSH(timers->free, timers->n_free, timers->cap_free, event))
        (void)cudaEventDestroy(event);
}

void tsr_cuda_timers_fini(struct tsr_cuda_timers *timers)
{
    for (size_t i = 0; i < timers->n_free; i++)
        (void)cudaEventDestroy(timers->free[i]);
    free(timers->free);
    *timers = (struct tsr_cuda_timers){0};
}
