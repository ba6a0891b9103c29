/* cuda_device.c: a GPU as a device: waiting without hanging, failing, memory, opening and closing.
 * Streams and times are cuda_device_stream.c, tasks cuda_device_task.c.
 */
#include "exec/cuda/device/cuda_device.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exec/cuda/blas/blas.h"
#include "exec/cuda/cudnn/cudnn_attention.h"
#include "exec/cuda/device/cuda_device_impl.h"

/* Of streams after a failure, until they are left as they are. */
#define SETTLE_S 3.0

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double tsr__cuda_now(const struct tsr_cuda_device *d)
{
    return clock_s() - d->start;
}

/* ---- failing --------------------------------------------------------------------------------- */

void tsr__cuda_give_up(struct tsr_cuda_device *d, tsr_status status, const char *why)
{
    bool expected = false;
    if (!atomic_compare_exchange_strong(&d->failing, &expected, true))
        return;
    snprintf(d->text, sizeof d->text, "%s", why);
    atomic_store_explicit(&d->failed, (int)status, memory_order_release);
    if (d->config.comms)
        d->config.comms->ops->abort(d->config.comms, status, why);
}

tsr_status tsr__cuda_check(struct tsr_cuda_device *d)
{
    int failed = atomic_load_explicit(&d->failed, memory_order_acquire);
    return failed ? tsr_fail((tsr_status)failed, "%s", d->text) : TSR_OK;
}

/* For this thread's failure. */
static tsr_status fail(struct tsr_cuda_device *d, tsr_status status)
{
    if (status != TSR_OK)
        tsr__cuda_give_up(d, status, tsr_error_text());
    return status == TSR_OK ? TSR_OK : tsr__cuda_check(d);
}

static void note_latest(struct tsr_cuda_device *d, const struct tsr_task *task)
{
    const struct tsr_work *work = task->call.work;
    const char *name = work          ? work->name
                       : task->instr ? tsr_instr_kind_name(task->instr->kind)
                                     : "poison";
    unsigned i = d->n_latest++ % TSR_CUDA_LATEST;
    d->latest[i].name = name;
    d->latest[i].number = task->number;
}

static void note_range(struct tsr_cuda_device *d, const struct tsr_task *task)
{
    const struct tsr_tables *tables = d->config.tables ? d->config.tables(d->config.user) : NULL;
    if (task->instr)
        tsr_cuda_ranges_next(&d->ranges, tables, &task->instr->origin);
}

/* CUDA tells of a failure on the device with whatever is called next. */
static tsr_status failed_on_device(struct tsr_cuda_device *d, cudaError_t error)
{
    char names[TSR_CUDA_LATEST * 82] = "";
    unsigned n = d->n_latest < TSR_CUDA_LATEST ? d->n_latest : TSR_CUDA_LATEST;
    for (unsigned i = 0; i < n; i++) {
        size_t length = strlen(names);
        unsigned at = (d->n_latest - n + i) % TSR_CUDA_LATEST;
        snprintf(names + length, sizeof names - length, "%s%.56s #%llu", i ? ", " : "",
                 d->latest[at].name, (unsigned long long)d->latest[at].number);
    }
    return tsr_fail(TSR_EBACKEND,
                    "GPU %d: CUDA says '%s'; submitted last: %s (--serial shows which it was)",
                    d->gpu.index, cudaGetErrorString(error), n ? names : "nothing");
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* What a wait looks at beside its event. */
struct patience {
    unsigned turns;
    /* When the communicators were asked, when all streams were, and when one had moved. */
    double polled, looked, moved;
    uint64_t done;
};

/* Looking at the other streams orders the host after them, which no program relies on: seldom, so
 * that a missing wait shows. */
#define POLL_S 1e-3
#define LOOK_S 1.0

static uint64_t count_all(struct tsr_cuda_device *d)
{
    uint64_t sum = 0;
    for (int i = 0; i < TSR_CUDA_STREAMS; i++)
        if (d->streams[i].handle)
            sum += tsr__cuda_done(&d->streams[i]);
    return sum;
}

static tsr_status lost(struct tsr_cuda_device *d, double seconds)
{
    const char *latest =
        d->n_latest ? d->latest[(d->n_latest - 1) % TSR_CUDA_LATEST].name : "nothing";
    return tsr_fail(d->config.comms ? TSR_EPEER : TSR_EBACKEND,
                    "GPU %d: nothing has moved for %.0f s; submitted last: %s", d->gpu.index,
                    seconds, latest);
}

static tsr_status look_around(struct tsr_cuda_device *d, struct patience *p)
{
    double now = clock_s();
    TSR_TRY(tsr__cuda_check(d));
    if (p->looked == 0)
        p->looked = p->moved = now;
    if (now - p->polled < POLL_S)
        return TSR_OK;
    p->polled = now;
    if (d->config.comms)
        TSR_TRY(d->config.comms->ops->poll(d->config.comms));
    if (now - p->looked < LOOK_S)
        return TSR_OK;
    p->looked = now;
    uint64_t done = count_all(d);
    if (done != p->done)
        p->moved = now;
    p->done = done;
    if (d->config.timeout_s > 0 && now - p->moved > d->config.timeout_s)
        return lost(d, d->config.timeout_s);
    return TSR_OK;
}

/* First without giving the core away for long: a step may be short. A step of seconds still ends
 * within some tens of microseconds; what takes longer than that is no step. */
static void pause_a_little(struct patience *p)
{
    if (p->turns++ < 200)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = p->turns < 100000 ? 20000 : 200000}, NULL);
}

