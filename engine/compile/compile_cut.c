/* compile_cut.c: what a compiled block saves: the minimum cut of AOTAutograd's partitioner.
 *
 * The rules are those of min_cut_rematerialization_partition (PyTorch 2.11,
 * torch/_functorch/partitioners.py), at the grain of eager operations. Every value of the forward
 * is an edge from its _in to its _out, as wide as saving it costs; what cannot be computed again
 * hangs on the source, what the backward needs on the sink; the edges of the minimum cut are saved.
 * Parameters and buffers cost nothing to save.
 *
 * Not computed again are: results of products, attention and collectives (not fusible), of
 * reductions (less than a quarter of what they read), whatever a product of the backward reads (it
 * would have to be stored anyway), and what is used again beyond an operation that cannot be fused.
 * Checkpointing overrules all of them: of a checkpointed block only its input is saved, and with
 * the selective form the results of attention and of every second product, where the backward needs
 * them.
 */
#include "engine/compile/compile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct arc {
    uint32_t to, next; /* next arc of the same node; arcs 2i and 2i+1 are a pair */
    double room;
};

struct cut {
    const struct tsr_cgraph *g;
    const struct tsr_cplan *plan;
    uint32_t source, sink, n_nodes;
    uint32_t *head, *via, *queue; /* by node: first arc; the arc that reached it */
    struct arc *arcs;
    size_t n_arcs, cap_arcs;
    bool *banned, *kept, *recomputed; /* by value */
    uint32_t *distance;               /* by value: operations to the nearest use in the backward */
};

static uint32_t in_of(uint32_t v)
{
    return 2 * v;
}
static uint32_t out_of(uint32_t v)
{
    return 2 * v + 1;
}

static void add_arc(struct tsr_engine *e, struct cut *c, uint32_t from, uint32_t to, double room)
{
    const struct arc pair[2] = {{to, c->head[from], room}, {from, c->head[to], 0}};
    for (int i = 0; i < 2; i++) {
        if (!TSR_PUSH(c->arcs, c->n_arcs, c->cap_arcs, pair[i])) {
            TSR__RAISE(e, TSR_ENOMEM, "out of memory while compiling a block");
            return;
        }
        c->head[i ? to : from] = (uint32_t)c->n_arcs - 1;
    }
}

static bool is_fusible(const struct tsr_cop *op)
{
    return op->cls != TSR_CLASS_CALL;
}

static bool is_forward_value(const struct tsr_cgraph *g, uint32_t v)
{
    const struct tsr_cvalue *value = &g->values[v];
    return !value->scratch && (value->kind == TSR_VALUE_INPUT ||
                               (value->kind == TSR_VALUE_RESULT && value->index < g->n_forward));
}

static const struct tsr_cop *maker(const struct tsr_cgraph *g, uint32_t v)
{
    return g->values[v].kind == TSR_VALUE_RESULT ? &g->ops[g->values[v].index] : NULL;
}

/* ---- what may be computed again -------------------------------------------------------------- */

static bool is_small_reduction(const struct tsr_cgraph *g, uint32_t v)
{
    const struct tsr_cop *op = maker(g, v);
    uint64_t read = 0;
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (op->operands[i].access == TSR_READ)
            read += g->values[op->operands[i].value].bytes;
    return 4 * g->values[v].bytes < read;
}

static bool is_read_by_calls_of_backward(const struct tsr_cgraph *g, uint32_t v)
{
    for (size_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].backward && g->ops[i].cls == TSR_CLASS_CALL && tsr__reads(&g->ops[i], v))
            return true;
    return false;
}

/* The first operation behind the users of `v` that cannot be fused with what feeds it. */
static size_t first_unfusible(const struct tsr_cgraph *g, uint32_t v, size_t last, bool *reached)
{
    memset(reached, 0, g->n_values * sizeof *reached);
    for (size_t i = 0; i < g->n_forward && i <= last; i++) {
        const struct tsr_cop *op = &g->ops[i];
        bool reads = tsr__reads(op, v);
        if (op->backward)
            continue;
        for (uint32_t k = 0; k < op->n_operands; k++) {
            uint32_t u = op->operands[k].value;
            if (op->operands[k].access != TSR_READ || !reached[u])
                continue;
            if (!is_fusible(op) || !is_fusible(maker(g, u)))
                return i;
            reads = true;
        }
        for (uint32_t k = 0; k < op->n_operands && reads; k++)
            if (op->operands[k].access == TSR_WRITE)
                reached[op->operands[k].value] = true;
    }
    return last;
}

static void ban_results(struct cut *c, const struct tsr_cop *op)
{
    for (uint32_t k = 0; k < op->n_operands; k++)
        if (op->operands[k].access == TSR_WRITE)
            c->banned[op->operands[k].value] = true;
}

