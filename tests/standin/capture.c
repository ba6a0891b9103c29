/* capture.c: stream capture and graphs of the stand-in. A graph's nodes run on the stream that it
 * is launched on, one after the other, in an order that is made by chance anew at every launch and
 * respects nothing but the dependencies that the capture has found, and the order of nodes that are
 * in order (calls of NCCL, which adds such dependencies by itself).
 *
 * Captures go on on one thread at a time each; a lock keeps those of several ranks apart.
 */
#include "tests/standin/capture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/standin/impl.h"

enum { MAX_JOINED = 64, MAX_RUNNING = 64 };

struct node {
    tsr_standin_fn run;
    void *data; /* owned */
    size_t bytes, n_after;
    uint32_t *after; /* owned */
    bool in_order;
};

/* What a graph holds, see tsr_standin_graph_hold(). */
struct hold {
    void (*change)(void *user, int by);
    void *user;
};

enum { MAX_HOLDS = 16 };

struct nodes {
    size_t n, cap, n_holds;
    struct node *nodes;
    struct hold holds[MAX_HOLDS];
};

struct tsr_standin_graph {
    struct nodes all;
    uint64_t capture;
    cudaError_t spoilt;
    cudaStream_t origin;
    size_t n_joined;
    cudaStream_t joined[MAX_JOINED]; /* the origin first */
};

struct CUgraph_st {
    struct nodes all;
};

struct CUgraphExec_st {
    struct nodes all;
    uint64_t random;
    _Atomic int users; /* who has it, and launches on their way */
};

/* Captures that go on. Hosts' threads change them; their lock orders no streams. */
static struct tsr_standin_graph *running[MAX_RUNNING];
static size_t n_running;
static uint64_t n_captures;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int n_mine; /* of this thread */

static void count(int by)
{
    atomic_fetch_add_explicit(&tsr_standin_objects, by, memory_order_relaxed);
}

/* ---- nodes -----------------------------------------------------------------------------------
 */

static void nodes_fini(struct nodes *all)
{
    for (size_t i = 0; i < all->n; i++) {
        free(all->nodes[i].data);
        free(all->nodes[i].after);
    }
    for (size_t i = 0; i < all->n_holds; i++)
        all->holds[i].change(all->holds[i].user, -1);
    free(all->nodes);
    *all = (struct nodes){0};
}

static void *copy_of(const void *from, size_t bytes)
{
    void *to = aligned_alloc(16, (bytes + 31) / 16 * 16);
    if (to && bytes)
        memcpy(to, from, bytes);
    return to;
}

static bool add_node(struct nodes *all, const struct node *node)
{
    struct node copy = *node;
    if (all->n == all->cap) {
        size_t cap = all->cap ? 2 * all->cap : 64;
        struct node *more = realloc(all->nodes, cap * sizeof *more);
        if (!more)
            return false;
        all->nodes = more;
        all->cap = cap;
    }
    copy.data = copy_of(node->data, node->bytes);
    copy.after = copy_of(node->after, node->n_after * sizeof *node->after);
    if (!copy.data || !copy.after) {
        free(copy.data);
        free(copy.after);
        return false;
    }
    all->nodes[all->n++] = copy;
    return true;
}

static void add_hold(struct nodes *all, const struct hold *hold)
{
    for (size_t i = 0; i < all->n_holds; i++)
        if (all->holds[i].user == hold->user)
            return;
    if (all->n_holds == MAX_HOLDS)
        abort();
    all->holds[all->n_holds++] = *hold;
    hold->change(hold->user, 1);
}

static bool copy_nodes(struct nodes *to, const struct nodes *from)
{
    for (size_t i = 0; i < from->n; i++)
        if (!add_node(to, &from->nodes[i])) {
            nodes_fini(to);
            return false;
        }
    for (size_t i = 0; i < from->n_holds; i++)
        add_hold(to, &from->holds[i]);
    return true;
}

/* ---- places ----------------------------------------------------------------------------------
 */

static bool push_after(struct tsr_standin_place *p, uint32_t node)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->after[i] == node)
            return true;
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 8;
        uint32_t *more = realloc(p->after, cap * sizeof *more);
        if (!more)
            return false;
        p->after = more;
        p->cap = cap;
    }
    p->after[p->n++] = node;
    return true;
}

