/* cuda_device_stream.c: streams of the CUDA device: made when they are first used, with the
 * priority that the program gives them; marks tell how far each one is, pairs of events how long
 * a task took.
 */
#include <stdlib.h>

#include "engine/program/memory.h"
#include "exec/cuda/device/cuda_device_impl.h"

/* PyTorch's numbers: -1 is high, 0 is the default; a GPU may have fewer. */
static tsr_status priority_of(const struct tsr_cuda_device *d, uint16_t index, int *out)
{
    const struct tsr_tables *t = d->config.tables ? d->config.tables(d->config.user) : NULL;
    int least = 0, greatest = 0,
        wanted = t && index < t->n_streams ? t->streams[index].priority : 0;
    TSR_CUDA("priorities of streams", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    wanted = wanted > least ? least : wanted;
    *out = wanted < greatest ? greatest : wanted;
    return TSR_OK;
}

/* At least so many bytes of scratch. What was scratch before is kept until the stream ends: work
 * and graphs may use it. */
static tsr_status set_scratch(struct tsr_cuda_device *d, struct tsr_cuda_stream *s, uint64_t bytes)
{
    struct tsr_cuda_context *c = &s->context;
    void *memory;
    if (c->scratch_bytes >= bytes)
        return TSR_OK;
    if (d->graphs.what == TSR_CUDA_CAPTURES)
        return tsr_fail(TSR_EBACKEND, "a captured task needs more scratch memory than before");
    if (c->scratch && s->n_retired == TSR_CUDA_RETIRED)
        return tsr_fail(TSR_EOOM, "a stream's scratch memory grew too often");
    TSR_CUDA("a stream's scratch memory", cudaMalloc(&memory, bytes));
    if (c->scratch)
        s->retired[s->n_retired++] = c->scratch;
    c->scratch = memory;
    c->scratch_bytes = bytes;
    d->library += bytes;
    return TSR_OK;
}

static tsr_status grow(void *owner, uint16_t index, uint64_t bytes)
{
    struct tsr_cuda_device *d = owner;
    return set_scratch(d, &d->streams[index], tsr_max_u64(bytes, TSR_WORKSPACE_BYTES));
}

static tsr_status start(struct tsr_cuda_device *d, uint16_t index, struct tsr_cuda_stream *s)
{
    int priority = 0;
    TSR_TRY(priority_of(d, index, &priority));
    TSR_CUDA("an event", cudaEventCreateWithFlags(&s->tail, cudaEventDisableTiming));
    TSR_CUDA("a stream", cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking, priority));
    /* A stream that a capture uses first finds scalars where the others do. */
    bool captured = d->graphs.what == TSR_CUDA_CAPTURES;
    s->context = (struct tsr_cuda_context){.stream = s->handle,
                                           .scalars = captured ? d->graphs.scalars : NULL,
                                           .index = index,
                                           .n_sms = d->gpu.n_sms,
                                           .architecture = d->gpu.architecture,
                                           .shared = d->gpu.shared,
                                           .deterministic = d->config.deterministic,
                                           .blas = d->blas,
                                           .attention = d->attention,
                                           .slow = &d->slow,
                                           .grow = grow,
                                           .owner = d};
    return TSR_OK;
}

tsr_status tsr__cuda_stream(struct tsr_cuda_device *d, uint16_t index, struct tsr_cuda_stream **out)
{
    if (index >= TSR_CUDA_STREAMS)
        return tsr_fail(TSR_EUNSUPPORTED, "a program with more than %d streams", TSR_CUDA_STREAMS);
    *out = &d->streams[index];
    return (*out)->handle ? TSR_OK : start(d, index, *out);
}

tsr_status tsr__cuda_first_scratch(struct tsr_cuda_device *d, struct tsr_cuda_stream *s)
{
    return set_scratch(d, s, TSR_WORKSPACE_BYTES);
}