static tsr_status wait_for(struct tsr_cuda_device *d, cudaEvent_t event)
{
    struct patience p = {.turns = 0};
    for (;;) {
        cudaError_t error = cudaEventQuery(event);
        if (error == cudaSuccess)
            return TSR_OK;
        (void)cudaGetLastError(); /* libraries take "not ready" for a failure of theirs */
        if (error != cudaErrorNotReady)
            return failed_on_device(d, error);
        TSR_TRY(look_around(d, &p));
        pause_a_little(&p);
    }
}

tsr_status tsr__cuda_wait(struct tsr_cuda_device *d, cudaEvent_t event)
{
    TSR_TRY(tsr__cuda_check(d));
    return fail(d, wait_for(d, event));
}

static tsr_status wait_event(struct tsr_device *device, uint32_t number)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    struct tsr_cuda_event *e;
    TSR_TRY(tsr__cuda_check(d));
    TSR_TRY(fail(d, tsr_cuda_event_find(&d->events, number, &e)));
    if (!e)
        return TSR_OK;
    TSR_TRY(tsr__cuda_wait(d, tsr_cuda_event_of(e)));
    e->done = true;
    return TSR_OK;
}

static tsr_status wait_stream(struct tsr_device *device, uint16_t stream)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    TSR_TRY(tsr__cuda_check(d));
    if (stream >= TSR_CUDA_STREAMS)
        return TSR_OK;
    return fail(d, tsr__cuda_wait_stream(d, &d->streams[stream]));
}

/* True if nothing runs on the device, or will: a few seconds after a failure it may. What is asked
 * of CUDA then could wait for ever. */
static bool is_settled(struct tsr_cuda_device *d)
{
    double end = clock_s() + SETTLE_S;
    for (int i = 0; i < TSR_CUDA_STREAMS && !d->stuck; i++) {
        struct tsr_cuda_stream *s = &d->streams[i];
        if (!s->handle || cudaEventRecord(s->tail, s->handle) != cudaSuccess)
            continue;
        while (cudaEventQuery(s->tail) == cudaErrorNotReady && !d->stuck) {
            (void)cudaGetLastError();
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            d->stuck = clock_s() > end;
        }
    }
    return !d->stuck;
}

/* After a failure what still runs is waited for, too: the caller is about to free what it reads. */
static tsr_status drain(struct tsr_device *device)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    tsr_cuda_ranges_end(&d->ranges);
    for (uint16_t i = 0; i < TSR_CUDA_STREAMS && !atomic_load(&d->failed); i++)
        (void)!wait_stream(device, i); /* the device keeps the first failure */
    if (atomic_load(&d->failed))
        (void)is_settled(d);
    TSR_TRY(tsr__cuda_check(d));
    return fail(d, tsr__cuda_time_resolve(d));
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static tsr_status hand_over(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                            const struct tsr_task *task)
{
    bool timed = d->timing && task->kind != TSR_TASK_POISON;
    if (timed)
        TSR_TRY(tsr__cuda_time_begin(d, s->context.index, task));
    TSR_TRY(tsr__cuda_run(d, s, task));
    if (timed)
        TSR_TRY(tsr__cuda_time_end(d));
    if (task->kind == TSR_TASK_POISON) {
        s->joined = UINT64_MAX; /* it is not counted: graphs come after all the same */
        return TSR_OK;
    }
    TSR_TRY(tsr__cuda_count(s));
    if (task->kind == TSR_TASK_RECORD)
        tsr__cuda_mark(s, tsr_cuda_event_slot(&d->events, task->event)->event);
    return TSR_OK;
}

