/* backend.c: drives SimGrid through its C API.
 *
 * A pool of worker actors, one per activity in flight. A worker blocks in one activity, reports it,
 * and takes the next queued one itself; only what is left over wakes other workers. SimGrid runs
 * actors one at a time, but switches inside its calls: the replay's state changes only in done(),
 * which makes none, and the queue is popped before any of them.
 */
#define _GNU_SOURCE
#include "sim/replay/backend.h"

#include <simgrid/engine.h>
/* simgrid/engine.h first: the others do not compile alone in C */
#include <simgrid/actor.h>
#include <simgrid/exec.h>
#include <simgrid/host.h>
#include <simgrid/semaphore.h>
#include <simgrid/version.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* SimGrid treats shorter times as nothing; see the precision option. */
#define SHORTEST_S 1e-12

struct worker {
    struct worker *next_idle;
    struct tsr__activity activity;
    sg_sem_t wake;
    bool stop;
};

enum { MAX_AT_ONCE = 64 }; /* one per stream */

/* Kernels that run on one GPU. */
struct gpu {
    struct tsr__gpu_clock clock;
    uint32_t n;
    double since[MAX_AT_ONCE]; /* their starts */
};

struct tsr__backend {
    sg_host_t *gpus, *from, *to; /* per simulated rank, per route */
    uint32_t *beside;            /* per simulated rank: kernels of collectives */
    struct gpu *running;         /* per simulated rank */
    tsr__done_fn *done;
    void *user;
    struct tsr__activity *queue; /* ring buffer */
    size_t first, n_queued, cap;
    struct worker *idle;
    uint64_t n_live, n_activities;
};

/* An actor's main function gets only strings: the one pointer it needs is here. Set once, in the
 * child. */
static struct tsr__backend *the_backend;

double tsr__backend_now(void)
{
    return simgrid_get_clock();
}

uint64_t tsr__backend_activities(const struct tsr__backend *b)
{
    return b->n_activities;
}

/* ---- queue ------------------------------------------------------------------------------- */

static bool grow_queue(struct tsr__backend *b)
{
    size_t cap = b->cap ? 2 * b->cap : 256;
    struct tsr__activity *bigger = malloc(cap * sizeof *bigger);
    if (!bigger)
        return false;
    for (size_t i = 0; i < b->n_queued; i++)
        bigger[i] = b->queue[(b->first + i) % b->cap];
    free(b->queue);
    b->queue = bigger;
    b->cap = cap;
    b->first = 0;
    return true;
}

bool tsr__backend_submit(struct tsr__backend *b, const struct tsr__activity *activity)
{
    if (b->n_queued == b->cap && !grow_queue(b))
        return false;
    b->queue[(b->first + b->n_queued++) % b->cap] = *activity;
    b->n_live++;
    return true;
}

static struct tsr__activity pop(struct tsr__backend *b)
{
    struct tsr__activity activity = b->queue[b->first];
    b->first = (b->first + 1) % b->cap;
    b->n_queued--;
    return activity;
}

/* ---- workers ----------------------------------------------------------------------------- */

const struct tsr__gpu_clock *tsr__backend_clock(const struct tsr__backend *b, uint32_t rank)
{
    return &b->running[rank].clock;
}

/* SimGrid gives each of n kernels an equal part of the host's speed. */
static void note_rate(const struct tsr__backend *b, uint32_t gpu)
{
    struct gpu *g = &b->running[gpu];
    double speed = sg_host_get_speed(b->gpus[gpu]) / TSR__GPU_SPEED;
    if (!tsr__gpu_clock_set(&g->clock, simgrid_get_clock(), g->n ? speed / g->n : speed))
        abort(); /* no memory: the parent reports it */
}

/* Kernels that run are re-rated at once, by exactly the time that is left. */
static void change_beside(const struct tsr__backend *b, uint32_t gpu, bool more)
{
    uint32_t n = more ? ++b->beside[gpu] : --b->beside[gpu];
    sg_host_set_pstate(b->gpus[gpu], n < TSR__MAX_BESIDE ? (int)n : TSR__MAX_BESIDE);
    if (b->running[gpu].n)
        note_rate(b, gpu);
}

static void kernel_begins(const struct tsr__backend *b, uint32_t gpu, double now)
{
    struct gpu *g = &b->running[gpu];
    double oldest = now;
    TSR_CHECK(g->n < MAX_AT_ONCE);
    for (uint32_t i = 0; i < g->n; i++)
        oldest = g->since[i] < oldest ? g->since[i] : oldest;
    tsr__gpu_clock_forget(&g->clock, oldest);
    g->since[g->n++] = now;
    note_rate(b, gpu);
}

static void kernel_ends(const struct tsr__backend *b, uint32_t gpu, double began)
{
    struct gpu *g = &b->running[gpu];
    uint32_t i = 0;
    while (g->since[i] != began)
        i++;
    g->since[i] = g->since[--g->n];
    note_rate(b, gpu);
}

static void perform(const struct tsr__backend *b, const struct tsr__activity *a)
{
    if (a->delay_s >= SHORTEST_S)
        sg_actor_sleep_for(a->delay_s);
    if (a->work == TSR__EXEC) {
        double now = simgrid_get_clock();
        kernel_begins(b, a->where, now);
        sg_exec_t exec = sg_actor_exec_init(a->amount * TSR__GPU_SPEED);
        sg_exec_set_host(exec, b->gpus[a->where]);
        sg_exec_start(exec);
        sg_exec_wait(exec);
        kernel_ends(b, a->where, now);
    } else if (a->work == TSR__FLOW) {
        sg_host_sendto(b->from[a->where], b->to[a->where], a->amount);
    } else if (a->work == TSR__BESIDE) {
        change_beside(b, a->where, a->amount > 0.0);
    }
}

