/* graphs.c: stretches of a program are captured once and launched from then on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/device/cuda_device_impl.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/kernels/grid/grid.h"

/* ---- what there is --------------------------------------------------------------------------- */

static struct tsr_cuda_graph *find(struct tsr_cuda_device *d, uint64_t key)
{
    for (int i = 0; i < TSR_CUDA_GRAPHS; i++)
        if (d->graphs.all[i].is_used && d->graphs.all[i].key == key)
            return &d->graphs.all[i];
    return NULL;
}

static enum tsr_stretch find_stretch(struct tsr_device *device, uint64_t key)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    const struct tsr_cuda_graph *g = find(d, key);
    const struct tsr_comms *comms = d->config.comms;
    if (comms && !comms->ops->captures && !d->graphs.why[0])
        snprintf(d->graphs.why, sizeof d->graphs.why, "collectives of %s cannot be captured",
                 comms->ops->name);
    if (d->config.direct || d->config.serial || (comms && !comms->ops->captures))
        return TSR_STRETCH_REFUSED;
    return !g ? TSR_STRETCH_NEW : g->exec ? TSR_STRETCH_KEPT : TSR_STRETCH_REFUSED;
}

static const char *refusal(const struct tsr_device *device)
{
    const struct tsr_cuda_device *d = (const struct tsr_cuda_device *)device;
    return d->graphs.why[0] && !d->config.direct ? d->graphs.why : NULL;
}

/* Launches of it are done: there were many of others since, or the device is idle. */
static void drop(struct tsr_cuda_graph *g)
{
    if (g->exec)
        (void)cudaGraphExecDestroy(g->exec);
    *g = (struct tsr_cuda_graph){.exec = NULL};
}

static struct tsr_cuda_graph *place_for(struct tsr_cuda_device *d, uint64_t key)
{
    struct tsr_cuda_graph *oldest = &d->graphs.all[0];
    for (int i = 1; i < TSR_CUDA_GRAPHS; i++)
        if (d->graphs.all[i].last_use < oldest->last_use)
            oldest = &d->graphs.all[i];
    drop(oldest);
    oldest->key = key;
    oldest->last_use = ++d->graphs.n_uses;
    oldest->is_used = true;
    return oldest;
}

/* All of them; what is submitted next is captured again. */
static void forget(struct tsr_cuda_device *d)
{
    for (int i = 0; i < TSR_CUDA_GRAPHS; i++)
        drop(&d->graphs.all[i]);
}

void tsr__cuda_graphs_close(struct tsr_cuda_device *d)
{
    struct tsr_cuda_graphs *g = &d->graphs;
    forget(d);
    for (size_t i = 0; i < g->cap_captured; i++)
        if (g->captured[i].event)
            (void)cudaEventDestroy(g->captured[i].event);
    for (int i = 0; i < TSR_CUDA_LAUNCHES; i++)
        if (g->done[i])
            (void)cudaEventDestroy(g->done[i]);
    if (g->fork)
        (void)cudaEventDestroy(g->fork);
    (void)cudaFree(g->scalars);
    free(g->captured);
    *g = (struct tsr_cuda_graphs){.now = NULL};
}

static tsr_status make_event(cudaEvent_t *event)
{
    if (!*event)
        TSR_CUDA("an event", cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    return TSR_OK;
}

/* ---- capturing ------------------------------------------------------------------------------- */

static tsr_status prepare(struct tsr_cuda_device *d, struct tsr_cuda_stream **first)
{
    struct tsr_cuda_graphs *g = &d->graphs;
    TSR_TRY(tsr__cuda_stream(d, 0, first));
    TSR_TRY(make_event(&g->fork));
    if (!g->scalars)
        TSR_CUDA("a table of scalars",
                 cudaMalloc((void **)&g->scalars, TSR_N_SCALARS * sizeof *g->scalars));
    return TSR_OK;
}

static void use_table(struct tsr_cuda_device *d, const double *table)
{
    for (int i = 0; i < TSR_CUDA_STREAMS; i++)
        d->streams[i].context.scalars = table;
}

/* Nothing but this thread's own calls is looked at: a watchdog may query its events. */
static tsr_status capture_begin(struct tsr_device *device, uint64_t key)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    struct tsr_cuda_graphs *g = &d->graphs;
    struct tsr_cuda_stream *first;
    TSR_TRY(tsr__cuda_check(d));
    TSR_TRY(prepare(d, &first));
    g->now = place_for(d, key);
    g->n_captured = 0;
    memset(g->has_joined, 0, sizeof g->has_joined);
    cudaError_t error = cudaStreamBeginCapture(first->handle, cudaStreamCaptureModeRelaxed);
    g->is_refused = error != cudaSuccess;
    if (g->is_refused)
        return tsr_cuda_error(error, "a capture");
    g->what = TSR_CUDA_CAPTURES;
    g->has_joined[0] = true;
    use_table(d, g->scalars);
    TSR_CUDA("a capture", cudaEventRecord(g->fork, first->handle));
    return TSR_OK;
}