static tsr_status submit(struct tsr_device *device, uint16_t stream, const struct tsr_task *task)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    struct tsr_cuda_stream *s;
    TSR_TRY(tsr__cuda_check(d));
    TSR_TRY(fail(d, tsr__cuda_stream(d, stream, &s)));
    if (d->graphs.what == TSR_CUDA_CAPTURES) /* its failure is not the run's */
        return tsr__cuda_graph_task(d, s, task);
    if (d->graphs.what == TSR_CUDA_RUNS)
        return fail(d, tsr__cuda_graph_task(d, s, task));
    note_latest(d, task);
    note_range(d, task);
    TSR_TRY(fail(d, hand_over(d, s, task)));
    if (d->config.serial)
        TSR_TRY(wait_stream(device, stream));
    if (d->config.done)
        d->config.done(d->config.user, stream, task, NAN, NAN);
    return TSR_OK;
}

static uint64_t count_slow(const struct tsr_device *device)
{
    return tsr_slow_count(&((const struct tsr_cuda_device *)device)->slow);
}

static uint64_t count_done(struct tsr_device *device, uint16_t stream)
{
    struct tsr_cuda_stream *s = &tsr__cuda_device(device)->streams[stream % TSR_CUDA_STREAMS];
    return s->handle ? tsr__cuda_done(s) : 0;
}

static tsr_status set_timing(struct tsr_device *device, bool on)
{
    return tsr__cuda_set_timing(tsr__cuda_device(device), on);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static tsr_status map(struct tsr_device *device, uint64_t address, uint64_t bytes)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    struct tsr_comms *comms = d->config.comms;
    TSR_TRY(tsr__cuda_check(d));
    TSR_TRY(tsr_cuda_space_map(&d->space, address, bytes));
    if (!comms || !comms->ops->map)
        return TSR_OK;
    return fail(d, comms->ops->map(comms, tsr_cuda_space_at(&d->space, address), bytes));
}

/* The program has waited for all that used it. */
static tsr_status unmap(struct tsr_device *device, uint64_t address, uint64_t bytes)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    struct tsr_comms *comms = d->config.comms;
    void *at = tsr_cuda_space_at(&d->space, address);
    TSR_TRY(tsr__cuda_check(d));
    if (at && comms && comms->ops->unmap)
        TSR_TRY(fail(d, comms->ops->unmap(comms, at, bytes)));
    return fail(d, tsr_cuda_space_unmap(&d->space, address, bytes));
}

static void *at(struct tsr_device *device, uint64_t address)
{
    return tsr_cuda_space_at(&tsr__cuda_device(device)->space, address);
}

static void *pin(struct tsr_device *device, uint64_t bytes)
{
    void *memory = NULL;
    (void)device;
    if (cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) == cudaSuccess)
        return memory;
    (void)cudaGetLastError();
    return NULL;
}

static void unpin(struct tsr_device *device, void *memory)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    if (!atomic_load(&d->failed) || is_settled(d))
        (void)cudaFreeHost(memory);
}

tsr_status tsr_cuda_device_memory(const struct tsr_device *device, struct tsr_cuda_memory *out)
{
    const struct tsr_cuda_device *d = (const struct tsr_cuda_device *)device;
    size_t free_bytes = 0, total = 0;
    *out = (struct tsr_cuda_memory){
        .mapped = d->space.mapped, .peak = d->space.peak, .library = d->library};
    TSR_CUDA("the GPU's memory", cudaMemGetInfo(&free_bytes, &total));
    out->used = total - free_bytes;
    out->total = total;
    return TSR_OK;
}

void tsr_cuda_device_comms(const struct tsr_device *device, char *text, size_t bytes)
{
    const struct tsr_comms *comms = ((const struct tsr_cuda_device *)device)->config.comms;
    if (bytes > 0)
        text[0] = 0;
    if (comms && comms->ops->describe)
        comms->ops->describe(comms, text, bytes);
}

