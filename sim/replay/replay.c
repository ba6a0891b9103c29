/* replay.c: hosts and streams of the simulated ranks.
 *
 * Times are numbers as long as nothing has to be shared: the host's clock runs ahead of SimGrid,
 * and a RECORD or a WAIT may end in SimGrid's future. Only a kernel, a copy to the host and a
 * collective become activities, when the stream has reached them and their start is known.
 *
 * Invariant: a task is final (done[] set, span filled) as soon as its end is known, which may be
 * before SimGrid's clock gets there; it never changes afterwards.
 */
#include "sim/replay/replay.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double later(double a, double b)
{
    return a > b ? a : b;
}

void tsr__replay_fail(struct tsr__replay *r, tsr_status status, const char *fmt, ...)
{
    va_list args;
    if (r->failed)
        return;
    r->failed = true;
    r->verdict->status = (int)status;
    va_start(args, fmt);
    vsnprintf(r->verdict->text, sizeof r->verdict->text, fmt, args);
    va_end(args);
}

void tsr__replay_submit(struct tsr__replay *r, const struct tsr__activity *activity)
{
    if (!r->failed && !tsr__backend_submit(r->backend, activity))
        tsr__replay_fail(r, TSR_ENOMEM, "out of memory: replay");
    /* Of BESIDE nobody hears an end. */
    r->n_live += activity->work != TSR__BESIDE && !tsr__traffic_owns(r, activity->object);
}

static void mark_dirty(struct tsr__replay *r, struct tsr__player *p)
{
    if (!p->dirty)
        r->dirty[r->n_dirty++] = p->id;
    p->dirty = true;
}

/* Records of a stream enter the hash in the order of the stream. */
static void hash_finished(struct tsr__player *p, struct tsr__stream *s)
{
    while (s->unhashed != TSR_NO_ID && p->done[s->unhashed]) {
        const struct tsr__task *task = &p->tape->tasks[s->unhashed];
        tsr_exec_record_done(&p->hash[task->iteration], &task->record);
        s->unhashed = task->next;
    }
}

void tsr__replay_finish(struct tsr__replay *r, struct tsr__player *p, uint32_t at, double end)
{
    const struct tsr__task *task = &p->tape->tasks[at];
    struct tsr__stream *s = &p->streams[task->stream];
    p->spans[at].end = end;
    p->done[at] = 1;
    if (task->in_group) {
        s->open--;
        s->group_tail = later(s->group_tail, end);
    } else {
        s->tail = end;
        s->head = task->next;
        s->busy = false;
    }
    if (task->kind == TSR__WIRE) {
        struct tsr__queue *queue = &p->queues[task->queue];
        queue->done++;
        queue->tail = later(queue->tail, end);
    }
    hash_finished(p, s);
    mark_dirty(r, p);
}

/* ---- streams ----------------------------------------------------------------------------- */

static void begin(struct tsr__player *p, uint32_t at, double start)
{
    p->spans[at].start = start;
    p->begun[at] = 1;
}

/* In a hardware queue an item starts after the one issued before it has started, and after a wait
 * only when that is over. */
static bool connection_free(const struct tsr__player *p, const struct tsr__task *task,
                            double *ready)
{
    uint32_t before = task->launch_after;
    if (before == TSR_NO_ID)
        return true;
    bool waits = p->tape->tasks[before].kind == TSR__STREAM_WAIT;
    if (!(waits ? p->done[before] : p->begun[before]))
        return false;
    *ready = later(*ready, waits ? p->spans[before].end : p->spans[before].start);
    return true;
}

/* What the rank's speed and noise make of a kernel's time. */
static double slowness(const struct tsr__replay *r, const struct tsr__player *p, uint32_t at)
{
    const struct tsr_conditions *c = &r->options->conditions;
    return p->slow * tsr_noise(c->seed, UINT64_C(1) << 32 | p->info->rank, at, c->jitter_kernel);
}

/* Seconds that a kernel takes alone on the GPU. */
static double kernel_seconds(const struct tsr__replay *r, const struct tsr__player *p, uint32_t at)
{
    const struct tsr__task *task = &p->tape->tasks[at];
    double slow = slowness(r, p, at);
    return task->body_s * slow + task->start_s * r->options->latency_scale * slow;
}

/* [Note: trains] Kernels of a stream that follow each other without a gap go to SimGrid as one
 * burst: nobody goes on at the end of any but the last, so that only its time decides something.
 * The others' ends follow from the GPU's clock when the train is through. A train ends before
 * whatever waits, is waited for or may start later, and where the host may wait for a place in the
 * device's queue. */