/* A value that is used close by and again beyond an unfusible operation: the far users stay. */
static void ban_far_users(struct tsr_engine *e, struct cut *c)
{
    const struct tsr_cgraph *g = c->g;
    bool *reached = tsr_arena_alloc(&e->arena, (g->n_values + 1) * sizeof *reached);
    for (uint32_t v = 0; v < g->n_values && reached; v++) {
        size_t last = 0;
        if (!is_forward_value(g, v) || !maker(g, v) || !is_fusible(maker(g, v)))
            continue; /* nothing fuses with it */
        for (size_t i = 0; i < g->n_forward; i++)
            last = tsr__reads(&g->ops[i], v) && !g->ops[i].backward ? i : last;
        size_t first = first_unfusible(g, v, last, reached);
        for (size_t i = first + 1; i <= last; i++)
            if (is_fusible(&g->ops[i]) && !g->ops[i].backward && tsr__reads(&g->ops[i], v))
                ban_results(c, &g->ops[i]);
    }
}

/* Selective checkpointing keeps attention, the 1st, 3rd, ... product, and what a reduce-scatter of
 * tensor parallelism returned. */
static void mark_kept(struct cut *c)
{
    const struct tsr_cgraph *g = c->g;
    unsigned products = 0;
    for (size_t i = 0; i < g->n_forward && c->plan->selective; i++) {
        const struct tsr_cop *op = &g->ops[i];
        bool kept = op->work.op == TSR_OP_ATTENTION || op->collective == TSR_REDUCE_SCATTER ||
                    (op->work.op == TSR_OP_GEMM && ++products % 2 == 1);
        for (uint32_t k = 0; kept && k < op->n_operands; k++)
            if (op->operands[k].access == TSR_WRITE)
                c->kept[op->operands[k].value] = true;
    }
}

static void find_bans(struct tsr_engine *e, struct cut *c)
{
    const struct tsr_cgraph *g = c->g;
    bool checkpoint = c->plan->selective || c->plan->full;
    mark_kept(c);
    for (uint32_t v = 0; v < g->n_values; v++) {
        const struct tsr_cop *op = is_forward_value(g, v) ? maker(g, v) : NULL;
        if (is_forward_value(g, v) && !op)
            c->banned[v] = true; /* the input */
        if (!op || op->backward)
            continue;
        c->recomputed[v] = checkpoint && !c->kept[v];
        c->banned[v] |=
            !is_fusible(op) || is_small_reduction(g, v) || is_read_by_calls_of_backward(g, v);
    }
    if (!checkpoint)
        ban_far_users(e, c);
}

/* ---- costs ----------------------------------------------------------------------------------- */

static void find_distances(struct cut *c)
{
    const struct tsr_cgraph *g = c->g;
    for (uint32_t v = 0; v < g->n_values; v++)
        c->distance[v] = TSR_NONE;
    for (size_t i = g->n_ops; i-- > 0;) {
        const struct tsr_cop *op = &g->ops[i];
        uint32_t from = op->backward ? 0 : TSR_NONE;
        for (uint32_t k = 0; k < op->n_operands && !op->backward; k++)
            if (op->operands[k].access == TSR_WRITE && c->distance[op->operands[k].value] < from)
                from = c->distance[op->operands[k].value];
        for (uint32_t k = 0; k < op->n_operands && from != TSR_NONE; k++)
            if (op->operands[k].access == TSR_READ && c->distance[op->operands[k].value] > from + 1)
                c->distance[op->operands[k].value] = from + 1;
    }
}

/* Bytes, more for what lies far from the backward, twice for what fusion would not store. */
static double weight_of(const struct cut *c, uint32_t v)
{
    const struct tsr_cgraph *g = c->g;
    bool stored = g->values[v].kind == TSR_VALUE_INPUT || !is_fusible(maker(g, v));
    uint32_t far = c->distance[v] < 100 ? c->distance[v] : 100;
    for (size_t i = 0; i < g->n_ops; i++)
        stored |= !is_fusible(&g->ops[i]) && tsr__reads(&g->ops[i], v);
    double bytes = floor((double)g->values[v].bytes * pow(1.1, far > 1 ? far : 1));
    return stored ? bytes : 2 * bytes;
}

/* ---- the graph and its cut ------------------------------------------------------------------- */

static void connect_operation(struct tsr_engine *e, struct cut *c, const struct tsr_cop *op,
                              uint32_t v)
{
    for (uint32_t k = 0; k < op->n_operands; k++) {
        uint32_t made = op->operands[k].value;
        bool written = op->operands[k].access == TSR_WRITE && !c->g->values[made].scratch;
        if (written)
            add_arc(e, c, out_of(v), in_of(made), INFINITY);
    }
}