static tsr_status read(struct tsr_device *device, const void *from, void *to, uint64_t bytes)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    TSR_TRY(tsr__cuda_check(d));
    return fail(d, tsr__cuda_read(d, from, to, bytes));
}

/* ---- opening and closing --------------------------------------------------------------------- */

static double read_clock(struct tsr_device *device)
{
    return tsr__cuda_now(tsr__cuda_device(device));
}

static void give_up(struct tsr_device *device, tsr_status status, const char *why)
{
    tsr__cuda_give_up(tsr__cuda_device(device), status, why);
}

/* Work that never ends keeps what it uses: the process ends with it. */
static void destroy(struct tsr_device *device)
{
    struct tsr_cuda_device *d = tsr__cuda_device(device);
    tsr_watchdog_stop(d->watchdog);
    (void)cudaSetDevice(d->gpu.index); /* whichever thread it is */
    if (is_settled(d)) {
        tsr__cuda_graphs_close(d); /* NCCL waits for graphs that hold its work */
        if (d->config.comms)
            d->config.comms->ops->destroy(d->config.comms);
        tsr__cuda_staging_close(d);
        for (int i = 0; i < TSR_CUDA_STREAMS; i++)
            tsr__cuda_stream_close(&d->streams[i]);
        tsr__cuda_time_close(d);
        tsr_cuda_events_destroy(&d->events);
        tsr_attention_destroy(d->attention);
        tsr_blas_destroy(d->blas);
        tsr_cuda_space_fini(&d->space);
    }
    free(d);
}

static const struct tsr_device_ops ops = {
    .name = "the GPU",
    .kernel = tsr_cuda_kernel_of,
    .fill = tsr_cuda_fill,
    .pin = pin,
    .unpin = unpin,
    .map = map,
    .unmap = unmap,
    .at = at,
    .submit = submit,
    .wait_event = wait_event,
    .wait_stream = wait_stream,
    .drain = drain,
    .read = read,
    .now = read_clock,
    .count_done = count_done,
    .count_slow = count_slow,
    .set_timing = set_timing,
    .has_workspaces = true,
    .abort = give_up,
    .destroy = destroy,
    .graphs = &tsr_cuda_device_graphs,
};

const struct tsr_device_ops *tsr_cuda_device_ops(void)
{
    return &ops;
}

static void lost_ranks(void *user, tsr_status status, const char *why)
{
    tsr__cuda_give_up(user, status, why);
}

static void hangs(void *user, tsr_status status, const char *why)
{
    struct tsr_cuda_device *d = user;
    if (d->config.stuck)
        d->config.stuck(d->config.user, status, why);
}

static tsr_status start_watchdog(struct tsr_cuda_device *d)
{
    const struct tsr_watchdog_config config = {.comms = d->config.comms,
                                               .gpu = d->config.gpu,
                                               .lost = lost_ranks,
                                               .stuck = hangs,
                                               .user = d};
    return tsr_watchdog_start(&config, &d->watchdog);
}

/* Without cuDNN the plain kernels do it. */
static void open_attention(struct tsr_cuda_device *d)
{
    d->slow.allowed = d->config.allow_slow;
    if (d->config.plain_attention) {
        (void)snprintf(d->no_attention, sizeof d->no_attention, "TESSERA_ATTENTION is plain");
        return;
    }
    int result = tsr_attention_create(d->gpu.architecture, &d->attention, d->no_attention);
    d->slow.has_cudnn = result != TSR_ATTENTION_NOT_BUILT;
    if (result)
        d->attention = NULL;
}

static tsr_status open_all(struct tsr_cuda_device *d)
{
    TSR_TRY(tsr_gpu_open(d->config.gpu, &d->gpu));
    const struct tsr_blas_config blas = {.gpu = &d->gpu,
                                         .plans = d->config.plans,
                                         .deterministic = d->config.deterministic,
                                         .tune = d->config.tune};
    const struct tsr_comms *comms = d->config.comms;
    TSR_TRY(
        tsr_cuda_space_init(&d->space, d->config.gpu, d->config.unit, comms && comms->ops->map));
    TSR_TRY(tsr_cuda_events_create(&d->events));
    open_attention(d);
    TSR_TRY(tsr_blas_create(&blas, &d->blas));
    /* left by the caller's own calls of CUDA, or by a library that could not start */
    (void)cudaGetLastError();
    return d->config.comms ? start_watchdog(d) : TSR_OK;
}

