/* overlap.c: sweeps over an iteration, charges each exposed second to one of the collectives that
 * run then, and adds up. */
#include "sim/figures/overlap.h"

#include <stdlib.h>

#include "sim/figures/overlap_parts.h"

static tsr_status no_memory(void)
{
    return tsr_no_memory("the overlap of an iteration");
}

/* ---- names ------------------------------------------------------------------------------- */

static const char *const exposures[][2] = {
    [TSR_EXPOSED_HOST] = {"host late", "host_late"},
    [TSR_EXPOSED_COMMUNICATOR] = {"same communicator", "same_communicator"},
    [TSR_EXPOSED_BUFFER] = {"buffer wait", "buffer_wait"},
    [TSR_EXPOSED_ORDER] = {"stream order", "stream_order"},
    [TSR_EXPOSED_RANKS] = {"other ranks", "other_ranks"},
    [TSR_EXPOSED_BANDWIDTH] = {"bandwidth", "bandwidth"},
};
static const char *const kinds[][2] = {
    [TSR_OVERLAP_GATHER_FORWARD] = {"all-gather, forward", "all_gather_forward"},
    [TSR_OVERLAP_GATHER_BACKWARD] = {"all-gather, backward", "all_gather_backward"},
    [TSR_OVERLAP_REDUCE_SCATTER] = {"reduce-scatter", "reduce_scatter"},
    [TSR_OVERLAP_ALL_REDUCE] = {"all-reduce", "all_reduce"},
    [TSR_OVERLAP_OTHER] = {"other", "other"},
};

const char *tsr_exposure_name(int reason)
{
    return reason >= 0 && reason < TSR_N_EXPOSURES ? exposures[reason][0] : "-";
}

const char *tsr_exposure_key(int reason)
{
    return reason >= 0 && reason < TSR_N_EXPOSURES ? exposures[reason][1] : "";
}

const char *tsr_overlap_kind_name(int kind)
{
    return kind >= 0 && kind < TSR_N_OVERLAP_KINDS ? kinds[kind][0] : "-";
}

const char *tsr_overlap_kind_key(int kind)
{
    return kind >= 0 && kind < TSR_N_OVERLAP_KINDS ? kinds[kind][1] : "";
}

enum tsr_exposure tsr_overlap_main_reason(const double why[TSR_N_EXPOSURES])
{
    int most = TSR_N_EXPOSURES;
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        if (why[i] > (most == TSR_N_EXPOSURES ? 0.0 : why[most]))
            most = i;
    return (enum tsr_exposure)most;
}

static uint8_t kind_of(const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_ALL_GATHER:
        return instr->origin.phase == TSR_PHASE_BACKWARD ? TSR_OVERLAP_GATHER_BACKWARD
                                                         : TSR_OVERLAP_GATHER_FORWARD;
    case TSR_REDUCE_SCATTER:
        return TSR_OVERLAP_REDUCE_SCATTER;
    case TSR_ALL_REDUCE:
        return TSR_OVERLAP_ALL_REDUCE;
    default:
        return TSR_OVERLAP_OTHER;
    }
}

/* ---- the window -------------------------------------------------------------------------- */

struct window {
    double low, high;
    struct tsr__set compute, wire;
    size_t cap; /* of the items */
    struct tsr__graph graph;
    struct tsr__idle idle;
};

static struct tsr__overlap_window view_of(const struct window *w)
{
    return (struct tsr__overlap_window){&w->graph, &w->idle, &w->compute, w->low};
}

static void window_fini(struct window *w)
{
    tsr__set_fini(&w->compute);
    tsr__set_fini(&w->wire);
    tsr__graph_fini(&w->graph);
    tsr__idle_fini(&w->idle);
}

static double clip(const struct window *w, double time)
{
    return time < w->low ? w->low : time > w->high ? w->high : time;
}

/* Work of any iteration, clipped to the window. */
static tsr_status collect(struct window *w, struct tsr_overlap *out)
{
    for (uint32_t i = 0; i < w->graph.n; i++) {
        const struct tsr__node *node = &w->graph.nodes[i];
        double start = clip(w, node->span.start), end = clip(w, node->span.end);
        if (node->role == TSR__ROLE_NOTHING || end <= start)
            continue;
        if (node->role == TSR__ROLE_COMPUTE) {
            if (!tsr__set_add(&w->compute, start, end))
                return no_memory();
            continue;
        }
        struct tsr_overlap_item item = {.iteration = node->program,
                                        .instr = i - w->graph.first[node->program],
                                        .kind = kind_of(node->instr),
                                        .span = node->span};
        if (!tsr__set_add(&w->wire, start, end) || !TSR_PUSH(out->items, out->n, w->cap, item))
            return no_memory();
    }
    tsr__set_unite(&w->compute);
    tsr__set_unite(&w->wire);
    return TSR_OK;
}

static uint32_t node_of(const struct window *w, const struct tsr_overlap_item *item)
{
    return w->graph.first[item->iteration] + (uint32_t)item->instr;
}

/* ---- who is charged ---------------------------------------------------------------------- */

/* The items that run, while time goes on. */
struct sweep {
    struct tsr_overlap_item **by_start; /* [n] */
    struct tsr_overlap_item **running;  /* [n] */
    size_t n_running;
};

static int by_start(const void *a, const void *b)
{
    const struct tsr_overlap_item *x = *(struct tsr_overlap_item *const *)a;
    const struct tsr_overlap_item *y = *(struct tsr_overlap_item *const *)b;
    if (x->span.start != y->span.start)
        return x->span.start < y->span.start ? -1 : 1;
    return x->iteration != y->iteration
               ? (x->iteration > y->iteration) - (x->iteration < y->iteration)
               : (x->instr > y->instr) - (x->instr < y->instr);
}