static bool ends_train(const struct tsr__task *task)
{
    return task->awaited || task->device_index % TSR__CREDITS == TSR__CREDITS - 1;
}

/* May `at` follow in a train that starts at `start`? */
static bool joins_train(const struct tsr__player *p, uint32_t at, double start)
{
    if (at == TSR_NO_ID || at >= p->pc || p->spans[at].issue > start)
        return false;
    const struct tsr__task *task = &p->tape->tasks[at];
    return (task->kind == TSR__KERNEL || (task->kind == TSR__INSTANT && !task->awaited)) &&
           !task->in_group;
}

/* Finds the end of the train that begins with a kernel; returns its seconds. */
static double gather_train(const struct tsr__replay *r, struct tsr__player *p, uint32_t at,
                           double start)
{
    struct tsr__stream *s = &p->streams[p->tape->tasks[at].stream];
    double seconds = kernel_seconds(r, p, at);
    s->last = at;
    while (!r->options->max_connections && !ends_train(&p->tape->tasks[s->last])) {
        uint32_t next = p->tape->tasks[s->last].next;
        if (!joins_train(p, next, start))
            break;
        if (p->tape->tasks[next].kind == TSR__KERNEL)
            seconds += kernel_seconds(r, p, next);
        s->last = next;
    }
    return seconds;
}

/* The train that began with `at` is through. */
static void finish_train(struct tsr__replay *r, struct tsr__player *p, uint32_t at)
{
    const struct tsr__gpu_clock *clock = tsr__backend_clock(r->backend, p->id);
    const struct tsr__task *tasks = p->tape->tasks;
    uint32_t first = at, last = p->streams[tasks[at].stream].last;
    double now = tsr__backend_now(), end = p->spans[at].start;
    double work = at == last ? 0.0 : tsr__gpu_clock_work(clock, end);
    for (; at != last; at = tasks[at].next) {
        begin(p, at, end);
        if (tasks[at].kind == TSR__KERNEL) {
            work += kernel_seconds(r, p, at);
            end = tsr__gpu_clock_time(clock, work);
            end = end < now ? end : now;
        }
        tsr__replay_finish(r, p, at, end);
    }
    if (last != first)
        begin(p, last, tasks[last].kind == TSR__KERNEL ? end : now);
    tsr__replay_finish(r, p, last, now);
}

/* Runs kernels on the GPU, or ends one at once when it takes no time. */
static void start_kernels(struct tsr__replay *r, struct tsr__player *p, uint32_t at, double ready)
{
    double seconds = gather_train(r, p, at, ready);
    p->streams[p->tape->tasks[at].stream].busy = true;
    begin(p, at, ready);
    if (seconds <= 0.0) {
        p->streams[p->tape->tasks[at].stream].last = at;
        tsr__replay_finish(r, p, at, ready);
        return;
    }
    struct tsr__activity activity = {.work = TSR__EXEC,
                                     .where = p->id,
                                     .delay_s = later(0.0, ready - tsr__backend_now()),
                                     .amount = seconds,
                                     .object = p,
                                     .tag = at};
    tsr__replay_submit(r, &activity);
}

static void start_copy(struct tsr__replay *r, struct tsr__player *p, uint32_t at, double ready)
{
    const struct tsr__task *task = &p->tape->tasks[at];
    struct tsr__stream *s = &p->streams[task->stream];
    s->busy = true;
    s->last = at;
    begin(p, at, ready);
    tsr__wire_host_copy(r, p, at, ready,
                        task->start_s * r->options->latency_scale * slowness(r, p, at));
}

/* A call of a group starts when the group has been issued and its stream is free; the calls of one
 * group do not wait for each other. */
static bool group_call_ready(const struct tsr__player *p, const struct tsr__stream *s,
                             const struct tsr__task *task, double *ready)
{
    if (p->pc <= task->group_end)
        return false;
    *ready = later(p->spans[task->group_end].issue, s->tail);
    return true;
}