/* Those that are not empty, with "; " between them. */
static void join(char *out, size_t bytes, const char *const *parts, size_t n)
{
    size_t used = 0;
    *out = 0;
    for (size_t i = 0; i < n && used < bytes; i++)
        if (parts[i][0])
            used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? "; " : "", parts[i]);
}

/* Nothing where NCCL has multicast, or the GPU does not. */
static void note_multicast(const struct tsr_cuda_space *space, char *out, size_t n)
{
    if (space->multicast > space->granularity)
        (void)snprintf(out, n,
                       "NCCL goes without NVLink multicast, which maps memory in units of "
                       "%llu MiB, while segments are multiples of %llu MiB",
                       (unsigned long long)(space->multicast >> 20),
                       (unsigned long long)(TSR_CUDA_SEGMENT_UNIT >> 20));
}

void tsr_cuda_device_note(const struct tsr_device *device, char *out, size_t n)
{
    struct tsr_cuda_device *d = tsr__cuda_device((struct tsr_device *)(uintptr_t)device);
    char attention[TSR_ATTENTION_TEXT] = "", slow[768], multicast[160] = "";
    if (d->attention)
        tsr_attention_note(d->attention, attention);
    else
        snprintf(attention, sizeof attention, "attention runs in plain kernels, slower: %.200s",
                 d->no_attention);
    const char *blas = tsr_blas_note(d->blas);
    tsr_slow_note(&d->slow, slow, sizeof slow);
    note_multicast(&d->space, multicast, sizeof multicast);
    const char *parts[] = {slow, attention, blas, multicast};
    join(out, n, parts, sizeof parts / sizeof *parts);
}

tsr_status tsr_cuda_device_create(const struct tsr_cuda_device_config *config,
                                  struct tsr_device **out)
{
    *out = NULL;
    struct tsr_cuda_device *d = calloc(1, sizeof *d);
    if (!d) {
        if (config->comms)
            config->comms->ops->destroy(config->comms);
        return tsr_no_memory("a device");
    }
    d->base.ops = &ops;
    d->config = *config;
    d->start = clock_s();
    tsr_status status = open_all(d);
    if (status != TSR_OK) {
        destroy(&d->base);
        return status;
    }
    *out = &d->base;
    return TSR_OK;
}

/* ---- one rank: a device and an executor on it ------------------------------------------------ */

tsr_status tsr_cuda_rank_create(const struct tsr_cuda_rank_config *config,
                                struct tsr_executor **out, struct tsr_device **device)
{
    *out = NULL;
    TSR_TRY(tsr_kernels_init()); /* for what runs on host memory */
    struct tsr_exec *exec = tsr_exec_new();
    if (!exec) {
        if (config->comms)
            config->comms->ops->destroy(config->comms);
        return tsr_no_memory("an executor");
    }
    const struct tsr_cuda_device_config d = {.gpu = config->gpu,
                                             .tables = tsr_exec_tables,
                                             .unit = config->unit,
                                             .comms = config->comms,
                                             .plans = config->plans,
                                             .tune = config->tune,
                                             .deterministic = config->deterministic,
                                             .timeout_s = config->timeout_s,
                                             .direct = config->direct,
                                             .serial = config->serial,
                                             .plain_attention = config->plain_attention,
                                             .allow_slow = config->allow_slow,
                                             .stuck = config->stuck,
                                             .done = tsr_exec_done,
                                             .times = tsr_exec_times,
                                             .user = exec};
    struct tsr_exec_config x = {.world = config->world,
                                .source = config->source,
                                .n_kernels = config->n_kernels,
                                .kernels = config->kernels,
                                .poison = config->poison,
                                .profile = config->profile,
                                .watcher = config->watcher};
    tsr_status status = tsr_cuda_device_create(&d, &x.device);
    struct tsr_executor *executor = tsr_exec_start(exec, &x);
    if (status != TSR_OK) {
        executor->ops->destroy(executor);
        return status;
    }
    *out = executor;
    if (device)
        *device = x.device;
    return TSR_OK;
}
