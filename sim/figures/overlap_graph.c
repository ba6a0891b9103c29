/* overlap_graph.c: one pass in issue order that links every instruction of a run to what was before
 * it on its stream and its communicator's queue, and a WAIT to its RECORD. */
#include "sim/figures/overlap_parts.h"

#include <math.h>
#include <stdlib.h>

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
