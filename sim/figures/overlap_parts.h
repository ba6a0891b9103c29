/* overlap_parts.h: between the files of the figures: sets of intervals of time, and for overlap.h:
 * what every instruction waited for, why the compute stream was idle, and what a collective's
 * exposed seconds are charged to. Private to sim/figures.
 */
#ifndef TSR_SIM_OVERLAP_PARTS_H
#define TSR_SIM_OVERLAP_PARTS_H

#include <stdbool.h>
#include <stddef.h>

#include "sim/figures/overlap.h"
#include "sim/tape/issue.h"

/* ---- intervals of time ----------------------------------------------------------------------- */

/* Sets of intervals of time, for figures that ask what ran beside what. */

struct tsr__interval_of_time {
    double start, end;
};

/* A set of intervals; disjoint and ascending once united. Zeroed is empty. Owns `items`. */
struct tsr__set {
    struct tsr__interval_of_time *items;
    size_t n, cap;
};

/* Adds [start, end); nothing if it is empty. False when out of memory. */
bool tsr__set_add(struct tsr__set *set, double start, double end);
void tsr__set_unite(struct tsr__set *set);
void tsr__set_fini(struct tsr__set *set);

/* The rest wants united sets. */
double tsr__set_length(const struct tsr__set *set);
/* Seconds of [start, end) that the set covers. */
double tsr__set_covered(const struct tsr__set *set, double start, double end);
/* Adds to `out` what the set has of [start, end). False when out of memory. */
bool tsr__set_add_common(struct tsr__set *out, const struct tsr__set *set, double start,
                         double end);
/* Seconds of `a` that `b` does not cover. */
double tsr__set_outside(const struct tsr__set *a, const struct tsr__set *b);

/* ---- what an instruction waited for (overlap_graph.c) ---------------------------------------- */

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

/* Fills `data` and `memory`. */
tsr_status tsr__graph_memory(struct tsr__graph *graph) TSR_MUST_USE;

/* ---- why the compute stream was idle, where no collective was the reason (overlap_idle.c) */

/* Disjoint: what the compute stream had to do next was not issued because the host was slow, or
 * because it was held up until memory was free; or it was issued and waited for no event, but the
 * device had another order. */
struct tsr__idle {
    struct tsr__set late, limited, order;
};

/* Errors: TSR_ENOMEM. On failure nothing is to be freed. */
tsr_status tsr__idle_init(struct tsr__idle *idle, const struct tsr__graph *graph) TSR_MUST_USE;
void tsr__idle_fini(struct tsr__idle *idle);

/* ---- what a collective's exposed seconds are charged to (overlap_why.c) ---------------------- */

struct tsr__overlap_window {
    const struct tsr__graph *graph;
    const struct tsr__idle *idle;
    const struct tsr__set *compute; /* when the compute stream works, united */
    double low;                     /* the start of the window */
};

/* Charges idle seconds of [from, to) to the collective `at`, which runs all the time, where the
 * reason is not its lateness: what compute had to do next was not launched, or another rank had
 * not come. */
void tsr__overlap_charge_idle(const struct tsr__overlap_window *window, double from, double to,
                              uint32_t at, struct tsr_overlap_item *item);
/* Charges the exposed seconds of the collective `at` that have no reason yet. */
void tsr__overlap_why(const struct tsr__overlap_window *window, uint32_t at,
                      struct tsr_overlap_item *item);

#endif