static void worker_main(int argc, char **argv);

/* Hands an activity to an idle worker, or to a new one. */
static void hand_over(struct tsr__backend *b, const struct tsr__activity *activity)
{
    struct worker *w = b->idle;
    if (w) {
        b->idle = w->next_idle;
        w->activity = *activity;
        sg_sem_release(w->wake);
        return;
    }
    char address[2 + 2 * sizeof w + 1];
    const char *args[] = {"worker", address, NULL};
    w = calloc(1, sizeof *w);
    if (!w)
        abort(); /* the parent reports it */
    w->activity = *activity;
    w->wake = sg_sem_init(0);
    snprintf(address, sizeof address, "%p", (void *)w);
    sg_actor_create_("worker", b->gpus[0], worker_main, 2, args);
}

/* Gives all queued activities but one to others and keeps that one. */
static bool take_next(struct tsr__backend *b, struct worker *self)
{
    if (!b->n_queued)
        return false;
    self->activity = pop(b);
    while (b->n_queued) {
        struct tsr__activity activity = pop(b);
        hand_over(b, &activity);
    }
    return true;
}

static void stop_all(struct tsr__backend *b)
{
    while (b->idle) {
        struct worker *w = b->idle;
        b->idle = w->next_idle;
        w->stop = true;
        sg_sem_release(w->wake);
    }
}

static void worker_main(int argc, char **argv)
{
    struct tsr__backend *b = the_backend;
    void *address = NULL;
    TSR_CHECK(argc == 2 && sscanf(argv[1], "%p", &address) == 1);
    struct worker *self = address;
    while (!self->stop) {
        perform(b, &self->activity);
        b->n_live--;
        b->n_activities++;
        if (self->activity.work != TSR__BESIDE)
            b->done(b->user, self->activity.object, self->activity.tag);
        if (take_next(b, self))
            continue;
        if (!b->n_live) {
            stop_all(b);
            break;
        }
        self->next_idle = b->idle;
        b->idle = self;
        sg_sem_acquire(self->wake);
    }
    sg_sem_destroy(self->wake);
    free(self);
}

void tsr__backend_run(struct tsr__backend *b)
{
    if (!b->n_queued)
        return;
    while (b->n_queued) {
        struct tsr__activity activity = pop(b);
        hand_over(b, &activity);
    }
    simgrid_run();
}

/* ---- start ------------------------------------------------------------------------------- */

static void init_simgrid(void)
{
    /* The measured options: see the tests of exact times in tests/sim. */
    char *argv[] = {
        "tessera",
        "--cfg=network/model:CM02",
        "--cfg=network/crosstraffic:no",
        "--cfg=network/TCP-gamma:0",
#if SIMGRID_VERSION >= 33400
        "--cfg=precision/timing:1e-12",
#else
        "--cfg=surf/precision:1e-12",
#endif
        "--cfg=contexts/stack-size:256",
        "--log=root.thres:error",
        NULL,
    };
    int argc = sizeof argv / sizeof argv[0] - 1;
    simgrid_init(&argc, argv);
}

static bool load_platform(const struct tsr__quotient *q, const struct tsr__platform *p, bool links)
{
    char path[64];
    int fd = memfd_create("platform", 0);
    FILE *file = fd >= 0 ? fdopen(fd, "w+") : NULL;
    if (!file) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    tsr__platform_write(q, p, links, file);
    bool ok = fflush(file) == 0 && !ferror(file);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ok)
        simgrid_load_platform(path);
    fclose(file);
    return ok;
}

static void find_hosts(struct tsr__backend *b, const struct tsr__quotient *q,
                       const struct tsr__platform *p, bool links)
{
    char name[16];
    for (uint32_t i = 0; i < q->n_ranks; i++) {
        snprintf(name, sizeof name, "g%u", i);
        b->gpus[i] = sg_host_by_name(name);
    }
    for (uint32_t r = 0; links && r < q->n_routes; r++) {
        snprintf(name, sizeof name, "o%u", p->out[r]);
        b->from[r] = sg_host_by_name(name);
        snprintf(name, sizeof name, "i%u", p->in[r]);
        b->to[r] = sg_host_by_name(name);
    }
}

struct tsr__backend *tsr__backend_start(const struct tsr__quotient *q,
                                        const struct tsr__platform *p, bool links,
                                        tsr__done_fn *done, void *user)
{
    struct tsr__backend *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->gpus = calloc(q->n_ranks + 1u, sizeof(sg_host_t));
    b->from = calloc(q->n_routes + 1u, sizeof(sg_host_t));
    b->to = calloc(q->n_routes + 1u, sizeof(sg_host_t));
    b->beside = calloc(q->n_ranks + 1u, sizeof *b->beside);
    b->running = calloc(q->n_ranks + 1u, sizeof *b->running);
    b->done = done;
    b->user = user;
    if (b->gpus && b->from && b->to && b->beside && b->running) {
        init_simgrid();
        if (load_platform(q, p, links)) {
            find_hosts(b, q, p, links);
            the_backend = b;
            return b;
        }
    }
    free(b->gpus);
    free(b->from);
    free(b->to);
    free(b->beside);
    free(b->running);
    free(b);
    return NULL;
}