static int rank_of(const struct window *w, const struct tsr_overlap_item *item)
{
    return w->graph.nodes[node_of(w, item)].role;
}

/* [from, to) during which the same items run: one of them is charged with the idle part. */
static void settle(const struct window *w, const struct sweep *s, double from, double to)
{
    if (to <= from || !s->n_running)
        return;
    double busy = tsr__set_covered(&w->compute, from, to), idle = to - from - busy;
    size_t charged = 0;
    for (size_t i = 1; i < s->n_running; i++)
        if (rank_of(w, s->running[i]) < rank_of(w, s->running[charged]))
            charged = i;
    for (size_t i = 0; i < s->n_running; i++) {
        s->running[i]->hidden += busy;
        *(i == charged ? &s->running[i]->exposed : &s->running[i]->beside) += idle;
    }
    struct tsr__overlap_window view = view_of(w);
    tsr__overlap_charge_idle(&view, from, to, node_of(w, s->running[charged]), s->running[charged]);
}

/* Ends those that end first until `time`; returns when time has come to it. */
static double run_until(const struct window *w, struct sweep *s, double now, double time)
{
    while (s->n_running) {
        double end = time;
        for (size_t i = 0; i < s->n_running; i++) {
            double mine = clip(w, s->running[i]->span.end);
            end = mine < end ? mine : end;
        }
        settle(w, s, now, end);
        now = end;
        size_t kept = 0;
        for (size_t i = 0; i < s->n_running; i++)
            if (clip(w, s->running[i]->span.end) > now)
                s->running[kept++] = s->running[i];
        s->n_running = kept;
        if (now >= time)
            break;
    }
    return time;
}

static tsr_status charge_all(const struct window *w, struct tsr_overlap *out)
{
    struct sweep s = {0};
    s.by_start = malloc((out->n + 1) * sizeof(struct tsr_overlap_item *));
    s.running = malloc((out->n + 1) * sizeof(struct tsr_overlap_item *));
    bool ok = s.by_start && s.running;
    double now = w->low;
    for (size_t i = 0; i < out->n && ok; i++)
        s.by_start[i] = &out->items[i];
    if (ok && out->n > 1)
        qsort(s.by_start, out->n, sizeof(struct tsr_overlap_item *), by_start);
    for (size_t i = 0; i < out->n && ok; i++) {
        now = run_until(w, &s, now, clip(w, s.by_start[i]->span.start));
        s.running[s.n_running++] = s.by_start[i];
    }
    if (ok)
        run_until(w, &s, now, w->high);
    free(s.by_start);
    free(s.running);
    return ok ? TSR_OK : no_memory();
}

/* ---- sums -------------------------------------------------------------------------------- */

static void add_up(struct tsr_overlap_total *total, const struct tsr_overlap_item *item,
                   uint64_t bytes)
{
    total->n++;
    total->bytes += bytes;
    total->seconds += item->hidden + item->exposed + item->beside;
    total->hidden += item->hidden;
    total->exposed += item->exposed;
    total->beside += item->beside;
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        total->why[i] += item->why[i];
}

/* Seconds of the window in which compute is idle because its work was not issued, and no collective
 * runs. */
static tsr_status find_unlaunched(const struct window *w, double *seconds)
{
    struct tsr__set late = {0};
    bool ok = tsr__set_add_common(&late, &w->idle.late, w->low, w->high) &&
              tsr__set_add_common(&late, &w->idle.limited, w->low, w->high);
    tsr__set_unite(&late);
    *seconds = tsr__set_outside(&late, &w->wire);
    tsr__set_fini(&late);
    return ok ? TSR_OK : no_memory();
}

static void explain(const struct window *w, struct tsr_overlap *out)
{
    struct tsr__overlap_window view = view_of(w);
    for (size_t i = 0; i < out->n; i++) {
        struct tsr_overlap_item *item = &out->items[i];
        uint32_t at = node_of(w, item);
        tsr__overlap_why(&view, at, item);
        add_up(&out->kinds[item->kind], item, w->graph.nodes[at].instr->bytes);
        add_up(&out->all, item, w->graph.nodes[at].instr->bytes);
    }
    out->start = w->low;
    out->step_s = w->high - w->low;
    out->compute_s = tsr__set_length(&w->compute);
    out->comm_s = tsr__set_length(&w->wire);
    out->exposed_s = tsr__set_outside(&w->wire, &w->compute);
    double host = out->step_s - out->compute_s - out->exposed_s;
    out->host_bound_s = host > 0.0 ? host : 0.0;
}

tsr_status tsr_overlap_of(const struct tsr_overlap_run *run, uint32_t iteration,
                          struct tsr_overlap *out)
{
    struct window w = {0};
    *out = (struct tsr_overlap){0};
    if (iteration >= run->n_iterations)
        return tsr_fail(TSR_EINDEX, "iteration %u of %u", iteration, run->n_iterations);
    w.low = iteration ? run->iteration_end[iteration - 1] : 0.0;
    w.high = run->iteration_end[iteration];
    tsr_status status;
    TSR_GOTO(done, tsr__graph_init(&w.graph, run));
    TSR_GOTO(done, tsr__idle_init(&w.idle, &w.graph));
    TSR_GOTO(done, collect(&w, out));
    TSR_GOTO(done, charge_all(&w, out));
    TSR_GOTO(done, find_unlaunched(&w, &out->unlaunched_s));
    explain(&w, out);
done:
    if (status != TSR_OK)
        tsr_overlap_fini(out);
    window_fini(&w);
    return status;
}

void tsr_overlap_fini(struct tsr_overlap *overlap)
{
    free(overlap->items);
    overlap->items = NULL;
    overlap->n = 0;
}