void tsr__cuda_stream_close(struct tsr_cuda_stream *s)
{
    if (s->handle)
        (void)cudaStreamDestroy(s->handle);
    if (s->tail)
        (void)cudaEventDestroy(s->tail);
    for (int i = 0; i < TSR_CUDA_MARKS; i++)
        if (s->own_marks[i])
            (void)cudaEventDestroy(s->own_marks[i]);
    (void)cudaFree(s->context.scratch);
    for (unsigned i = 0; i < s->n_retired; i++)
        (void)cudaFree(s->retired[i]);
    *s = (struct tsr_cuda_stream){.handle = NULL};
}

/* ---- how far it is --------------------------------------------------------------------------- */

static bool is_past(const struct tsr_cuda_mark *m)
{
    if (cudaEventQuery(m->event) == cudaSuccess)
        return true;
    (void)cudaGetLastError(); /* libraries take "not ready" for a failure of theirs */
    return false;
}

/* An event that was recorded anew since is later than the mark. */
uint64_t tsr__cuda_done(struct tsr_cuda_stream *s)
{
    while (s->n_marks > 0 && is_past(&s->marks[s->first_mark])) {
        s->done = tsr_max_u64(s->done, s->marks[s->first_mark].tasks);
        s->first_mark = (s->first_mark + 1) % TSR_CUDA_MARKS;
        s->n_marks--;
    }
    return s->done;
}

/* Without room the next mark says it. */
void tsr__cuda_mark(struct tsr_cuda_stream *s, cudaEvent_t event)
{
    if (s->n_marks == TSR_CUDA_MARKS)
        (void)tsr__cuda_done(s);
    if (s->n_marks == TSR_CUDA_MARKS)
        return;
    s->marks[(s->first_mark + s->n_marks++) % TSR_CUDA_MARKS] =
        (struct tsr_cuda_mark){s->submitted, event};
    s->marked = s->submitted;
}

/* A mark of one's own, where the program records no event for long. Its place in the ring is free,
 * so its event is done. */