void tsr_standin_place_clear(struct tsr_standin_place *p)
{
    free(p->after);
    *p = (struct tsr_standin_place){.capture = 0};
}

/* NULL: the capture has ended. */
static struct tsr_standin_graph *graph_of(const struct tsr_standin_place *p)
{
    struct tsr_standin_graph *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_running && p->capture; i++)
        if (running[i]->capture == p->capture)
            found = running[i];
    pthread_mutex_unlock(&lock);
    return found;
}

static bool begin(struct tsr_standin_graph *g)
{
    pthread_mutex_lock(&lock);
    bool room = n_running < MAX_RUNNING;
    g->capture = ++n_captures;
    if (room)
        running[n_running++] = g;
    pthread_mutex_unlock(&lock);
    n_mine += room;
    return room;
}

static void end(struct tsr_standin_graph *g)
{
    for (size_t i = 0; i < g->n_joined; i++)
        tsr_standin_place_clear(tsr_standin_place_of(g->joined[i]));
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_running; i++)
        if (running[i] == g)
            running[i] = running[n_running - 1];
    n_running--;
    pthread_mutex_unlock(&lock);
    n_mine--;
    free(g);
}

static cudaError_t spoil(struct tsr_standin_graph *g, cudaError_t error)
{
    if (g->spoilt == cudaSuccess)
        g->spoilt = error;
    return tsr_standin_note(error);
}

cudaError_t tsr_standin_spoil(const struct tsr_standin_place *at, cudaError_t error)
{
    struct tsr_standin_graph *g = graph_of(at);
    return g ? spoil(g, error) : tsr_standin_note(error);
}

cudaError_t tsr_standin_capture_work(struct tsr_standin_place *at, tsr_standin_fn run,
                                     const void *data, size_t bytes, bool in_order)
{
    static struct tsr_standin_entry entry = {.name = "(captured)"};
    struct tsr_standin_graph *g = graph_of(at);
    int failure = tsr_standin_enter(&entry);
    const struct node node = {.run = run,
                              .data = (void *)(uintptr_t)data,
                              .bytes = bytes,
                              .n_after = at->n,
                              .after = at->after,
                              .in_order = in_order};
    if (g->spoilt != cudaSuccess)
        return tsr_standin_note(cudaErrorStreamCaptureInvalidated);
    if (failure)
        return spoil(g, (cudaError_t)failure);
    if (!add_node(&g->all, &node))
        return tsr_standin_note(cudaErrorMemoryAllocation);
    at->n = 0;
    return push_after(at, (uint32_t)(g->all.n - 1)) ? cudaSuccess
                                                    : tsr_standin_note(cudaErrorMemoryAllocation);
}

bool tsr_standin_graph_hold(cudaStream_t stream, void (*change)(void *user, int by), void *user)
{
    struct tsr_standin_graph *g = stream ? graph_of(tsr_standin_place_of(stream)) : NULL;
    if (g)
        add_hold(&g->all, &(struct hold){change, user});
    return g != NULL;
}

cudaError_t tsr_standin_capture_record(struct tsr_standin_place *event,
                                       const struct tsr_standin_place *at)
{
    event->n = 0;
    event->capture = at->capture;
    for (size_t i = 0; i < at->n; i++)
        if (!push_after(event, at->after[i]))
            return tsr_standin_note(cudaErrorMemoryAllocation);
    return cudaSuccess;
}

static cudaError_t join(struct tsr_standin_graph *g, struct tsr_standin_place *at,
                        cudaStream_t stream)
{
    if (g->n_joined == MAX_JOINED)
        return tsr_standin_note(cudaErrorStreamCaptureUnsupported);
    g->joined[g->n_joined++] = stream;
    at->n = 0;
    at->capture = g->capture;
    return cudaSuccess;
}

