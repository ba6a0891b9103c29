/* host_device.c: the operations of a device of threads: tasks to queues, kernels and collectives
 * run by workers, failures that end every wait.
 */
#include "exec/host/host_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__SANITIZE_THREAD__)
void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes);
#endif

static struct tsr_host_device *of(struct tsr_device *device)
{
    return (struct tsr_host_device *)device;
}

static double now(const struct tsr_host_device *d)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)(t.tv_sec - d->start.tv_sec) + 1e-9 * (double)(t.tv_nsec - d->start.tv_nsec);
}

/* ---- failing --------------------------------------------------------------------------------- */

/* The first failure counts; it ends every wait of this device and of the other ranks. */
static void give_up(struct tsr_device *device, tsr_status status, const char *why)
{
    struct tsr_host_device *d = of(device);
    bool expected = false;
    if (!atomic_compare_exchange_strong(&d->failing, &expected, true))
        return;
    snprintf(d->text, sizeof d->text, "%s", why);
    atomic_store_explicit(&d->failed, (int)status, memory_order_release);
    tsr_host_events_abort(&d->events);
    if (d->config.world)
        d->config.world->ops->abort(d->config.world, status, why);
}

static tsr_status check(struct tsr_host_device *d)
{
    int failed = atomic_load_explicit(&d->failed, memory_order_acquire);
    return failed ? tsr_fail((tsr_status)failed, "%s", d->text) : TSR_OK;
}

/* ---- running a task -------------------------------------------------------------------------- */

/* Libraries are invisible to the sanitizer: what a task declares is announced instead. */
#if defined(__SANITIZE_THREAD__)
static void announce_view(const struct tsr_view *view)
{
    bool rows = view->pitch > view->width;
    uint64_t step = rows ? view->pitch : view->bytes, width = rows ? view->width : view->bytes;
    for (uint64_t at = 0; at < view->bytes; at += step) {
        uint64_t n = tsr_min_u64(width, view->bytes - at);
        if (view->access & TSR_WRITE)
            __tsan_write_range((char *)view->data + at, n);
        else
            __tsan_read_range((char *)view->data + at, n);
    }
}
#endif

static void announce(const struct tsr_task *task)
{
#if defined(__SANITIZE_THREAD__)
    for (uint32_t i = 0; i < task->call.n_views; i++)
        announce_view(&task->call.views[i]);
#else
    (void)task;
#endif
}

/* xorshift64*: the delays of a stream follow from the seed. */
static void jitter(const struct tsr_host_device *d, struct tsr_host_stream *stream)
{
    if (d->config.jitter_us == 0 || !stream)
        return;
    stream->random ^= stream->random >> 12;
    stream->random ^= stream->random << 25;
    stream->random ^= stream->random >> 27;
    uint64_t us = (stream->random * UINT64_C(2685821657736338717) >> 33) % d->config.jitter_us;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1000000),
                                 .tv_nsec = (long)(us % 1000000) * 1000},
              NULL);
}

static tsr_status run_collectives(struct tsr_host_device *d, const struct tsr_task *task)
{
    struct tsr_world *world = d->config.world;
    if (!world && task->n_collectives)
        return tsr_fail(TSR_EUNSUPPORTED, "a collective, and the device is of no world");
    for (size_t i = 0; i < task->n_collectives; i++)
        TSR_TRY(world->ops->collective(world, &task->collectives[i]));
    return TSR_OK;
}

static void fill_with_nan(const struct tsr_task *task)
{
    for (uint32_t i = 0; i < task->call.n_views; i++)
        memset(task->call.views[i].data, 0xff, task->call.views[i].bytes);
}

static tsr_status run_work(struct tsr_host_device *d, const struct tsr_task *task)
{
    struct tsr_world *world = d->config.world;
    announce(task);
    switch (task->kind) {
    case TSR_TASK_KERNEL:
        return task->kernel(&task->call);
    case TSR_TASK_SOURCE:
        return task->source_fn(task->source, task->instr, &task->call);
    case TSR_TASK_COLLECTIVE:
        return run_collectives(d, task);
    case TSR_TASK_MESSAGES:
        if (!world)
            return tsr_fail(TSR_EUNSUPPORTED, "messages, and the device is of no world");
        return world->ops->messages(world, task->comm, task->comm_id, task->sequence,
                                    task->messages, task->n_messages);
    default:
        fill_with_nan(task);
        return TSR_OK;
    }
}