static tsr_status mark_here(struct tsr_cuda_stream *s)
{
    unsigned place = (s->first_mark + s->n_marks) % TSR_CUDA_MARKS;
    cudaEvent_t *event = &s->own_marks[place];
    if (s->n_marks == TSR_CUDA_MARKS)
        return TSR_OK;
    if (!*event)
        TSR_CUDA("an event", cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    TSR_CUDA("an event", cudaEventRecord(*event, s->handle));
    tsr__cuda_mark(s, *event);
    return TSR_OK;
}

tsr_status tsr__cuda_count(struct tsr_cuda_stream *s)
{
    s->submitted++;
    if (s->submitted - s->marked < TSR_CUDA_MARK_EVERY)
        return TSR_OK;
    if (s->n_marks == TSR_CUDA_MARKS)
        (void)tsr__cuda_done(s);
    return mark_here(s);
}

tsr_status tsr__cuda_wait_stream(struct tsr_cuda_device *d, struct tsr_cuda_stream *s)
{
    if (!s->handle)
        return TSR_OK;
    uint64_t tasks = s->submitted;
    TSR_CUDA("an event", cudaEventRecord(s->tail, s->handle));
    TSR_TRY(tsr__cuda_wait(d, s->tail));
    s->done = tasks;
    s->n_marks = 0;
    return TSR_OK;
}

/* ---- times of tasks -------------------------------------------------------------------------- */

/* When tasks began and ended: two events around each, read after the device is
 * idle, as seconds on the host's clock. */

static cudaStream_t any_stream(const struct tsr_cuda_device *d)
{
    for (int i = 0; i < TSR_CUDA_STREAMS; i++)
        if (d->streams[i].handle)
            return d->streams[i].handle;
    return NULL;
}

/* The device is idle: the event happens now. Time that CUDA tells in f32 is short from here. */
static tsr_status drop_anchor(struct tsr_cuda_device *d)
{
    cudaStream_t stream = any_stream(d);
    if (!stream)
        return TSR_OK; /* the first task drops it */
    if (!d->anchor)
        TSR_CUDA("an event", cudaEventCreateWithFlags(&d->anchor, cudaEventDefault));
    double before = tsr__cuda_now(d);
    TSR_CUDA("an event", cudaEventRecord(d->anchor, stream));
    TSR_TRY(tsr__cuda_wait(d, d->anchor));
    d->anchor_s = (before + tsr__cuda_now(d)) / 2;
    return TSR_OK;
}

tsr_status tsr__cuda_set_timing(struct tsr_cuda_device *d, bool on)
{
    d->timing = on;
    return TSR_OK;
}

tsr_status tsr__cuda_time_begin(struct tsr_cuda_device *d, uint16_t stream,
                                const struct tsr_task *task)
{
    struct tsr_cuda_timed t = {.stream = stream, .number = task->number};
    if (!d->anchor)
        TSR_TRY(drop_anchor(d));
    TSR_TRY(tsr_cuda_timer_take(&d->timers, &t.begin));
    tsr_status status;
    TSR_GOTO(no_end, tsr_cuda_timer_take(&d->timers, &t.end));
    if (!TSR_PUSH(d->timed, d->n_timed, d->cap_timed, t)) {
        status = tsr_no_memory("the profile");
        goto no_room;
    }
    TSR_CUDA("an event", cudaEventRecord(t.begin, d->streams[stream].handle));
    return TSR_OK;
no_room:
    tsr_cuda_timer_give(&d->timers, t.end);
no_end:
    tsr_cuda_timer_give(&d->timers, t.begin);
    return status;
}

tsr_status tsr__cuda_time_end(struct tsr_cuda_device *d)
{
    const struct tsr_cuda_timed *t = &d->timed[d->n_timed - 1];
    TSR_CUDA("an event", cudaEventRecord(t->end, d->streams[t->stream].handle));
    return TSR_OK;
}

static tsr_status time_of(const struct tsr_cuda_device *d, cudaEvent_t event, double *out)
{
    float ms = 0;
    TSR_CUDA("the time of an event", cudaEventElapsedTime(&ms, d->anchor, event));
    *out = d->anchor_s + 1e-3 * (double)ms;
    return TSR_OK;
}

static tsr_status tell_times(const struct tsr_cuda_device *d, const struct tsr_cuda_timed *t)
{
    double begin = 0, end = 0;
    TSR_TRY(time_of(d, t->begin, &begin));
    TSR_TRY(time_of(d, t->end, &end));
    if (d->config.times)
        d->config.times(d->config.user, t->stream, t->number, begin, end);
    return TSR_OK;
}

tsr_status tsr__cuda_time_resolve(struct tsr_cuda_device *d)
{
    tsr_status status = TSR_OK;
    if (d->n_timed == 0)
        return TSR_OK;
    for (size_t i = 0; i < d->n_timed; i++) {
        const struct tsr_cuda_timed *t = &d->timed[i];
        if (status == TSR_OK) /* timers go back whatever came before */
            status = tell_times(d, t);
        tsr_cuda_timer_give(&d->timers, t->begin);
        tsr_cuda_timer_give(&d->timers, t->end);
    }
    d->n_timed = 0;
    return status == TSR_OK ? drop_anchor(d) : status;
}

void tsr__cuda_time_close(struct tsr_cuda_device *d)
{
    for (size_t i = 0; i < d->n_timed; i++) {
        tsr_cuda_timer_give(&d->timers, d->timed[i].begin);
        tsr_cuda_timer_give(&d->timers, d->timed[i].end);
    }
    free(d->timed);
    d->timed = NULL;
    d->n_timed = 0;
    if (d->anchor)
        (void)cudaEventDestroy(d->anchor);
    d->anchor = NULL;
    tsr_cuda_timers_fini(&d->timers);
}
