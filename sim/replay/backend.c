/* backend.c: writes the platform file of the simulated job, and drives SimGrid through its C API.
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

#include "sim/tape/issue.h"

/* ---- the platform file ----------------------------------------------------------------------- */

/* Numbers the endpoints of routes and writes the XML text.
 *
 * Links have latency 0: latencies are delays of the replay, because SimGrid weighs flows by the
 * latency of their routes. Every link is SHARED and carries one direction. */

/* Open-addressing set of the endpoint pairs that have a route. */
struct pairs {
    uint64_t *slots; /* 1 + (out << 32 | in); 0: free */
    size_t n_slots;
};

static bool pairs_add(struct pairs *pairs, uint32_t out, uint32_t in)
{
    uint64_t key = ((uint64_t)out << 32 | in) + 1;
    size_t at = (size_t)tsr_hash_u64(TSR_HASH_INIT, key) & (pairs->n_slots - 1);
    while (pairs->slots[at] && pairs->slots[at] != key)
        at = (at + 1) & (pairs->n_slots - 1);
    if (pairs->slots[at] == key)
        return false;
    pairs->slots[at] = key;
    return true;
}

/* Routes that begin with the same link leave from one endpoint, so do those that end with the same
 * one, unless two routes would then join the same pair. */
static void number_endpoints(const struct tsr__quotient *q, struct tsr__platform *p,
                             struct pairs *pairs, uint32_t *out_of, uint32_t *in_of)
{
    for (uint32_t r = 0; r < q->n_routes; r++) {
        const struct tsr__qroute *route = &q->routes[r];
        uint32_t *out = &out_of[route->links[0]], *in = &in_of[route->links[route->n_links - 1]];
        if (*out == TSR_NO_ID)
            *out = p->n_out++;
        if (*in == TSR_NO_ID)
            *in = p->n_in++;
        p->out[r] = *out;
        p->in[r] = *in;
        if (!pairs_add(pairs, p->out[r], p->in[r]))
            p->out[r] = p->n_out++;
    }
}

tsr_status tsr__platform_build(const struct tsr__quotient *q, struct tsr__platform *p)
{
    struct pairs pairs = {.n_slots = 64};
    while (pairs.n_slots < 2 * (size_t)q->n_routes)
        pairs.n_slots *= 2;
    *p = (struct tsr__platform){0};
    p->out = calloc(q->n_routes + 1u, sizeof *p->out);
    p->in = calloc(q->n_routes + 1u, sizeof *p->in);
    pairs.slots = calloc(pairs.n_slots, sizeof *pairs.slots);
    uint32_t *out_of = tsr__no_ids(q->n_links), *in_of = tsr__no_ids(q->n_links);
    bool ok = p->out && p->in && pairs.slots && out_of && in_of;
    if (ok)
        number_endpoints(q, p, &pairs, out_of, in_of);
    free(pairs.slots);
    free(out_of);
    free(in_of);
    if (ok)
        return TSR_OK;
    free(p->out);
    free(p->in);
    return tsr_no_memory("platform of a simulation");
}

/* Speeds by the number of collectives beside: each takes the same share, a tenth stays. */
static void write_gpu(const struct tsr__quotient *q, uint32_t gpu, FILE *file)
{
    fprintf(file, "<host id='g%u' speed='%.17gf", gpu, TSR__GPU_SPEED);
    for (int k = 1; k <= TSR__MAX_BESIDE && q->slowdown > 0.0; k++) {
        double share = 1.0 - k * q->slowdown;
        fprintf(file, ",%.17gf", TSR__GPU_SPEED * (share > 0.1 ? share : 0.1));
    }
    fprintf(file, "'/>\n");
}

