/* cuda_device_task.c: a task of the program becomes calls of CUDA on a stream; where the host
 * makes or takes its values, through pinned memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/memory.h"
#include "exec/cuda/comms/comms.h"
#include "exec/cuda/device/cuda_device_impl.h"
#include "exec/cuda/launch/cuda_launch.h"

/* A task whose values come from the host, or go there. */
static tsr_status tsr__cuda_source(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                                   const struct tsr_task *task) TSR_MUST_USE;

/* ---- kernels --------------------------------------------------------------------------------- */

static tsr_status run_kernel(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                             const struct tsr_task *task)
{
    struct tsr_kernel_call call = task->call;
    /* Libraries take the scratch that there is; other kernels ask for it (grow()). */
    if (tsr_work_has_workspace(task->call.work))
        TSR_TRY(tsr__cuda_first_scratch(d, s));
    call.launch = tsr_cuda_launch_code;
    call.context = &s->context;
    return task->kernel(&call);
}

static tsr_status poison(const struct tsr_cuda_stream *s, const struct tsr_task *task)
{
    for (uint32_t i = 0; i < task->call.n_views; i++) {
        const struct tsr_view *v = &task->call.views[i];
        if (v->bytes > 0)
            TSR_CUDA("poison", cudaMemsetAsync(v->data, 0xff, v->bytes, s->handle));
    }
    return TSR_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

tsr_status tsr__cuda_leave_slot(struct tsr_cuda_device *d, const struct tsr_cuda_event *e,
                                uint32_t number)
{
    if (e->number == 0 || e->number == number || e->done)
        return TSR_OK;
    return tsr__cuda_wait(d, tsr_cuda_event_of(e));
}

static tsr_status record(struct tsr_cuda_device *d, struct tsr_cuda_stream *s, uint32_t number)
{
    struct tsr_cuda_event *e = tsr_cuda_event_slot(&d->events, number);
    TSR_TRY(tsr__cuda_leave_slot(d, e, number));
    if (!e->event)
        TSR_CUDA("an event", cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming));
    TSR_CUDA("an event", cudaEventRecord(e->event, s->handle));
    e->number = number;
    e->done = false;
    e->shared = NULL;
    e->launch = 0;
    return TSR_OK;
}

static tsr_status wait_for(struct tsr_cuda_device *d, struct tsr_cuda_stream *s, uint32_t number)
{
    struct tsr_cuda_event *e;
    TSR_TRY(tsr_cuda_event_find(&d->events, number, &e));
    if (e)
        TSR_CUDA("a wait for an event", cudaStreamWaitEvent(s->handle, tsr_cuda_event_of(e), 0));
    return TSR_OK;
}

/* ---- between ranks --------------------------------------------------------------------------- */

static tsr_status watch(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                        const struct tsr_task *task)
{
    char what[96];
    bool one = task->kind == TSR_TASK_COLLECTIVE && task->n_collectives > 0;
    const struct tsr_comm *comm = one ? task->collectives[0].comm : task->comm;
    uint64_t sequence = one ? task->collectives[0].sequence : task->sequence;
    snprintf(what, sizeof what, "%s #%llu of '%s'",
             one ? tsr_instr_kind_name(task->collectives[0].kind) : "messages",
             (unsigned long long)sequence, comm && comm->name ? comm->name : "?");
    return tsr_watchdog_note(d->watchdog, s->handle, what);
}

static tsr_status run_collectives(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                                  const struct tsr_task *task)
{
    if (d->config.comms) {
        TSR_TRY(
            tsr_comms_run(d->config.comms, &s->context, task->collectives, task->n_collectives));
        return watch(d, s, task);
    }
    for (size_t i = 0; i < task->n_collectives; i++) {
        if (task->collectives[i].comm->size != 1)
            return tsr_fail(TSR_EDEFECT, "a collective of %u ranks, and the device is of no world",
                            task->collectives[i].comm->size);
        TSR_TRY(tsr__device_alone(&s->context, &task->collectives[i]));
    }
    return TSR_OK;
}

