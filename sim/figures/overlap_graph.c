/* overlap_graph.c: what every instruction waited for. One pass in issue order links every
 * instruction of a run to what was before it on its stream and its communicator's queue, and a WAIT
 * to its RECORD; another says when a collective's data and memory were ready. */
#include <math.h>
#include <stdlib.h>

#include "sim/figures/overlap_parts.h"

enum { MAX_STREAMS = 65536, MAX_NODES = 1 << 30 };

static tsr_status no_memory(void)
{
    return tsr_no_memory("the overlap of a run");
}

static tsr_status too_long(void)
{
    return tsr_fail(TSR_EUNSUPPORTED, "overlap: a run has more than %d instructions", MAX_NODES);
}

/* What has been issued so far. */
struct issued {
    uint32_t *last_of_stream, *last_of_queue; /* [MAX_STREAMS] */
    uint32_t *record_of;                      /* [n_events] */
    size_t n_events;
    uint32_t group_begin; /* open GROUP_BEGIN, or TSR_NO_ID */
    size_t n_wires;
};

static void close_group(struct tsr__graph *g, const struct issued *s, uint32_t end)
{
    for (uint32_t i = s->group_begin; i < end; i++)
        if (g->nodes[i].role >= TSR__ROLE_GATHER)
            g->nodes[i].issue = g->nodes[end].issue;
}

static void link_node(struct tsr__graph *g, const struct tsr_program *program, struct issued *s,
                      uint32_t at)
{
    struct tsr__node *node = &g->nodes[at];
    const struct tsr_instr *instr = node->instr;
    if (!tsr__on_stream(instr))
        return;
    node->on_compute = tsr__is_compute_stream(program->tables, instr->stream);
    node->on_side = !node->on_compute;
    node->before = s->last_of_stream[instr->stream];
    s->last_of_stream[instr->stream] = at;
    if (node->role >= TSR__ROLE_GATHER) {
        node->queue = tsr__wire_queue(program->tables, instr->comm);
        node->queue_before = s->last_of_queue[node->queue];
        s->last_of_queue[node->queue] = at;
    }
    if (instr->kind == TSR_WAIT && instr->event < s->n_events)
        node->record = s->record_of[instr->event];
    if (instr->kind == TSR_RECORD && instr->event < s->n_events)
        s->record_of[instr->event] = at;
    if (instr->kind == TSR_GROUP_BEGIN)
        s->group_begin = at;
    if (instr->kind == TSR_GROUP_END && s->group_begin != TSR_NO_ID) {
        close_group(g, s, at);
        s->group_begin = TSR_NO_ID;
    }
}

static void add_program(struct tsr__graph *g, const struct tsr_overlap_run *run, uint32_t index,
                        struct issued *s)
{
    const struct tsr_program *program = run->programs[index];
    for (size_t i = 0; i < program->n_instrs; i++) {
        uint32_t at = g->first[index] + (uint32_t)i;
        g->nodes[at] = (struct tsr__node){
            .instr = &program->instrs[i],
            .span = run->spans[index][i],
            .role = (uint8_t)tsr__role_of(program, &program->instrs[i]),
            .program = index,
            .before = TSR_NO_ID,
            .queue_before = TSR_NO_ID,
            .record = TSR_NO_ID,
            .joined = -INFINITY,
            .issue = run->spans[index][i].issue,
        };
        if (g->nodes[at].role >= TSR__ROLE_GATHER && run->joined)
            g->nodes[at].joined = run->joined[s->n_wires++];
        link_node(g, program, s, at);
    }
}

static size_t count_events(const struct tsr_overlap_run *run)
{
    size_t n = 0;
    for (uint32_t i = 0; i < run->n_iterations; i++)
        for (size_t k = 0; k < run->programs[i]->n_instrs; k++) {
            const struct tsr_instr *instr = &run->programs[i]->instrs[k];
            if (instr->kind == TSR_RECORD && instr->event >= n)
                n = (size_t)instr->event + 1;
        }
    return n;
}

bool tsr__limits_host(const struct tsr__node *node)
{
    return node->instr->kind == TSR_HOST_WAIT && node->instr->origin.hook != TSR_HOOK_NONE;
}

static tsr_status link_all(struct tsr__graph *g, const struct tsr_overlap_run *run)
{
    struct issued s = {.n_events = count_events(run), .group_begin = TSR_NO_ID};
    s.last_of_stream = tsr__no_ids(MAX_STREAMS);
    s.last_of_queue = tsr__no_ids(MAX_STREAMS);
    s.record_of = tsr__no_ids(s.n_events);
    bool ok = s.last_of_stream && s.last_of_queue && s.record_of;
    for (uint32_t i = 0; i < run->n_iterations && ok; i++)
        add_program(g, run, i, &s);
    free(s.last_of_stream);
    free(s.last_of_queue);
    free(s.record_of);
    return ok ? TSR_OK : no_memory();
}

tsr_status tsr__graph_init(struct tsr__graph *g, const struct tsr_overlap_run *run)
{
    uint64_t n = 0;
    *g = (struct tsr__graph){.first = calloc(run->n_iterations + 1u, sizeof *g->first)};
    if (!g->first)
        return no_memory();
    for (uint32_t i = 0; i < run->n_iterations && n < MAX_NODES; i++) {
        g->first[i] = (uint32_t)n;
        n += run->programs[i]->n_instrs;
    }
    tsr_status status;
    g->n = g->first[run->n_iterations] = (uint32_t)n;
    TSR_GOTO(failed, n < MAX_NODES ? TSR_OK : too_long());
    g->nodes = malloc(((size_t)n + 1) * sizeof *g->nodes);
    TSR_GOTO(failed, g->nodes ? TSR_OK : no_memory());
    TSR_GOTO(failed, link_all(g, run));
    TSR_GOTO(failed, tsr__graph_memory(g));
    return TSR_OK;
failed:
    tsr__graph_fini(g);
    return status;
}

