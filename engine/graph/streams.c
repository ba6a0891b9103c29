/* streams.c: streams, communicators and events: who waits for whom, in the program and in the
 * trace.
 *
 * An event has one number in the program, and the recorded ones another one in the trace: there the
 * event that tsr__wait_stream() makes is not counted, since PyTorch's callers never see it.
 */
#include <string.h>

#include "engine/graph/engine.h"

uint16_t tsr__stream_add(struct tsr_engine *e, const char *name, uint8_t role, int8_t priority)
{
    struct tsr_stream_info info = {name, role, priority};
    if (!TSR_PUSH(e->emit.stream_busy, e->emit.n_stream_busy, e->emit.cap_stream_busy, false) ||
        !TSR_PUSH(e->emit.streams, e->emit.n_streams, e->emit.cap_streams, info)) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return 0;
    }
    e->emit.tables.streams = e->emit.streams;
    e->emit.tables.n_streams = (uint16_t)e->emit.n_streams;
    uint16_t stream = (uint16_t)(e->emit.n_streams - 1);
    /* The order of PyTorch's stream handles, in which a full device's cache is released: streams of
     * normal priority are made before those of high. */
    if (e->emit.allocator)
        tsr_allocator_set_stream_order(e->emit.allocator, stream,
                                       priority < 0 ? TSR__HIGH_PRIORITY_ORDER + stream : stream);
    return stream;
}

uint16_t tsr__comm_add(struct tsr_engine *e, const char *name, uint32_t size, uint32_t stride,
                       uint16_t queue)
{
    for (size_t i = 0; i < e->emit.n_comms; i++)
        if (strcmp(e->emit.comms[i].name, name) == 0)
            return (uint16_t)i;
    struct tsr_comm comm = {.name = tsr_arena_strdup(&e->arena, name),
                            .size = size,
                            .stride = stride,
                            .separate = queue == UINT16_MAX,
                            .queue = queue == UINT16_MAX ? (uint16_t)e->emit.n_comms : queue};
    if (!comm.name || !TSR_PUSH(e->emit.comms, e->emit.n_comms, e->emit.cap_comms, comm)) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return 0;
    }
    e->emit.tables.comms = e->emit.comms;
    e->emit.tables.n_comms = (uint16_t)e->emit.n_comms;
    return (uint16_t)(e->emit.n_comms - 1);
}

uint32_t tsr__new_event(struct tsr_engine *e)
{
    return ++e->emit.next_event;
}

static void emit_event(struct tsr_engine *e, uint8_t kind, uint16_t stream, uint32_t event)
{
    struct tsr_instr instr = {.kind = kind, .stream = stream, .comm = UINT16_MAX, .event = event};
    tsr__emit(e, &instr);
}

void tsr__host_wait_all(struct tsr_engine *e)
{
    for (uint16_t stream = 0; stream < e->emit.n_streams; stream++) {
        if (!e->emit.stream_busy[stream])
            continue;
        uint32_t event = tsr__new_event(e);
        emit_event(e, TSR_RECORD, stream, event);
        emit_event(e, TSR_HOST_WAIT, 0, event);
        e->emit.stream_busy[stream] = false;
    }
}

static void trace_stream_event(struct tsr_engine *e, const char *name, uint16_t stream,
                               const char *key, int64_t value)
{
    if (!e->emit.has_trace || !tsr__ok(e))
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, name);
    ev.is_stream_event = true;
    if (stream != UINT16_MAX)
        tsr__event_str(&ev, "stream", e->emit.streams[stream].name);
    if (strcmp(key, "on") == 0)
        tsr__event_str(&ev, key, e->emit.streams[value].name);
    else if (*key)
        tsr__event_int(&ev, key, value);
    tsr__event_send(e, &ev);
}

/* stream waits for everything that `on` has been given so far. */
void tsr__wait_stream(struct tsr_engine *e, uint16_t stream, uint16_t on)
{
    trace_stream_event(e, "wait_stream", stream, "on", on);
    if (stream == on) /* both roles on one stream: order is given */
        return;
    uint32_t event = tsr__new_event(e);
    emit_event(e, TSR_RECORD, on, event);
    emit_event(e, TSR_WAIT, stream, event);
}

uint32_t tsr__record_event(struct tsr_engine *e, uint16_t stream)
{
    uint32_t event = tsr__new_event(e);
    emit_event(e, TSR_RECORD, stream, event);
    if (e->emit.has_trace && tsr__ok(e)) {
        if (!TSR_PUSH(e->emit.trace_events, e->emit.n_trace_events, e->emit.cap_trace_events,
                      event))
            TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        trace_stream_event(e, "record_event", stream, "event", (int64_t)e->emit.n_trace_events);
    }
    return event;
}

/* Number of the event among the recorded ones, as in the golden data. */
static int64_t trace_number(const struct tsr_engine *e, uint32_t event)
{
    for (size_t i = e->emit.n_trace_events; i-- > 0;)
        if (e->emit.trace_events[i] == event)
            return (int64_t)i + 1;
    return 0;
}

void tsr__wait_event(struct tsr_engine *e, uint16_t stream, uint32_t event)
{
    if (e->emit.has_trace)
        trace_stream_event(e, "wait_event", stream, "event", trace_number(e, event));
    emit_event(e, TSR_WAIT, stream, event);
}

void tsr__host_wait_event(struct tsr_engine *e, uint32_t event)
{
    if (e->emit.has_trace)
        trace_stream_event(e, "synchronize_event", UINT16_MAX, "event", trace_number(e, event));
    emit_event(e, TSR_HOST_WAIT, 0, event);
}

/* Work handle of an asynchronous collective: its event was recorded behind it. */
void tsr__wait_work(struct tsr_engine *e, uint16_t stream, uint32_t event)
{
    trace_stream_event(e, "wait_work", stream, "", 0);
    emit_event(e, TSR_WAIT, stream, event);
}
