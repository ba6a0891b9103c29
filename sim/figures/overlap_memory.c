/* overlap_memory.c: when the data of a collective were there, and when its memory was free.
 *
 * One pass in issue order. A buffer remembers when it was last written and used. Work that prepares
 * a collective on a stream beside compute (its copy-in) is not a reason to be late: a buffer that
 * it wrote counts as ready as soon as its own inputs were, and its duration later.
 */
#include <math.h>
#include <stdlib.h>

#include "sim/figures/overlap_parts.h"

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