/* Starts the head of a stream if it can start. True if something happened. */
static bool step_stream(struct tsr__replay *r, struct tsr__player *p, struct tsr__stream *s)
{
    uint32_t at = s->head;
    double ready;
    if (at == TSR_NO_ID || at >= p->pc || s->busy)
        return false;
    const struct tsr__task *task = &p->tape->tasks[at];
    if (task->in_group) {
        if (!group_call_ready(p, s, task, &ready))
            return false;
    } else {
        if (s->open)
            return false;
        ready = later(p->spans[at].issue, later(s->tail, s->group_tail));
    }
    if (!connection_free(p, task, &ready))
        return false;
    switch ((enum tsr__task_kind)task->kind) {
    case TSR__INSTANT:
        begin(p, at, ready);
        tsr__replay_finish(r, p, at, ready);
        return true;
    case TSR__STREAM_WAIT:
        if (task->dep != TSR_NO_ID && !p->done[task->dep])
            return false;
        begin(p, at, ready);
        if (task->dep != TSR_NO_ID)
            ready = later(ready, p->spans[task->dep].end);
        tsr__replay_finish(r, p, at, ready);
        return true;
    case TSR__WIRE:
        if (p->queues[task->queue].done < task->need)
            return false;
        ready = later(ready, p->queues[task->queue].tail);
        begin(p, at, ready);
        if (task->in_group) {
            s->open++;
            s->head = task->next;
        } else {
            s->busy = true;
        }
        tsr__wire_arrive(r, p, at, ready);
        return true;
    case TSR__HOST_COPY:
        start_copy(r, p, at, ready);
        return true;
    default:
        start_kernels(r, p, at, ready);
        return true;
    }
}

/* ---- host -------------------------------------------------------------------------------- */

/* Issues tasks[pc]: pays its cost. False when the queue of the device is full. */
static bool issue(struct tsr__replay *r, struct tsr__player *p, const struct tsr__task *task)
{
    uint32_t depth = r->options->queue_depth;
    bool device = task->kind != TSR__HOST_ONLY && task->kind != TSR__HOST_SYNC;
    if (device && depth && task->device_index >= depth) {
        uint32_t place = task->device_index - depth;
        if (depth >= 4 * TSR__CREDITS)
            place |= TSR__CREDITS - 1;
        uint32_t slot = p->tape->device[place];
        if (!p->done[slot])
            return false;
        p->host = later(p->host, p->spans[slot].end);
    }
    struct tsr_sim_span *span = &p->spans[p->pc];
    double cost = task->host_s * r->options->host_scale;
    span->start = p->host;
    p->host += cost;
    span->issue = p->host;
    if (task->record.kind != TSR_HOST_OP)
        span->start = p->host;
    span->end = p->host;
    return true;
}

static void finish_on_host(struct tsr__player *p, const struct tsr__task *task)
{
    p->done[p->pc] = 1;
    if (task->is_work)
        tsr_exec_record_done(&p->hash[task->iteration], &task->record);
}

/* Issues as far as the host gets. True if something happened. */
static bool run_host(struct tsr__replay *r, struct tsr__player *p)
{
    bool moved = false;
    for (; p->pc < p->tape->n_tasks; p->pc++, p->blocked = false, moved = true) {
        const struct tsr__task *task = &p->tape->tasks[p->pc];
        if (!p->blocked && !issue(r, p, task))
            return moved;
        if (task->kind == TSR__HOST_SYNC && task->dep != TSR_NO_ID) {
            p->blocked = true;
            if (!p->done[task->dep])
                return moved;
            p->host = later(p->host, p->spans[task->dep].end);
            p->spans[p->pc].end = p->host;
        }
        if (task->kind == TSR__HOST_ONLY || task->kind == TSR__HOST_SYNC)
            finish_on_host(p, task);
    }
    return moved;
}

static void advance(struct tsr__replay *r, struct tsr__player *p)
{
    bool moved = true;
    while (moved && !r->failed) {
        moved = run_host(r, p);
        for (uint32_t i = 0; i < p->tape->n_streams; i++)
            while (step_stream(r, p, &p->streams[i]))
                moved = true;
    }
}

static void pump(struct tsr__replay *r)
{
    while (r->n_dirty && !r->failed) {
        struct tsr__player *p = &r->players[r->dirty[--r->n_dirty]];
        p->dirty = false;
        advance(r, p);
    }
}

/* An activity has ended: a kernel of a player, or a part of a collective. */
static void activity_done(void *user, void *object, uint32_t tag)
{
    struct tsr__replay *r = user;
    struct tsr__player *first = r->players, *last = r->players + r->q->n_ranks;
    if (r->failed)
        return;
    if (tsr__traffic_owns(r, object)) {
        tsr__traffic_sent(r, object);
        return;
    }
    r->n_live--;
    if ((struct tsr__player *)object >= first && (struct tsr__player *)object < last)
        finish_train(r, object, tag);
    else
        tsr__wire_progress(r, object, tag);
    pump(r);
}

/* ---- whole run --------------------------------------------------------------------------- */