static tsr_status run_messages(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                               const struct tsr_task *task)
{
    if (task->n_messages == 0)
        return TSR_OK;
    if (!d->config.comms)
        return tsr_fail(TSR_EUNSUPPORTED, "messages, and the device is of no world");
    TSR_TRY(d->config.comms->ops->messages(d->config.comms, &s->context, task->comm, task->comm_id,
                                           task->sequence, task->messages, task->n_messages));
    return watch(d, s, task);
}

tsr_status tsr__cuda_run(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                         const struct tsr_task *task)
{
    switch (task->kind) {
    case TSR_TASK_KERNEL:
        return run_kernel(d, s, task);
    case TSR_TASK_SOURCE:
        return tsr__cuda_source(d, s, task);
    case TSR_TASK_COLLECTIVE:
        return run_collectives(d, s, task);
    case TSR_TASK_MESSAGES:
        return run_messages(d, s, task);
    case TSR_TASK_RECORD:
        return record(d, s, task->event);
    case TSR_TASK_WAIT:
        return wait_for(d, s, task->event);
    default:
        return poison(s, task);
    }
}

/* ---- values that the host makes or takes ----------------------------------------------------- */

/* Initial values and checkpoints, through pinned memory. The source runs on the rank's host thread;
 * what it makes is copied while it makes the next. */

#define STAGING_BYTES (UINT64_C(32) << 20)

static tsr_status open_staging(struct tsr_cuda_staging *g)
{
    if (!g->used)
        TSR_CUDA("an event", cudaEventCreateWithFlags(&g->used, cudaEventDisableTiming));
    if (!g->memory)
        TSR_CUDA("pinned memory", cudaHostAlloc(&g->memory, STAGING_BYTES, cudaHostAllocDefault));
    return TSR_OK;
}

/* The one that was used longer ago, when the device has read it. */
static tsr_status next_staging(struct tsr_cuda_device *d, struct tsr_cuda_staging **out)
{
    struct tsr_cuda_staging *g = &d->staging[d->next_staging++ % 2];
    TSR_TRY(open_staging(g));
    if (g->busy)
        TSR_TRY(tsr__cuda_wait(d, g->used));
    g->busy = false;
    *out = g;
    return TSR_OK;
}

void tsr__cuda_staging_close(struct tsr_cuda_device *d)
{
    for (int i = 0; i < 2; i++) {
        (void)cudaFreeHost(d->staging[i].memory);
        if (d->staging[i].used)
            (void)cudaEventDestroy(d->staging[i].used);
        d->staging[i] = (struct tsr_cuda_staging){.memory = NULL};
    }
}

/* ---- to the device --------------------------------------------------------------------------- */

static tsr_status send(const struct tsr_cuda_stream *s, struct tsr_cuda_staging *g, void *to,
                       uint64_t bytes)
{
    TSR_CUDA("a copy to the device",
             cudaMemcpyAsync(to, g->memory, bytes, cudaMemcpyHostToDevice, s->handle));
    TSR_CUDA("an event", cudaEventRecord(g->used, s->handle));
    g->busy = true;
    return TSR_OK;
}

static tsr_status send_all(struct tsr_cuda_device *d, const struct tsr_cuda_stream *s,
                           const char *from, char *to, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += STAGING_BYTES) {
        uint64_t n = tsr_min_u64(STAGING_BYTES, bytes - at);
        struct tsr_cuda_staging *g;
        TSR_TRY(next_staging(d, &g));
        memcpy(g->memory, from + at, n);
        TSR_TRY(send(s, g, to + at, n));
    }
    return TSR_OK;
}

/* ---- and back -------------------------------------------------------------------------------- */

static tsr_status fetch(const struct tsr_cuda_stream *s, struct tsr_cuda_staging *g,
                        const void *from, uint64_t bytes)
{
    TSR_CUDA("a copy from the device",
             cudaMemcpyAsync(g->memory, from, bytes, cudaMemcpyDeviceToHost, s->handle));
    TSR_CUDA("an event", cudaEventRecord(g->used, s->handle));
    g->busy = true;
    return TSR_OK;
}