static tsr_status join(struct tsr_cuda_device *d, struct tsr_cuda_stream *s)
{
    bool *has_joined = &d->graphs.has_joined[s->context.index];
    if (!*has_joined)
        TSR_CUDA("a capture", cudaStreamWaitEvent(s->handle, d->graphs.fork, 0));
    *has_joined = true;
    return TSR_OK;
}

static tsr_status capture_record(struct tsr_cuda_device *d, const struct tsr_cuda_stream *s,
                                 uint32_t number)
{
    struct tsr_cuda_graphs *g = &d->graphs;
    size_t had = g->cap_captured;
    if (!tsr_grow(&g->captured, g->n_captured, &g->cap_captured, sizeof *g->captured))
        return tsr_no_memory("a capture");
    for (size_t i = had; i < g->cap_captured; i++)
        g->captured[i].event = NULL;
    struct tsr_cuda_captured *c = &g->captured[g->n_captured++];
    c->number = number;
    TSR_TRY(make_event(&c->event));
    TSR_CUDA("a captured event", cudaEventRecord(c->event, s->handle));
    return TSR_OK;
}

/* What was recorded before the capture is waited for before the launch. */
static tsr_status capture_wait(struct tsr_cuda_device *d, const struct tsr_cuda_stream *s,
                               uint32_t number)
{
    const struct tsr_cuda_graphs *g = &d->graphs;
    for (size_t i = g->n_captured; i-- > 0;)
        if (g->captured[i].number == number) {
            TSR_CUDA("a captured wait", cudaStreamWaitEvent(s->handle, g->captured[i].event, 0));
            return TSR_OK;
        }
    return TSR_OK;
}

static tsr_status capture_task(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                               const struct tsr_task *task)
{
    TSR_TRY(join(d, s));
    if (task->kind != TSR_TASK_POISON)
        d->graphs.now->tasks[s->context.index]++;
    if (task->kind == TSR_TASK_RECORD)
        return capture_record(d, s, task->event);
    if (task->kind == TSR_TASK_WAIT)
        return capture_wait(d, s, task->event);
    return tsr__cuda_run(d, s, task);
}

static tsr_status join_all(struct tsr_cuda_device *d)
{
    struct tsr_cuda_stream *first = &d->streams[0];
    for (int i = 1; i < TSR_CUDA_STREAMS; i++) {
        if (!d->graphs.has_joined[i])
            continue;
        TSR_CUDA("a capture", cudaEventRecord(d->graphs.fork, d->streams[i].handle));
        TSR_CUDA("a capture", cudaStreamWaitEvent(first->handle, d->graphs.fork, 0));
    }
    return TSR_OK;
}

static tsr_status finish(struct tsr_cuda_device *d, tsr_status status)
{
    struct tsr_cuda_graph *g = d->graphs.now;
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(d->streams[0].handle, &graph);
    if (status != TSR_OK)
        goto end;
    if (error != cudaSuccess) {
        status = tsr_cuda_error(error, "the end of a capture");
        goto end;
    }
    /* communication goes first, as on its own stream */
    error = cudaGraphInstantiate(&g->exec, graph, cudaGraphInstantiateFlagUseNodePriority);
    if (error != cudaSuccess) {
        g->exec = NULL;
        status = tsr_cuda_error(error, "a graph");
        goto end;
    }
    (void)cudaGraphUpload(g->exec, d->streams[0].handle);
end:
    if (graph)
        (void)cudaGraphDestroy(graph);
    return status;
}

/* A capture that fails is no failure of the run, unless slow.h refuses it: its tasks are submitted
 * then, this time and later.
 */
static tsr_status capture_end(struct tsr_device *device, bool is_whole)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    struct tsr_cuda_graphs *g = &d->graphs;
    tsr_status status = is_whole ? TSR_OK : tsr_fail(TSR_EBACKEND, "%s", tsr_error_text());
    if (g->what != TSR_CUDA_CAPTURES && !g->is_refused)
        return status;
    if (status == TSR_OK)
        status = join_all(d);
    if (!g->is_refused)
        status = finish(d, status);
    g->is_refused = false;
    g->what = TSR_CUDA_DIRECT;
    use_table(d, NULL);
    if (status != TSR_OK)
        snprintf(g->why, sizeof g->why, "%s", tsr_error_text());
    (void)cudaGetLastError(); /* of an upload as well: the launch does it then */
    return status == TSR_OK ? TSR_OK : tsr_slow_take(&d->slow, TSR_SLOW_GRAPH, g->why);
}

/* ---- running --------------------------------------------------------------------------------- */