static bool init_player(struct tsr__replay *r, uint32_t id, uint32_t n_queues)
{
    struct tsr__player *p = &r->players[id];
    p->id = id;
    p->info = &r->q->ranks[id];
    p->tape = &r->tapes->items[p->info->layout];
    p->slow = p->info->slow * tsr_noise(r->options->conditions.seed, 0, p->info->rank,
                                        r->options->conditions.jitter_gpu);
    p->spans = r->result->ranks[id].spans[0];
    p->streams = calloc(p->tape->n_streams + 1u, sizeof *p->streams);
    p->queues = calloc(n_queues + 1u, sizeof *p->queues);
    p->done = calloc((size_t)p->tape->n_tasks + 1, sizeof *p->done);
    p->begun = calloc((size_t)p->tape->n_tasks + 1, sizeof *p->begun);
    p->hash = calloc(r->n_iterations + 1u, sizeof *p->hash);
    if (!p->streams || !p->queues || !p->done || !p->begun || !p->hash)
        return false;
    for (uint32_t i = 0; i < p->tape->n_streams; i++)
        p->streams[i].head = p->streams[i].unhashed = p->tape->head[i];
    for (uint32_t i = 0; i < r->n_iterations; i++)
        tsr_exec_hash_init(&p->hash[i]);
    return true;
}

/* The child exits right after: nothing is freed. */
static bool init(struct tsr__replay *r)
{
    uint32_t n_queues = 0;
    r->players = calloc(r->q->n_ranks + 1u, sizeof *r->players);
    r->dirty = calloc(r->q->n_ranks + 1u, sizeof *r->dirty);
    r->pending = calloc(r->q->n_groups + 1u, sizeof *r->pending);
    if (!r->players || !r->dirty || !r->pending)
        return false;
    for (uint32_t i = 0; i < r->tapes->n; i++)
        if (r->tapes->items[i].n_queues > n_queues)
            n_queues = r->tapes->items[i].n_queues;
    for (uint32_t i = 0; i < r->q->n_ranks; i++)
        if (!init_player(r, i, n_queues))
            return false;
    return true;
}

static bool is_complete(const struct tsr__replay *r)
{
    for (uint32_t i = 0; i < r->q->n_ranks; i++) {
        const struct tsr__player *p = &r->players[i];
        bool over = p->pc == p->tape->n_tasks;
        for (uint32_t s = 0; s < p->tape->n_streams; s++)
            over = over && p->streams[s].head == TSR_NO_ID && !p->streams[s].open;
        if (!over)
            return false;
    }
    return true;
}

static void fill_result(const struct tsr__replay *r)
{
    for (uint32_t i = 0; i < r->q->n_ranks; i++) {
        const struct tsr__player *p = &r->players[i];
        for (uint32_t k = 0; k < r->n_iterations; k++) {
            r->result->ranks[i].exec_hash[k] = tsr_exec_hash_value(&p->hash[k]);
            for (uint32_t at = p->tape->first[k]; at < p->tape->first[k + 1]; at++)
                r->result->iteration_end[k] = later(r->result->iteration_end[k], p->spans[at].end);
        }
    }
    for (uint32_t k = 1; k < r->n_iterations; k++) /* an empty iteration ends with the one before */
        r->result->iteration_end[k] =
            later(r->result->iteration_end[k], r->result->iteration_end[k - 1]);
    r->result->n_activities = tsr__backend_activities(r->backend);
}

void tsr__replay_run(const struct tsr__quotient *q, const struct tsr__tapes *tapes,
                     const struct tsr_sim_job *job, const struct tsr_sim_options *options,
                     struct tsr_sim_result *result, struct tsr__verdict *verdict)
{
    struct tsr__replay r = {.q = q,
                            .tapes = tapes,
                            .options = options,
                            .result = result,
                            .verdict = verdict,
                            .n_iterations = job->n_iterations};
    struct tsr__platform platform;
    bool links = !options->infinite_bandwidth;
    verdict->status = TSR_OK;
    if (!init(&r) || tsr__platform_build(q, &platform) != TSR_OK) {
        tsr__replay_fail(&r, TSR_ENOMEM, "out of memory: replay");
        return;
    }
    r.backend = tsr__backend_start(q, &platform, links, activity_done, &r);
    if (!r.backend) {
        tsr__replay_fail(&r, TSR_EBACKEND, "SimGrid could not be started");
        return;
    }
    for (uint32_t i = 0; i < q->n_ranks; i++)
        mark_dirty(&r, &r.players[i]);
    pump(&r);
    if (!tsr__traffic_start(&r))
        tsr__replay_fail(&r, TSR_ENOMEM, "out of memory: replay");
    tsr__backend_run(r.backend);
    if (!r.failed && !is_complete(&r))
        tsr__replay_report_deadlock(&r);
    if (!r.failed)
        fill_result(&r);
}