static void count_busy(struct tsr_host_device *d)
{
    unsigned busy = 1 + atomic_fetch_add_explicit(&d->busy, 1, memory_order_relaxed);
    unsigned peak = atomic_load_explicit(&d->peak_busy, memory_order_relaxed);
    while (busy > peak &&
           !atomic_compare_exchange_weak_explicit(&d->peak_busy, &peak, busy, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

static tsr_status run_task(struct tsr_host_device *d, struct tsr_host_stream *stream,
                           const struct tsr_task *task)
{
    if (task->kind == TSR_TASK_WAIT)
        return tsr_host_event_wait(&d->events, task->event) ? TSR_OK : TSR_EPEER;
    if (task->kind == TSR_TASK_RECORD)
        return TSR_OK; /* published when it has been reported as done */
    jitter(d, stream);
    count_busy(d);
    tsr_status status = run_work(d, task);
    atomic_fetch_sub_explicit(&d->busy, 1, memory_order_relaxed);
    return status;
}

static void run(struct tsr_host_device *d, struct tsr_host_stream *stream, uint16_t index,
                const struct tsr_task *task)
{
    if (atomic_load_explicit(&d->failed, memory_order_relaxed))
        return; /* what is queued behind a failure is dropped */
    double begin = now(d);
    tsr_status status = run_task(d, stream, task);
    if (status != TSR_OK) {
        give_up(&d->base, status, tsr_error_text());
        return;
    }
    if (d->config.done)
        d->config.done(d->config.user, index, task, begin, now(d));
    if (task->kind == TSR_TASK_RECORD)
        tsr_host_event_record(&d->events, task->event);
}

static void run_queued(void *user, struct tsr_host_stream *stream, struct tsr_queued *queued)
{
    struct tsr_host_device *d = user;
    if (queued == &stream->tail)
        tsr_host_event_record(&d->tails, queued->task.event);
    else
        run(d, stream, stream->index, &queued->task);
}

/* ---- the interface --------------------------------------------------------------------------- */

static tsr_status start_stream(struct tsr_host_device *d, uint16_t index)
{
    struct tsr_host_stream *s = calloc(1, sizeof *s);
    if (!s)
        return tsr_no_memory("a stream");
    s->run = run_queued;
    s->user = d;
    s->index = index;
    s->random = (d->config.jitter_seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + index + 1;
    tsr_status status = tsr_host_stream_start(s, d->config.queue_depth);
    if (status != TSR_OK) {
        free(s);
        return status;
    }
    d->streams[index] = s;
    return TSR_OK;
}

static tsr_status submit(struct tsr_device *device, uint16_t stream, const struct tsr_task *task)
{
    struct tsr_host_device *d = of(device);
    TSR_TRY(check(d));
    if (d->config.serial) {
        run(d, NULL, stream, task);
        return check(d);
    }
    if (stream >= TSR_HOST_STREAMS)
        return tsr_fail(TSR_EUNSUPPORTED, "a program with more than %d streams", TSR_HOST_STREAMS);
    if (!d->streams[stream])
        TSR_TRY(start_stream(d, stream));
    struct tsr_queued *queued = tsr_queued_new(task);
    if (!queued)
        return tsr_no_memory("a task of a stream");
    tsr_host_stream_push(d->streams[stream], queued);
    return TSR_OK;
}

static tsr_status wait_event(struct tsr_device *device, uint32_t event)
{
    struct tsr_host_device *d = of(device);
    tsr_host_event_wait(&d->events, event); /* or until the device fails */
    return check(d);
}

/* After a failure, too: what runs then still reads and writes memory that the caller is about to
 * free. A stream drops what is queued behind the failure, and comes to its tail. */
static tsr_status wait_stream(struct tsr_device *device, uint16_t stream)
{
    struct tsr_host_device *d = of(device);
    if (stream < TSR_HOST_STREAMS && d->streams[stream]) {
        struct tsr_host_stream *s = d->streams[stream];
        s->tail.task.event = ++d->n_tails;
        tsr_host_stream_push(s, &s->tail);
        tsr_host_event_wait(&d->tails, s->tail.task.event);
    }
    return check(d);
}

static tsr_status drain(struct tsr_device *device)
{
    for (uint16_t i = 0; i < TSR_HOST_STREAMS; i++)
        (void)!wait_stream(device, i); /* the device keeps the first failure */
    return check(of(device));
}

static tsr_status map(struct tsr_device *device, uint64_t address, uint64_t bytes)
{
    return tsr_host_space_map(&of(device)->space, address, bytes);
}

static tsr_status unmap(struct tsr_device *device, uint64_t address, uint64_t bytes)
{
    return tsr_host_space_unmap(&of(device)->space, address, bytes);
}

static void *at(struct tsr_device *device, uint64_t address)
{
    return tsr_host_space_at(&of(device)->space, address);
}

static double read_clock(struct tsr_device *device)
{
    return now(of(device));
}

static void destroy(struct tsr_device *device)
{
    struct tsr_host_device *d = of(device);
    for (int i = 0; i < TSR_HOST_STREAMS; i++) {
        if (!d->streams[i])
            continue;
        tsr_host_stream_stop(d->streams[i]);
        free(d->streams[i]);
    }
    tsr_host_events_destroy(&d->events);
    tsr_host_events_destroy(&d->tails);
    tsr_host_space_fini(&d->space);
    free(d);
}

static void *pin(struct tsr_device *device, uint64_t bytes)
{
    (void)device;
    return aligned_alloc(64, tsr_round_up(bytes, 64));
}

static void unpin(struct tsr_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static const struct tsr_device_ops ops = {
    .name = "host",
    .kernel = tsr_host_kernel,
    .fill = tsr_host_fill,
    .pin = pin,
    .unpin = unpin,
    .map = map,
    .unmap = unmap,
    .at = at,
    .submit = submit,
    .wait_event = wait_event,
    .wait_stream = wait_stream,
    .drain = drain,
    .now = read_clock,
    .abort = give_up,
    .destroy = destroy,
};

tsr_status tsr_host_device_create(const struct tsr_host_device_config *config,
                                  struct tsr_device **out)
{
    *out = NULL;
    struct tsr_host_device *d = calloc(1, sizeof *d);
    if (!d)
        return tsr_no_memory("a device");
    d->base.ops = &ops;
    d->config = *config;
    if (d->config.queue_depth == 0)
        d->config.queue_depth = 4096;
    clock_gettime(CLOCK_MONOTONIC, &d->start);
    tsr_host_space_init(&d->space, config->world ? config->world->size : 1);
    tsr_status status = tsr_host_events_create(TSR_HOST_EVENTS, &d->events);
    if (status == TSR_OK) /* the host waits for one before it makes the next */
        status = tsr_host_events_create(2, &d->tails);
    if (status != TSR_OK) {
        destroy(&d->base);
        return status;
    }
    *out = &d->base;
    return TSR_OK;
}

/* ---- one rank ------------------------------------------------------------------------------- */

tsr_status tsr_host_rank_create(const struct tsr_host_rank_config *config,
                                struct tsr_executor **out)
{
    *out = NULL;
    TSR_TRY(tsr_kernels_init());
    if (config->verify && !config->serial)
        return tsr_fail(TSR_EVALUE, "operands are verified where tasks run one after the other");
    struct tsr_exec *exec = tsr_exec_new();
    if (!exec)
        return tsr_no_memory("an executor");
    const struct tsr_host_device_config device = {.world = config->world,
                                                  .jitter_us = config->jitter_us,
                                                  .jitter_seed = config->jitter_seed,
                                                  .serial = config->serial,
                                                  .done = tsr_exec_done,
                                                  .user = exec};
    struct tsr_exec_config x = {.world = config->world,
                                .source = config->source,
                                .n_kernels = config->n_kernels,
                                .kernels = config->kernels,
                                .poison = config->poison,
                                .profile = config->profile,
                                .verify = config->verify,
                                .watcher = config->watcher};
    tsr_status status = tsr_host_device_create(&device, &x.device);
    struct tsr_executor *executor = tsr_exec_start(exec, &x);
    if (status != TSR_OK) {
        executor->ops->destroy(executor);
        return status;
    }
    *out = executor;
    return TSR_OK;
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* Reserves addresses by the TiB and backs parts of them with memory. */

/* Of 128 TiB of addresses that a process has (ThreadSanitizer leaves it less than two), the ranks
 * that may be its threads take at most an eighth with a slot each: expandable segments need
 * several. */
#if defined(__SANITIZE_THREAD__)
#define ALL_FIRST_SLOTS (UINT64_C(1) << 37)
#define SLOT_BYTES_MAX  (UINT64_C(1) << 34)
#else
#define ALL_FIRST_SLOTS (UINT64_C(1) << 44)
#define SLOT_BYTES_MAX  (UINT64_C(1) << 40)
#endif

static uint64_t slot_bytes_of(uint32_t ranks)
{
    uint64_t bytes = SLOT_BYTES_MAX;
    while (bytes * ranks > ALL_FIRST_SLOTS)
        bytes /= 2;
    return bytes;
}

static void *reserve(void *at, uint64_t bytes, int flags)
{
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

void tsr_host_space_init(struct tsr_host_space *space, uint32_t ranks)
{
    *space = (struct tsr_host_space){.slot_bytes = slot_bytes_of(ranks)};
}

void tsr_host_space_fini(struct tsr_host_space *space)
{
    for (unsigned i = 0; i < space->n_slots; i++)
        munmap(space->slots[i].base, space->slot_bytes);
    space->n_slots = 0;
}

void *tsr_host_space_at(const struct tsr_host_space *space, uint64_t address)
{
    for (unsigned i = 0; i < space->n_slots; i++)
        if (space->slots[i].number == address / space->slot_bytes)
            return space->slots[i].base + address % space->slot_bytes;
    return NULL;
}

static tsr_status open_slot(struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    if (bytes > space->slot_bytes || address % space->slot_bytes > space->slot_bytes - bytes)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "a device segment of %llu bytes at %llu: the host backs segments inside "
                        "%llu GiB of addresses",
                        (unsigned long long)bytes, (unsigned long long)address,
                        (unsigned long long)(space->slot_bytes >> 30));
    if (tsr_host_space_at(space, address))
        return TSR_OK;
    if (space->n_slots == TSR_HOST_SLOTS)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "device segments in more than %d places, far from each other",
                        TSR_HOST_SLOTS);
    void *base = reserve(NULL, space->slot_bytes, 0);
    if (base == MAP_FAILED)
        return tsr_fail(TSR_EBACKEND, "%llu GiB of addresses cannot be reserved: %s",
                        (unsigned long long)(space->slot_bytes >> 30), strerror(errno));
    space->slots[space->n_slots].number = address / space->slot_bytes;
    space->slots[space->n_slots++].base = base;
    return TSR_OK;
}

tsr_status tsr_host_space_map(struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    TSR_TRY(open_slot(space, address, bytes));
    if (mprotect(tsr_host_space_at(space, address), bytes, PROT_READ | PROT_WRITE) != 0)
        return tsr_fail(TSR_EOOM, "the machine has no %llu bytes left for a device segment: %s",
                        (unsigned long long)bytes, strerror(errno));
    space->mapped += bytes;
    space->peak = tsr_max_u64(space->peak, space->mapped);
    return TSR_OK;
}

/* A fresh mapping over the range: its pages go back, and touching them traps. */
tsr_status tsr_host_space_unmap(struct tsr_host_space *space, uint64_t address, uint64_t bytes)
{
    TSR_TRY(open_slot(space, address, bytes));
    if (reserve(tsr_host_space_at(space, address), bytes, MAP_FIXED) == MAP_FAILED)
        return tsr_fail(TSR_EBACKEND, "a device segment cannot be given back: %s", strerror(errno));
    space->mapped -= bytes;
    return TSR_OK;
}
