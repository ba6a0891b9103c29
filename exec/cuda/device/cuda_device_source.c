/* cuda_device_source.c: tasks whose values the host makes or takes (initial values, checkpoints):
 * through pinned memory. The source runs on the rank's host thread; what it makes is copied while
 * it makes the next.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/device/cuda_device_impl.h"

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

/* ---- the task -------------------------------------------------------------------------------- */

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

tsr_status tsr__cuda_source(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                            const struct tsr_task *task)
{
    if (task->call.n_views != 1) /* which the source refuses */
        return task->source_fn(task->source, task->instr, &task->call);
    const struct tsr_view *v = &task->call.views[0];
    void *large = v->bytes > STAGING_BYTES ? malloc(v->bytes) : NULL;
    if (v->bytes > STAGING_BYTES && !large)
        return tsr_fail(TSR_ENOMEM, "out of memory: %llu bytes for '%s'",
                        (unsigned long long)v->bytes, task->call.work->name);
    tsr_status status = v->access & TSR_WRITE ? make(d, s, task, large) : take(d, s, task, large);
    free(large);
    return status;
}
