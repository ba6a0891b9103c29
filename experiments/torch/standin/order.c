/* The order of streams, events and host: what of the device's work the host knows to be over.
 *
 * The device does nothing, so it could be called idle at any time, and it is until
 * tessera_standin_order() is called. From then on it is as far behind the host as it can be: work
 * is over when the host has waited for something that comes after it. A clock has one number per
 * stream, how many pieces of its work are over: an event keeps that of its stream, a stream that
 * waits for an event and a host that waits for one take over what the event has. So PyTorch's
 * allocator, which asks events of blocks that other streams use (record_stream), gets the same
 * answer in each run. */
#include "standin.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 64, NOT_READY = 600 };

typedef struct {
    uint64_t done[STREAMS];
} progress;

typedef struct {
    const void *handle;
    progress at;
} record; /* of an event */

static struct {
    pthread_mutex_t lock;
    int on;
    const void *streams[STREAMS]; /* [0] is the default stream; work of too many is of the last */
    size_t n_streams;
    progress of[STREAMS], host;
    record *events;
    size_t n_events, room; /* a table with open addresses, at most half full */
} order = {.lock = PTHREAD_MUTEX_INITIALIZER, .n_streams = 1};

void tessera_standin_order(void)
{
    order.on = 1;
}

/* ---- under the lock -------------------------------------------------------------------------- */

static size_t stream_of(const void *handle)
{
    size_t i = 0;
    while (i < order.n_streams && order.streams[i] != handle)
        i++;
    if (i == order.n_streams && i < STREAMS)
        order.streams[order.n_streams++] = handle;
    return i < STREAMS ? i : STREAMS - 1;
}

static void add(progress *to, const progress *from)
{
    for (size_t i = 0; i < STREAMS; i++)
        if (from->done[i] > to->done[i])
            to->done[i] = from->done[i];
}

static int is_over(const progress *c)
{
    for (size_t i = 0; i < STREAMS; i++)
        if (c->done[i] > order.host.done[i])
            return 0;
    return 1;
}

static record *slot(record *table, size_t room, const void *handle)
{
    size_t i = ((uintptr_t)handle >> 4) & (room - 1);
    while (table[i].handle && table[i].handle != handle)
        i = (i + 1) & (room - 1);
    return &table[i];
}

static void grow(void)
{
    size_t room = order.room ? 2 * order.room : 1024;
    record *table = calloc(room, sizeof *table);
    if (!table)
        abort();
    for (size_t i = 0; i < order.room; i++)
        if (order.events[i].handle)
            *slot(table, room, order.events[i].handle) = order.events[i];
    free(order.events);
    order.events = table;
    order.room = room;
}

/* What an event keeps. One that was never recorded comes after nothing. */
static progress *clock_of(const void *event)
{
    if (2 * order.n_events >= order.room)
        grow();
    record *r = slot(order.events, order.room, event);
    order.n_events += !r->handle;
    r->handle = event;
    return &r->at;
}

/* ---- the runtime's functions ----------------------------------------------------------------- */

static int begin(void)
{
    if (!order.on)
        return 0;
    pthread_mutex_lock(&order.lock);
    return 1;
}

static int end(int answer)
{
    pthread_mutex_unlock(&order.lock);
    return answer;
}

int tessera_standin_work(const void *stream)
{
    if (!begin())
        return 0;
    size_t i = stream_of(stream);
    order.of[i].done[i]++;
    return end(0);
}

EXPORT int cudaEventRecord(void *event, void *stream)
{
    if (!begin())
        return 0;
    *clock_of(event) = order.of[stream_of(stream)];
    return end(0);
}

EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    (void)flags;
    return cudaEventRecord(event, stream);
}

EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)flags;
    if (!begin())
        return 0;
    add(&order.of[stream_of(stream)], clock_of(event));
    return end(0);
}

EXPORT int cudaEventQuery(void *event)
{
    if (!begin())
        return 0;
    return end(is_over(clock_of(event)) ? 0 : NOT_READY);
}

EXPORT int cudaEventSynchronize(void *event)
{
    if (!begin())
        return 0;
    add(&order.host, clock_of(event));
    return end(0);
}

EXPORT int cudaStreamQuery(void *stream)
{
    if (!begin())
        return 0;
    return end(is_over(&order.of[stream_of(stream)]) ? 0 : NOT_READY);
}

EXPORT int cudaStreamSynchronize(void *stream)
{
    if (!begin())
        return 0;
    add(&order.host, &order.of[stream_of(stream)]);
    return end(0);
}

EXPORT int cudaDeviceSynchronize(void)
{
    if (!begin())
        return 0;
    for (size_t i = 0; i < order.n_streams; i++)
        add(&order.host, &order.of[i]);
    return end(0);
}
