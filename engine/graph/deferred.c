/* deferred.c: the clocks of streams and host, and blocks that wait for them (engine.h).
 *
 * A clock says how many pieces of work of each stream are known to be over. RECORD keeps the clock
 * of its stream, WAIT adds it to another one, HOST_WAIT to the host.
 */
#include "engine/graph/engine.h"

#include <stdlib.h>
#include <string.h>

enum {
    N_STREAMS = 12,    /* with clocks; work of others is never known to be over */
    N_EVENTS = 1 << 16 /* remembered; older ones are forgotten, which only delays */
};

struct clock {
    uint32_t done[N_STREAMS];
};

struct waiting {
    struct tsr_storage block; /* as it was at the free */
    struct clock clock;       /* what has to be over */
    uint32_t event;           /* the first one recorded that comes after it; 0: none yet */
    uint64_t at;              /* device instructions before that RECORD */
    uint32_t iteration;
};

struct tsr_deferral {
    struct clock stream[N_STREAMS], host;
    struct recorded {
        uint32_t event;
        struct clock clock;
    } * events;
    struct waiting *waiting;
    size_t n_waiting, cap_waiting;
    uint64_t n_device; /* device instructions so far */
    uint64_t launch_queue;
};

void tsr__deferral_begin(struct tsr_engine *e, uint64_t launch_queue)
{
    if (e->emit.deferral || !tsr__ok(e))
        return;
    struct tsr_deferral *d = calloc(1, sizeof *d);
    struct recorded *events = calloc(N_EVENTS, sizeof *events);
    if (!d || !events) {
        free(d);
        free(events);
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return;
    }
    d->events = events;
    d->launch_queue = launch_queue;
    e->emit.deferral = d;
}

void tsr__deferral_end(struct tsr_engine *e)
{
    if (!e->emit.deferral)
        return;
    free(e->emit.deferral->events);
    free(e->emit.deferral->waiting);
    free(e->emit.deferral);
    e->emit.deferral = NULL;
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static void add(struct clock *to, const struct clock *from)
{
    for (int i = 0; i < N_STREAMS; i++)
        if (from->done[i] > to->done[i])
            to->done[i] = from->done[i];
}

static bool is_within(const struct clock *a, const struct clock *b)
{
    for (int i = 0; i < N_STREAMS; i++)
        if (a->done[i] > b->done[i])
            return false;
    return true;
}

static void add_event(struct tsr_deferral *d, struct clock *to, uint32_t event)
{
    const struct recorded *r = &d->events[event % N_EVENTS];
    if (r->event == event)
        add(to, &r->clock);
}

static void note_record(struct tsr_deferral *d, uint32_t event, const struct clock *clock)
{
    d->events[event % N_EVENTS] = (struct recorded){event, *clock};
    for (size_t i = 0; i < d->n_waiting; i++) {
        struct waiting *w = &d->waiting[i];
        if (w->event == 0 && is_within(&w->clock, clock)) {
            w->event = event;
            w->at = d->n_device;
        }
    }
}

void tsr__deferral_note(struct tsr_engine *e, const struct tsr_instr *instr)
{
    struct tsr_deferral *d = e->emit.deferral;
    bool works = tsr__occupies_stream(instr->kind);
    d->n_device += works || instr->kind == TSR_RECORD || instr->kind == TSR_WAIT;
    if (instr->kind == TSR_HOST_WAIT) {
        add_event(d, &d->host, instr->event);
        return;
    }
    if (instr->stream >= N_STREAMS)
        return;
    struct clock *stream = &d->stream[instr->stream];
    switch (instr->kind) {
    case TSR_RECORD:
        note_record(d, instr->event, stream);
        break;
    case TSR_WAIT:
        add_event(d, stream, instr->event);
        break;
    case TSR_HOST_READ:
        add(&d->host, stream);
        break;
    default:
        stream->done[instr->stream] += works;
        break;
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void defer(struct tsr_engine *e, const struct tsr_storage *s, uint16_t stream)
{
    struct tsr_deferral *d = e->emit.deferral;
    struct waiting w = {
        .block = *s, .clock = d->stream[stream % N_STREAMS], .iteration = e->iteration};
    if (stream >= N_STREAMS) /* never known */
        w.clock.done[0] = UINT32_MAX;
    struct tsr_instr mark = {.kind = TSR_MARK,
                             .mark = TSR_MARK_DROPPED,
                             .stream = s->stream,
                             .comm = UINT16_MAX,
                             .buffer = s->buffer,
                             .block_bytes = s->block.bytes};
    tsr__emit(e, &mark);
    w.block.is_dropped = true;
    if (!TSR_PUSH(d->waiting, d->n_waiting, d->cap_waiting, w))
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
}

void tsr__storage_unback_after(struct tsr_engine *e, struct tsr_storage *s, uint16_t stream)
{
    if (!s || !s->live || s->space != TSR_SPACE_DEVICE)
        return;
    if (!s->block.handle || s->stream == stream || !tsr__ok(e)) {
        tsr__storage_unback(e, s);
        return;
    }
    defer(e, s, stream);
    s->live = false;
    s->block.handle = NULL;
}

void tsr__storage_release_after(struct tsr_engine *e, struct tsr_storage **s, uint16_t stream)
{
    if (*s && (*s)->refs == 1)
        tsr__storage_unback_after(e, *s, stream);
    tsr__storage_release(e, s);
}

/* What left the launch queue long ago is over: the host says so. `before`: and what was given back
 * in an earlier iteration than that one. */
static void wait_for_old(struct tsr_engine *e, uint32_t before)
{
    struct tsr_deferral *d = e->emit.deferral;
    for (size_t i = 0; i < d->n_waiting && tsr__ok(e); i++) {
        const struct waiting *w = &d->waiting[i];
        bool is_old = d->n_device - w->at >= d->launch_queue || w->iteration < before;
        if (w->event == 0 || !is_old || is_within(&w->clock, &d->host))
            continue;
        struct tsr_instr wait = {.kind = TSR_HOST_WAIT, .comm = UINT16_MAX, .event = w->event};
        tsr__emit(e, &wait);
    }
}

void tsr__deferral_settle(struct tsr_engine *e)
{
    struct tsr_deferral *d = e->emit.deferral;
    size_t kept = 0;
    wait_for_old(e, 0);
    for (size_t i = 0; i < d->n_waiting; i++) {
        struct waiting *w = &d->waiting[i];
        if (is_within(&w->clock, &d->host))
            tsr__storage_unback(e, &w->block);
        else
            d->waiting[kept++] = *w;
    }
    d->n_waiting = kept;
}

void tsr__deferral_end_iteration(struct tsr_engine *e)
{
    if (e->emit.deferral)
        wait_for_old(e, e->iteration);
}

bool tsr__deferral_flush(struct tsr_engine *e)
{
    if (!e->emit.deferral || e->emit.deferral->n_waiting == 0)
        return false;
    tsr__host_wait_all(e);
    tsr__deferral_settle(e);
    return tsr__ok(e);
}
