/* cuda_device_time.c: when tasks began and ended: two events around each, read after the device is
 * idle, as seconds on the host's clock.
 */
#include <stdlib.h>

#include "exec/cuda/device/cuda_device_impl.h"

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