static tsr_status run_begin(struct tsr_device *device, uint64_t key)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    struct tsr_cuda_graphs *g = &d->graphs;
    struct tsr_cuda_stream *first = &d->streams[0];
    TSR_TRY(tsr__cuda_check(d));
    g->now = find(d, key);
    if (!g->now || !g->now->exec)
        return tsr_fail(TSR_EDEFECT, "a graph is run that was not captured");
    g->now->last_use = ++g->n_uses;
    TSR_TRY(make_event(&g->done[g->n_launches % TSR_CUDA_LAUNCHES]));
    for (int i = 1; i < TSR_CUDA_STREAMS; i++) {
        struct tsr_cuda_stream *s = &d->streams[i];
        if (g->now->tasks[i] == 0 || s->submitted == s->joined)
            continue;
        TSR_CUDA("an event", cudaEventRecord(s->tail, s->handle));
        TSR_CUDA("a wait for a stream", cudaStreamWaitEvent(first->handle, s->tail, 0));
    }
    g->what = TSR_CUDA_RUNS;
    return TSR_OK;
}

/* The event is done when the launch that is being prepared is. */
static tsr_status run_record(struct tsr_cuda_device *d, uint32_t number)
{
    struct tsr_cuda_graphs *g = &d->graphs;
    struct tsr_cuda_event *e = tsr_cuda_event_slot(&d->events, number);
    TSR_TRY(tsr__cuda_leave_slot(d, e, number));
    e->number = number;
    e->done = false;
    e->launch = g->n_launches + 1;
    e->shared = g->done[g->n_launches % TSR_CUDA_LAUNCHES];
    return TSR_OK;
}

static tsr_status run_wait(struct tsr_cuda_device *d, uint32_t number)
{
    struct tsr_cuda_event *e;
    TSR_TRY(tsr_cuda_event_find(&d->events, number, &e));
    if (!e || e->launch == d->graphs.n_launches + 1) /* recorded inside */
        return TSR_OK;
    TSR_CUDA("a wait for an event",
             cudaStreamWaitEvent(d->streams[0].handle, tsr_cuda_event_of(e), 0));
    return TSR_OK;
}

tsr_status tsr__cuda_graph_task(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                                const struct tsr_task *task)
{
    if (d->graphs.what == TSR_CUDA_CAPTURES)
        return capture_task(d, s, task);
    if (task->kind == TSR_TASK_RECORD)
        return run_record(d, task->event);
    return task->kind == TSR_TASK_WAIT ? run_wait(d, task->event) : TSR_OK;
}

static tsr_status write_scalars(const struct tsr_cuda_device *d, const double *scalars)
{
    const struct tsr_kernel_call call = {.context = &d->streams[0].context};
    struct tsr_cuda_table k = {.to = d->graphs.scalars};
    memcpy(k.values, scalars, sizeof k.values);
    return tsr_cuda_launch(&call, tsr_cuda_scalars_write,
                           (struct tsr_cuda_grid){.blocks = 1, .threads = 32}, &k);
}

static tsr_status launch(struct tsr_cuda_device *d, const double *scalars)
{
    struct tsr_cuda_graphs *g = &d->graphs;
    cudaStream_t first = d->streams[0].handle;
    cudaEvent_t done = g->done[g->n_launches++ % TSR_CUDA_LAUNCHES];
    tsr_cuda_ranges_graph(&d->ranges);
    TSR_TRY(write_scalars(d, scalars));
    TSR_CUDA("a graph", cudaGraphLaunch(g->now->exec, first));
    TSR_CUDA("an event", cudaEventRecord(done, first));
    if (d->watchdog) /* collectives in it are not noted one by one */
        TSR_TRY(tsr_watchdog_note(d->watchdog, first, "a graph with collectives"));
    for (int i = 0; i < TSR_CUDA_STREAMS; i++) {
        struct tsr_cuda_stream *s = &d->streams[i];
        if (g->now->tasks[i] == 0)
            continue;
        if (i > 0)
            TSR_CUDA("a wait for a graph", cudaStreamWaitEvent(s->handle, done, 0));
        s->submitted += g->now->tasks[i];
        s->joined = s->submitted;
        tsr__cuda_mark(s, done);
    }
    return TSR_OK;
}

static tsr_status run_end(struct tsr_device *device, const double *scalars)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    d->graphs.what = TSR_CUDA_DIRECT;
    TSR_TRY(tsr__cuda_check(d));
    tsr_status status = launch(d, scalars);
    if (status != TSR_OK)
        tsr__cuda_give_up(d, status, tsr_error_text());
    return status;
}

const struct tsr_device_graphs tsr_cuda_device_graphs = {.find = find_stretch,
                                                         .refusal = refusal,
                                                         .capture_begin = capture_begin,
                                                         .capture_end = capture_end,
                                                         .run_begin = run_begin,
                                                         .run_end = run_end};
