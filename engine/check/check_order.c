/* check_order.c: what comes before what inside a rank: vector clocks of the streams and the host,
 * and of events (check.h).
 */
#include <stdlib.h>
#include <string.h>

#include "engine/check/check_impl.h"

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Rows of `n` clocks become wider; NULL: out of memory. */
static uint32_t *widened(const uint32_t *rows, size_t n, uint32_t from, uint32_t to)
{
    uint32_t *wide = calloc(n * to + 1, sizeof *wide);
    for (size_t i = 0; wide && i < n; i++)
        memcpy(wide + i * to, rows + i * from, from * sizeof *wide);
    return wide;
}

static bool widen(struct tsr__check_rank *r, uint32_t lanes)
{
    uint32_t stride = r->stride ? r->stride : TSR__FIRST_LANES;
    while (stride < lanes)
        stride *= 2;
    if (stride == r->stride)
        return true;
    uint32_t *clocks = calloc((size_t)stride * stride, sizeof *clocks);
    uint32_t *events = widened(r->event_clocks, r->n_events, r->stride, stride);
    if (!clocks || !events) {
        free(clocks);
        free(events);
        return false;
    }
    for (uint32_t i = 0; i < r->n_lanes; i++)
        memcpy(clocks + (size_t)i * stride, tsr__clock(r, i), r->stride * sizeof *clocks);
    free(r->clocks);
    free(r->event_clocks);
    r->clocks = clocks;
    r->event_clocks = events;
    r->cap_event_clocks = r->n_events * stride + 1;
    r->stride = stride;
    return true;
}

bool tsr__lane_reserve(struct tsr__check_rank *r, uint32_t lane)
{
    if (lane < r->n_lanes)
        return true;
    if (lane >= TSR__MAX_LANES || !widen(r, lane + 1))
        return false;
    r->n_lanes = lane + 1;
    return true;
}

static void join(uint32_t *into, const uint32_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (from[i] > into[i])
            into[i] = from[i];
}

/* What the host knows is known to whatever it issues from now on. */
static void learn_from_host(struct tsr__check_rank *r, uint32_t lane)
{
    if (r->seen_version[lane] == r->host_version)
        return;
    join(tsr__clock(r, lane), tsr__clock(r, TSR__HOST_LANE), r->n_lanes);
    r->seen_version[lane] = r->host_version;
}

void tsr__lane_issue(struct tsr__check_rank *r, uint32_t lane)
{
    learn_from_host(r, lane);
    if (r->in_launch && r->lane_launch[lane] == r->launch)
        return; /* calls of one launch run side by side */
    r->lane_launch[lane] = r->in_launch ? r->launch : 0;
    tsr__clock(r, lane)[lane]++;
}

void tsr__host_step(struct tsr__check_rank *r)
{
    tsr__clock(r, TSR__HOST_LANE)[TSR__HOST_LANE]++;
    r->host_version++;
}

bool tsr__is_before(const struct tsr__check_rank *r, const struct tsr__stamp *stamp, uint32_t lane)
{
    uint32_t known = tsr__clock(r, lane)[stamp->lane];
    if (stamp->lane != lane)
        return stamp->epoch <= known;
    return stamp->epoch < known || stamp->note == r->now;
}

void tsr__host_read(struct tsr__check_rank *r, uint32_t lane)
{
    learn_from_host(r, lane);
    join(tsr__clock(r, TSR__HOST_LANE), tsr__clock(r, lane), r->n_lanes);
    tsr__host_step(r);
}

/* ---- events ---------------------------------------------------------------------------------- */

enum { FAR = 1 << 20 }; /* between the numbers of two events: no program of ours */

static bool event_reserve(struct tsr__check_rank *r, uint32_t event)
{
    while (r->first_event + r->n_events <= event) {
        struct tsr__event_record blank = {0};
        if (!TSR_PUSH(r->events, r->n_events, r->cap_events, blank))
            return false;
        if (!tsr_grow(&r->event_clocks, r->n_events * r->stride, &r->cap_event_clocks,
                      sizeof *r->event_clocks)) {
            r->n_events--;
            return false;
        }
    }
    return true;
}

void tsr__record(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    uint32_t lane = instr->stream + 1U;
    tsr__lane_issue(r, lane);
    if (instr->event - r->first_event > r->n_events + FAR) { /* also those below the first */
        tsr__find(r, TSR_CHECK_STRUCTURE, tsr__note_key(r, r->now), &r->now, 1,
                  "event %u is recorded, and the others have numbers from %u to %zu: they go up",
                  instr->event, r->first_event, r->first_event + r->n_events);
        return;
    }
    if (!event_reserve(r, instr->event)) {
        tsr__check_no_memory(r);
        return;
    }
    size_t i = instr->event - r->first_event;
    r->events[i] = (struct tsr__event_record){true};
    memcpy(r->event_clocks + i * r->stride, tsr__clock(r, lane), r->stride * sizeof(uint32_t));
}

void tsr__wait(struct tsr__check_rank *r, const struct tsr_instr *instr, uint32_t lane)
{
    if (lane != TSR__HOST_LANE)
        tsr__lane_issue(r, lane);
    if (instr->event < r->first_event) { /* long over: dropped by tsr__events_prune() */
        join(tsr__clock(r, lane), r->floor, r->n_lanes);
        return;
    }
    size_t i = instr->event - r->first_event;
    if (i >= r->n_events || !r->events[i].recorded) {
        char text[TSR__TEXT];
        tsr__find(r, TSR_CHECK_EVENT, tsr__note_key(r, r->now), &r->now, 1,
                  "%s waits for event %u, which nothing has recorded so far: it does not wait, or "
                  "for ever",
                  tsr__short(r, r->now, text, sizeof text), instr->event);
        return;
    }
    join(tsr__clock(r, lane), r->event_clocks + i * r->stride, r->n_lanes);
    if (lane == TSR__HOST_LANE)
        tsr__host_step(r);
}

/* Does every stream that is used know what the event would tell? */
static bool is_over(const struct tsr__check_rank *r, size_t i)
{
    const uint32_t *clock = r->event_clocks + i * r->stride;
    for (uint32_t lane = 0; lane < r->n_lanes; lane++)
        for (uint32_t k = 0; k < r->n_lanes && tsr__clock(r, lane)[lane] > 0; k++)
            if (clock[k] > tsr__clock(r, lane)[k])
                return false;
    return true;
}

void tsr__events_prune(struct tsr__check_rank *r)
{
    enum { KEEP = 1 << 14 };
    size_t n = 0;
    if (r->n_events < KEEP)
        return;
    while (n + 1 < r->n_events && (!r->events[n].recorded || is_over(r, n))) {
        if (r->events[n].recorded)
            join(r->floor, r->event_clocks + n * r->stride, r->n_lanes);
        n++;
    }
    r->n_events -= n;
    r->first_event += (uint32_t)n;
    memmove(r->events, r->events + n, r->n_events * sizeof *r->events);
    memmove(r->event_clocks, r->event_clocks + n * r->stride,
            r->n_events * r->stride * sizeof *r->event_clocks);
}