void tsr__graph_fini(struct tsr__graph *g)
{
    free(g->nodes);
    free(g->first);
    *g = (struct tsr__graph){0};
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* When the data of a collective were there, and when its memory was free.
 *
 * One pass in issue order. A buffer remembers when it was last written and used. Work that prepares
 * a collective on a stream beside compute (its copy-in) is not a reason to be late: a buffer that
 * it wrote counts as ready as soon as its own inputs were, and its duration later. */

/* How far back the former owner of an address is looked for. */
enum { MAX_LOOK_BACK = 1 << 16 };

struct held {
    double ready;            /* its last write has ended, or could have */
    double memory;           /* what prepared it waited for memory until then */
    double used;             /* its last use has ended */
    uint64_t address, bytes; /* of its block; bytes 0: unknown */
    uint32_t order;          /* among the allocations */
};

struct pass {
    struct held *held; /* [n_buffers] */
    uint32_t n_buffers;
    uint32_t *allocs; /* buffers, in order of allocation */
    uint32_t n_allocs;
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

static uint32_t count_buffers(const struct tsr__graph *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct tsr_instr *instr = g->nodes[i].instr;
        if (instr->kind == TSR_ALLOC && instr->buffer >= n && instr->buffer != TSR_NO_ID)
            n = instr->buffer + 1;
        for (uint32_t k = 0; k < instr->n_operands; k++)
            if (instr->operands[k].buffer >= n && instr->operands[k].buffer != TSR_NO_ID)
                n = instr->operands[k].buffer + 1;
    }
    return n;
}

static tsr_status pass_init(struct pass *p, const struct tsr__graph *g)
{
    *p = (struct pass){.n_buffers = count_buffers(g)};
    p->held = malloc(((size_t)p->n_buffers + 1) * sizeof *p->held);
    p->allocs = malloc(((size_t)g->n + 1) * sizeof *p->allocs);
    for (uint32_t i = 0; p->held && i < p->n_buffers; i++)
        p->held[i] = (struct held){.ready = -INFINITY, .memory = -INFINITY, .used = -INFINITY};
    return p->held && p->allocs ? TSR_OK : tsr_no_memory("buffers of a run");
}

static void pass_fini(struct pass *p)
{
    free(p->held);
    free(p->allocs);
}

static void allocate(struct pass *p, const struct tsr_instr *instr)
{
    struct held *held = &p->held[instr->buffer];
    held->address = instr->address;
    held->bytes = instr->block_bytes;
    held->order = p->n_allocs;
    p->allocs[p->n_allocs++] = instr->buffer;
}

/* When the buffers that had the addresses of `of` before were used for the last time. */
static double freed_at(const struct pass *p, const struct held *of)
{
    double time = -INFINITY;
    uint64_t covered = 0;
    uint32_t last = of->order > MAX_LOOK_BACK ? of->order - MAX_LOOK_BACK : 0;
    for (uint32_t i = of->order; of->bytes && covered < of->bytes && i-- > last;) {
        const struct held *was = &p->held[p->allocs[i]];
        uint64_t low = tsr_max_u64(of->address, was->address);
        uint64_t high = tsr_min_u64(of->address + of->bytes, was->address + was->bytes);
        if (high <= low)
            continue;
        covered += high - low;
        time = later(time, was->used);
    }
    return time;
}

/* What a collective, or the work that prepares one, had to wait for. */
static void gather_needs(const struct pass *p, struct tsr__node *node)
{
    const struct tsr_instr *instr = node->instr;
    node->data = node->memory = -INFINITY;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const struct tsr_operand *o = &instr->operands[k];
        if (o->buffer >= p->n_buffers)
            continue;
        const struct held *held = &p->held[o->buffer];
        if (o->access & TSR_READ) {
            node->data = later(node->data, held->ready);
            node->memory = later(node->memory, held->memory);
        }
        if ((o->access & TSR_WRITE) && o->space == TSR_SPACE_DEVICE)
            node->memory = later(node->memory, freed_at(p, held));
    }
}

static void note_uses(struct pass *p, const struct tsr__node *node, double ready, double memory)
{
    const struct tsr_instr *instr = node->instr;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const struct tsr_operand *o = &instr->operands[k];
        if (o->buffer >= p->n_buffers)
            continue;
        struct held *held = &p->held[o->buffer];
        held->used = later(held->used, node->span.end);
        if (o->access & TSR_WRITE) {
            held->ready = later(held->ready, ready);
            held->memory = later(held->memory, memory);
        }
    }
}

static void visit(struct pass *p, struct tsr__node *node)
{
    const struct tsr_instr *instr = node->instr;
    bool prepares = node->on_side && node->role == TSR__ROLE_NOTHING;
    if (instr->kind == TSR_ALLOC && instr->buffer < p->n_buffers) {
        allocate(p, instr);
        return;
    }
    if (node->role >= TSR__ROLE_GATHER || (prepares && instr->n_operands))
        gather_needs(p, node);
    if (prepares)
        note_uses(p, node, node->data + (node->span.end - node->span.start), node->memory);
    else
        note_uses(p, node, node->span.end, -INFINITY);
}

tsr_status tsr__graph_memory(struct tsr__graph *g)
{
    struct pass p;
    tsr_status status = pass_init(&p, g);
    for (uint32_t i = 0; i < g->n && status == TSR_OK; i++)
        visit(&p, &g->nodes[i]);
    pass_fini(&p);
    return status;
}