static void connect(struct tsr_engine *e, struct cut *c)
{
    const struct tsr_cgraph *g = c->g;
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (!is_forward_value(g, v))
            continue;
        if (c->recomputed[v])
            add_arc(e, c, in_of(v), c->sink, INFINITY);
        else if (c->banned[v])
            add_arc(e, c, c->source, in_of(v), INFINITY);
        for (size_t i = 0; i < g->n_ops; i++) {
            if (!tsr__reads(&g->ops[i], v))
                continue;
            if (i >= g->n_forward)
                add_arc(e, c, out_of(v), c->sink, INFINITY);
            else
                connect_operation(e, c, &g->ops[i], v);
        }
        add_arc(e, c, in_of(v), out_of(v), c->recomputed[v] ? INFINITY : weight_of(c, v));
    }
}

/* Breadth first from the source along arcs with room; true if the sink was reached. */
static bool find_path(struct cut *c)
{
    uint32_t first = 0, last = 0;
    memset(c->via, 0xff, c->n_nodes * sizeof *c->via);
    c->queue[last++] = c->source;
    while (first < last && c->via[c->sink] == TSR_NONE) {
        uint32_t node = c->queue[first++];
        for (uint32_t a = c->head[node]; a != TSR_NONE; a = c->arcs[a].next) {
            uint32_t to = c->arcs[a].to;
            if (c->arcs[a].room <= 0 || c->via[to] != TSR_NONE || to == c->source)
                continue;
            c->via[to] = a;
            c->queue[last++] = to;
        }
    }
    return c->via[c->sink] != TSR_NONE;
}

static bool push_flow(struct cut *c)
{
    double room = INFINITY;
    for (uint32_t n = c->sink; n != c->source; n = c->arcs[c->via[n] ^ 1].to)
        room = fmin(room, c->arcs[c->via[n]].room);
    if (isinf(room))
        return false;
    for (uint32_t n = c->sink; n != c->source; n = c->arcs[c->via[n] ^ 1].to) {
        c->arcs[c->via[n]].room -= room;
        c->arcs[c->via[n] ^ 1].room += room;
    }
    return true;
}

/* Marks (in via) the nodes from which the sink can still be reached. */
static void find_sink_side(struct cut *c)
{
    uint32_t first = 0, last = 0;
    memset(c->via, 0xff, c->n_nodes * sizeof *c->via);
    c->via[c->sink] = 0;
    c->queue[last++] = c->sink;
    while (first < last) {
        uint32_t node = c->queue[first++];
        for (uint32_t a = c->head[node]; a != TSR_NONE; a = c->arcs[a].next) {
            uint32_t from = c->arcs[a].to;
            if (c->arcs[a ^ 1].room <= 0 || c->via[from] != TSR_NONE)
                continue;
            c->via[from] = 0;
            c->queue[last++] = from;
        }
    }
}

static void collect(struct tsr_engine *e, struct cut *c, struct tsr_cplan *plan)
{
    for (uint32_t v = 0; v < c->g->n_values; v++) {
        bool saved = is_forward_value(c->g, v) && c->via[in_of(v)] == TSR_NONE &&
                     c->via[out_of(v)] != TSR_NONE;
        if (saved)
            plan->saved[plan->n_saved++] = v;
    }
    if (plan->n_saved > TSR_MAX_SAVED)
        TSR__RAISE(e, TSR_EUNSUPPORTED, "dialect compile: a block saves %zu tensors; allowed: %d",
                   plan->n_saved, TSR_MAX_SAVED);
}

void tsr__cut(struct tsr_engine *e, struct tsr_cplan *plan)
{
    if (!tsr__ok(e))
        return;
    const struct tsr_cgraph *g = &plan->graph;
    uint32_t n = 2 * (uint32_t)g->n_values;
    struct cut c = {.g = g, .plan = plan, .source = n, .sink = n + 1, .n_nodes = n + 2};
    c.head = tsr_arena_alloc(&e->arena, c.n_nodes * sizeof *c.head);
    c.via = tsr_arena_alloc(&e->arena, c.n_nodes * sizeof *c.via);
    c.queue = tsr_arena_alloc(&e->arena, c.n_nodes * sizeof *c.queue);
    c.distance = tsr_arena_alloc(&e->arena, (n + 1) * sizeof *c.distance);
    c.banned = tsr_arena_alloc(&e->arena, 3 * ((size_t)n + 1));
    plan->saved = tsr_arena_alloc(&e->arena, (n + 1) * sizeof *plan->saved);
    if (!c.head || !c.via || !c.queue || !c.distance || !c.banned || !plan->saved) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while compiling a block");
        return;
    }
    c.kept = c.banned + n + 1;
    c.recomputed = c.kept + n + 1;
    memset(c.head, 0xff, c.n_nodes * sizeof *c.head);
    find_bans(e, &c);
    find_distances(&c);
    connect(e, &c);
    while (tsr__ok(e) && find_path(&c))
        if (!push_flow(&c))
            TSR__RAISE(e, TSR_EUNSUPPORTED,
                       "dialect compile: the backward needs what can neither be saved nor "
                       "computed again");
    if (tsr__ok(e)) {
        find_sink_side(&c);
        collect(e, &c, plan);
    }
    free(c.arcs);
}
