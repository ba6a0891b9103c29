/* host_event.h: the events of the host device: one word each in a table that event numbers wrap
 * around in. Private to the host device.
 *
 * Done means: the word holds the event's number, or a later one. Recording releases, waiting
 * acquires, so an event carries everything that its stream had done. Waiters sleep in the kernel.
 */
#ifndef TSR_HOST_EVENT_H
#define TSR_HOST_EVENT_H

#include <stdatomic.h>

#include "engine/program/base.h"

struct tsr_host_events {
    _Atomic uint32_t *done; /* [TSR_HOST_EVENTS] */
    _Atomic bool aborted;
};

/* More than all queues of a device together can hold: when a number comes around again, its
 * predecessor in the same word is long done. */
enum { TSR_HOST_EVENTS = 1 << 20 };

tsr_status tsr_host_events_create(struct tsr_host_events *events) TSR_MUST_USE;
void tsr_host_events_destroy(struct tsr_host_events *events);
void tsr_host_event_record(struct tsr_host_events *events, uint32_t event);
/* False: aborted meanwhile. */
bool tsr_host_event_wait(struct tsr_host_events *events, uint32_t event);
/* Wakes nobody at once: waiters look every few milliseconds. */
void tsr_host_events_abort(struct tsr_host_events *events);

#endif