/* The next piece is on its way while this one is put in its place. */
static tsr_status fetch_all(struct tsr_cuda_device *d, const struct tsr_cuda_stream *s,
                            const char *from, char *to, uint64_t bytes)
{
    struct tsr_cuda_staging *now = NULL, *next;
    uint64_t n_now = 0;
    for (uint64_t at = 0; at < bytes || now; at += STAGING_BYTES) {
        uint64_t n = at < bytes ? tsr_min_u64(STAGING_BYTES, bytes - at) : 0;
        next = NULL;
        if (n) {
            TSR_TRY(next_staging(d, &next));
            TSR_TRY(fetch(s, next, from + at, n));
        }
        if (now) {
            TSR_TRY(tsr__cuda_wait(d, now->used));
            memcpy(to, now->memory, n_now);
            to += n_now;
        }
        now = next;
        n_now = n;
    }
    return TSR_OK;
}

tsr_status tsr__cuda_read(struct tsr_cuda_device *d, const void *from, void *to, uint64_t bytes)
{
    struct tsr_cuda_stream *s;
    TSR_TRY(tsr__cuda_stream(d, 0, &s));
    return fetch_all(d, s, from, to, bytes);
}

/* ---- the task of a source -------------------------------------------------------------------- */

static tsr_status call_source(const struct tsr_task *task, void *values)
{
    struct tsr_view view = task->call.views[0];
    struct tsr_kernel_call call = task->call;
    view.data = view.base = values;
    call.views = &view;
    return task->source_fn(task->source, task->instr, &call);
}

static tsr_status make(struct tsr_cuda_device *d, const struct tsr_cuda_stream *s,
                       const struct tsr_task *task, void *large)
{
    const struct tsr_view *v = &task->call.views[0];
    struct tsr_cuda_staging *g;
    if (large) {
        TSR_TRY(call_source(task, large));
        return send_all(d, s, large, v->data, v->bytes);
    }
    TSR_TRY(next_staging(d, &g));
    TSR_TRY(call_source(task, g->memory));
    return v->bytes ? send(s, g, v->data, v->bytes) : TSR_OK;
}

static tsr_status take(struct tsr_cuda_device *d, const struct tsr_cuda_stream *s,
                       const struct tsr_task *task, void *large)
{
    const struct tsr_view *v = &task->call.views[0];
    struct tsr_cuda_staging *g;
    if (large) {
        TSR_TRY(fetch_all(d, s, v->data, large, v->bytes));
        return call_source(task, large);
    }
    TSR_TRY(next_staging(d, &g));
    if (v->bytes) {
        TSR_TRY(fetch(s, g, v->data, v->bytes));
        TSR_TRY(tsr__cuda_wait(d, g->used));
    }
    return call_source(task, g->memory);
}

static tsr_status tsr__cuda_source(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                                   const struct tsr_task *task)
{
    if (task->call.n_views != 1) /* which the source refuses */
        return task->source_fn(task->source, task->instr, &task->call);
    bool is_done;
    struct tsr_task here = *task;
    here.call.launch = tsr_cuda_launch_code;
    here.call.context = &s->context;
    TSR_TRY(tsr_task_initial(&here, &is_done));
    if (is_done)
        return TSR_OK;
    const struct tsr_view *v = &task->call.views[0];
    void *large = v->bytes > STAGING_BYTES ? malloc(v->bytes) : NULL;
    if (v->bytes > STAGING_BYTES && !large)
        return tsr_fail(TSR_ENOMEM, "out of memory: %llu bytes for '%s'",
                        (unsigned long long)v->bytes, task->call.work->name);
    tsr_status status = v->access & TSR_WRITE ? make(d, s, task, large) : take(d, s, task, large);
    free(large);
    return status;
}
