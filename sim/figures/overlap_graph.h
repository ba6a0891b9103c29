/* overlap_graph.h: what an instruction waited for: its stream, its communicator, events, and the
 * memory that it reads and writes. Private to sim/.
 */
#ifndef TSR_SIM_OVERLAP_GRAPH_H
#define TSR_SIM_OVERLAP_GRAPH_H

#include "sim/figures/overlap.h"
#include "sim/replay/roles.h"

/* An instruction of the run with its links; numbers count all programs, in issue order. */
struct tsr__node {
    const struct tsr_instr *instr;
    struct tsr_sim_span span;
    uint8_t role;          /* enum tsr__work_role */
    bool on_compute;       /* on a compute stream */
    bool on_side;          /* on another one */
    uint32_t program;      /* its index */
    uint32_t before;       /* the item before on its stream; TSR_NO_ID: none */
    uint32_t queue_before; /* collectives: the one before on its communicator's queue */
    uint32_t record;       /* WAIT: the RECORD that it waits for */
    uint16_t queue;        /* collectives: the communicator whose queue they use */
    double joined;         /* collectives: all members had come; -inf: unknown */
    double issue;          /* of a call in a group: that of the group */
    /* Of collectives. When the data that it reads were there, its own copy-in taken as prompt; and
     * when the memory that it and its copy-in write had been used for the last time. */
    double data, memory;
};

struct tsr__graph {
    struct tsr__node *nodes;
    uint32_t n;
    uint32_t *first; /* [n_iterations + 1] */
};

/* A wait of the host in a hook: so the number of units that are gathered at a time is limited. */
bool tsr__limits_host(const struct tsr__node *node);

/* Errors: TSR_ENOMEM, TSR_EUNSUPPORTED. On failure nothing is to be freed. */
tsr_status tsr__graph_init(struct tsr__graph *graph,
                           const struct tsr_overlap_run *run) TSR_MUST_USE;
void tsr__graph_fini(struct tsr__graph *graph);

/* overlap_memory.c: fills `data` and `memory`. */
tsr_status tsr__graph_memory(struct tsr__graph *graph) TSR_MUST_USE;

#endif