/* Writes the XML text. `links`: false leaves links and routes out (infinite bandwidth). */
static void tsr__platform_write(const struct tsr__quotient *q, const struct tsr__platform *p,
                                bool links, FILE *file)
{
    fprintf(file, "<?xml version='1.0'?>\n"
                  "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
                  "<platform version=\"4.1\">\n<zone id='job' routing='Full'>\n"
                  "<zone id='gpus' routing='None'>\n");
    for (uint32_t i = 0; i < q->n_ranks; i++)
        write_gpu(q, i, file);
    fprintf(file, "</zone>\n<zone id='fabric' routing='Full'>\n");
    for (uint32_t i = 0; links && i < p->n_out; i++)
        fprintf(file, "<host id='o%u' speed='1f'/>\n", i);
    for (uint32_t i = 0; links && i < p->n_in; i++)
        fprintf(file, "<host id='i%u' speed='1f'/>\n", i);
    for (uint32_t i = 0; links && i < q->n_links; i++)
        fprintf(file, "<link id='l%u' bandwidth='%.17gBps' latency='0s'%s/>\n", i,
                q->capacity[i] * TSR__BYTE_SCALE,
                q->fatpipe && q->fatpipe[i] ? " sharing_policy='FATPIPE'" : "");
    for (uint32_t r = 0; links && r < q->n_routes; r++) {
        fprintf(file, "<route src='o%u' dst='i%u' symmetrical='NO'>", p->out[r], p->in[r]);
        for (uint32_t k = 0; k < q->routes[r].n_links; k++)
            fprintf(file, "<link_ctn id='l%u'/>", q->routes[r].links[k]);
        fprintf(file, "</route>\n");
    }
    fprintf(file, "</zone>\n</zone>\n</platform>\n");
}

/* ---- gpu clock ------------------------------------------------------------------------------- */

/* The rates of a GPU over time, and work done between them. */

double tsr__gpu_clock_work(const struct tsr__gpu_clock *clock, double time)
{
    size_t i = clock->n;
    while (i > 1 && clock->rates[i - 1].since > time)
        i--;
    if (i == 0)
        return 0.0;
    const struct tsr__rate *r = &clock->rates[i - 1];
    return r->work + (time - r->since) * r->rate;
}

double tsr__gpu_clock_time(const struct tsr__gpu_clock *clock, double work)
{
    size_t i = clock->n;
    while (i > 1 && clock->rates[i - 1].work > work)
        i--;
    if (i == 0 || clock->rates[i - 1].rate <= 0.0)
        return 0.0;
    const struct tsr__rate *r = &clock->rates[i - 1];
    return r->since + (work - r->work) / r->rate;
}

/* The rate changes at `now`, which never goes back. False: no memory. */
static bool tsr__gpu_clock_set(struct tsr__gpu_clock *clock, double now, double rate)
{
    struct tsr__rate next = {now, tsr__gpu_clock_work(clock, now), rate};
    if (clock->n && clock->rates[clock->n - 1].since >= now) {
        clock->rates[clock->n - 1].rate = rate;
        return true;
    }
    if (clock->n == clock->cap) {
        size_t cap = clock->cap ? 2 * clock->cap : 16;
        struct tsr__rate *more = realloc(clock->rates, cap * sizeof *more);
        if (!more)
            return false;
        clock->rates = more;
        clock->cap = cap;
    }
    clock->rates[clock->n++] = next;
    return true;
}

/* Nobody will ask for anything before `time`. */
static void tsr__gpu_clock_forget(struct tsr__gpu_clock *clock, double time)
{
    size_t i = 0;
    while (i + 1 < clock->n && clock->rates[i + 1].since <= time)
        i++;
    if (i)
        memmove(clock->rates, clock->rates + i, (clock->n - i) * sizeof *clock->rates);
    clock->n -= i;
}

/* ---- x --------------------------------------------------------------------------------------- */

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

/* ---- queue ----------------------------------------------------------------------------------- */

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

/* ---- workers --------------------------------------------------------------------------------- */

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

/* ---- start ----------------------------------------------------------------------------------- */

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