/* A captured stream must not wait for what the capture does not know. */
cudaError_t tsr_standin_capture_wait(struct tsr_standin_place *at,
                                     const struct tsr_standin_place *event, cudaStream_t stream)
{
    struct tsr_standin_graph *g = graph_of(event), *mine = graph_of(at);
    if (mine && !event->capture)
        return spoil(mine, cudaErrorStreamCaptureIsolation);
    if (!g)
        return mine ? spoil(mine, cudaErrorCapturedEvent)
                    : tsr_standin_note(cudaErrorCapturedEvent);
    if (mine && mine != g)
        return spoil(mine, cudaErrorStreamCaptureMerge);
    if (!mine) {
        cudaError_t error = join(g, at, stream);
        if (error != cudaSuccess)
            return error;
    }
    for (size_t i = 0; i < event->n; i++)
        if (!push_after(at, event->after[i]))
            return tsr_standin_note(cudaErrorMemoryAllocation);
    return cudaSuccess;
}

cudaError_t tsr_standin_uncaptured(void)
{
    return n_mine > 0 ? tsr_standin_note(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

/* ---- captures --------------------------------------------------------------------------------
 */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    TSR_STANDIN_CUDA(cudaStreamBeginCapture);
    struct tsr_standin_place *at = stream ? tsr_standin_place_of(stream) : NULL;
    (void)mode;
    if (!at || at->capture)
        return tsr_standin_note(cudaErrorStreamCaptureUnsupported);
    struct tsr_standin_graph *g = calloc(1, sizeof *g);
    if (!g || !begin(g)) {
        free(g);
        return tsr_standin_note(cudaErrorMemoryAllocation);
    }
    g->origin = stream;
    return join(g, at, stream);
}

/* Marks what `from` comes after. */
static void mark(const struct nodes *all, const struct tsr_standin_place *from, bool *reached)
{
    for (size_t i = 0; i < from->n; i++)
        reached[from->after[i]] = true;
    for (size_t i = all->n; i-- > 0;)
        for (size_t k = 0; reached[i] && k < all->nodes[i].n_after; k++)
            reached[all->nodes[i].after[k]] = true;
}

/* A stream that joined and was given nothing is not in the way. */
static cudaError_t check_joined(const struct tsr_standin_graph *g)
{
    bool *reached = calloc(g->all.n + 1, sizeof *reached);
    cudaError_t error = reached ? cudaSuccess : cudaErrorMemoryAllocation;
    if (reached)
        mark(&g->all, tsr_standin_place_of(g->origin), reached);
    for (size_t i = 0; reached && i < g->all.n; i++)
        if (!reached[i])
            error = cudaErrorStreamCaptureUnjoined;
    free(reached);
    return error;
}

/* However it fails, the streams are free again. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    static struct tsr_standin_entry entry = {.name = "cudaStreamEndCapture"};
    cudaError_t failure = (cudaError_t)tsr_standin_enter(&entry);
    struct tsr_standin_graph *g = stream ? graph_of(tsr_standin_place_of(stream)) : NULL;
    *out = NULL;
    if (!g)
        return tsr_standin_note(cudaErrorIllegalState);
    if (g->origin != stream)
        return tsr_standin_note(cudaErrorStreamCaptureUnmatched);
    cudaError_t error = failure                    ? failure
                        : g->spoilt != cudaSuccess ? cudaErrorStreamCaptureInvalidated
                                                   : check_joined(g);
    cudaGraph_t graph = error == cudaSuccess ? calloc(1, sizeof *graph) : NULL;
    if (graph) {
        graph->all = g->all;
        count(1);
        *out = graph;
    } else {
        nodes_fini(&g->all);
    }
    end(g);
    return tsr_standin_note(graph || error != cudaSuccess ? error : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out)
{
    TSR_STANDIN_CUDA(cudaStreamIsCapturing);
    const struct tsr_standin_graph *g = stream ? graph_of(tsr_standin_place_of(stream)) : NULL;
    *out = !g                         ? cudaStreamCaptureStatusNone
           : g->spoilt != cudaSuccess ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

/* ---- graphs ----------------------------------------------------------------------------------
 */

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    TSR_STANDIN_CUDA(cudaGraphGetNodes);
    if (nodes)
        return tsr_standin_note(cudaErrorInvalidValue);
    *n = graph->all.n;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    TSR_STANDIN(cudaGraphDestroy, cudaError_t);
    nodes_fini(&graph->all);
    free(graph);
    count(-1);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    TSR_STANDIN_CUDA(cudaGraphInstantiate);
    if (flags & ~(unsigned long long)cudaGraphInstantiateFlagUseNodePriority)
        return tsr_standin_note(cudaErrorInvalidValue);
    cudaGraphExec_t exec = calloc(1, sizeof *exec);
    if (!exec || !copy_nodes(&exec->all, &graph->all)) {
        free(exec);
        return tsr_standin_note(cudaErrorMemoryAllocation);
    }
    atomic_store(&exec->users, 1);
    exec->random = (tsr_standin()->seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    count(1);
    *out = exec;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    TSR_STANDIN_CUDA(cudaGraphUpload);
    (void)exec;
    return stream ? cudaSuccess : tsr_standin_note(cudaErrorInvalidValue);
}

/* After the last launch that is on its way. */
static void leave(cudaGraphExec_t exec)
{
    if (atomic_fetch_sub(&exec->users, 1) > 1)
        return;
    nodes_fini(&exec->all);
    free(exec);
    count(-1);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    TSR_STANDIN(cudaGraphExecDestroy, cudaError_t);
    leave(exec);
    return cudaSuccess;
}

/* What is left to run: how many nodes each one waits for, and those that are ready. */
struct run {
    uint32_t *left, *ready;
    size_t n_ready;
    uint32_t next; /* of the nodes in order; a node comes after those it waits for */
};

static void find_next(const struct nodes *all, struct run *r)
{
    while (r->next < all->n && !all->nodes[r->next].in_order)
        r->next++;
}

static uint32_t take(const struct nodes *all, struct run *r, uint64_t *random)
{
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    size_t i = *random % r->n_ready;
    while (all->nodes[r->ready[i]].in_order && r->ready[i] != r->next)
        i = (i + 1) % r->n_ready; /* there is another one: `next`, or what that waits for */
    uint32_t node = r->ready[i];
    r->ready[i] = r->ready[--r->n_ready];
    return node;
}

/* Nodes that come after `done`. Their numbers are larger: a node is captured after those it waits
 * for. */
static void release(const struct nodes *all, uint32_t done, struct run *r)
{
    for (size_t i = done + 1; i < all->n; i++)
        for (size_t k = 0; k < all->nodes[i].n_after; k++)
            if (all->nodes[i].after[k] == done && --r->left[i] == 0)
                r->ready[r->n_ready++] = (uint32_t)i;
}

static int run_nodes(struct CUgraphExec_st *exec, struct run *r)
{
    int error = 0;
    for (size_t i = 0; i < exec->all.n; i++) {
        r->left[i] = (uint32_t)exec->all.nodes[i].n_after;
        if (r->left[i] == 0)
            r->ready[r->n_ready++] = (uint32_t)i;
    }
    find_next(&exec->all, r);
    while (r->n_ready > 0 && !error) {
        uint32_t node = take(&exec->all, r, &exec->random);
        error = tsr_standin_run_node(exec->all.nodes[node].run, exec->all.nodes[node].data);
        release(&exec->all, node, r);
        r->next += node == r->next;
        find_next(&exec->all, r);
    }
    return error;
}

static int run_graph(void *data)
{
    struct CUgraphExec_st *exec = *(struct CUgraphExec_st **)data;
    struct run r = {.left = calloc(exec->all.n + 1, sizeof *r.left),
                    .ready = calloc(exec->all.n + 1, sizeof *r.ready)};
    int error = r.left && r.ready ? run_nodes(exec, &r) : cudaErrorMemoryAllocation;
    free(r.left);
    free(r.ready);
    return error;
}

static int leave_later(void *data)
{
    leave(*(cudaGraphExec_t *)data);
    return 0;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    TSR_STANDIN_CUDA(cudaGraphLaunch);
    if (!stream || tsr_standin_place_of(stream)->capture)
        return tsr_standin_note(cudaErrorStreamCaptureUnsupported);
    cudaError_t error = tsr_standin_enqueue(stream, run_graph, &exec, sizeof exec);
    if (error != cudaSuccess)
        return error;
    atomic_fetch_add(&exec->users, 1);
    return tsr_standin_enqueue_always(stream, leave_later, &exec, sizeof exec);
}
