/* overlap_why.c: walks back from the start of a collective over what held it up.
 *
 * At each instant before its start one thing held it up: the host had not issued it; else the item
 * before it on its stream, and what that waited for; else its communicator.
 */
#include <math.h>

#include "sim/figures/overlap_parts.h"

/* Waits on streams beside compute are followed; a chain of them is short. */
enum { MAX_DEPTH = 8 };

struct walk {
    const struct tsr__graph *g;
    const struct tsr__set *compute;
    const struct tsr__node *node; /* the collective */
    struct tsr_overlap_item *item;
    double left; /* exposed seconds that are not charged yet */
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double sooner(double a, double b)
{
    return a < b ? a : b;
}

/* `why` held the collective up in [from, to). */
static void charge(struct walk *w, enum tsr_exposure why, double from, double to)
{
    if (w->left <= 0.0 || to <= from)
        return;
    double seconds = sooner(w->left, tsr__set_covered(w->compute, from, to));
    w->item->why[why] += seconds;
    w->left -= seconds;
}

/* Another collective held the communicator. One of the same kind is no reason by itself: there is
 * more to send than compute to hide it, and the wire was never idle. */
static enum tsr_exposure behind(const struct walk *w, const struct tsr__node *other)
{
    return other->role == w->node->role ? TSR_EXPOSED_BANDWIDTH : TSR_EXPOSED_COMMUNICATOR;
}

static void walk_stream(struct walk *w, uint32_t at, double from, double to, int depth);

/* A wait held up the stream in [from, to): for memory, else for the other stream's work. */
static void charge_wait(struct walk *w, const struct tsr__node *wait, double from, double to,
                        int depth)
{
    const struct tsr__node *record = wait->record == TSR_NO_ID ? NULL : &w->g->nodes[wait->record];
    double buffer_until = sooner(to, later(from, w->node->memory));
    if (record && record->on_side && depth < MAX_DEPTH)
        walk_stream(w, wait->record, buffer_until, to, depth + 1);
    else
        charge(w, TSR_EXPOSED_ORDER, buffer_until, to);
    charge(w, TSR_EXPOSED_BUFFER, from, buffer_until);
}

/* `before` was on the collective's way in [from, to). */
static void charge_item(struct walk *w, const struct tsr__node *before, double from, double to,
                        int depth)
{
    if (before->instr->kind == TSR_WAIT) {
        charge_wait(w, before, from, to, depth);
        return;
    }
    bool same_comm = before->role >= TSR__ROLE_GATHER && before->queue == w->node->queue;
    charge(w, same_comm ? behind(w, before) : TSR_EXPOSED_ORDER, from, to);
}

/* The collective `at` was first on its stream in [from, to): its communicator was taken, or the
 * device had another order. */
static void charge_queue(struct walk *w, uint32_t at, double from, double to)
{
    const struct tsr__node *node = &w->g->nodes[at];
    if (node->role < TSR__ROLE_GATHER || node->queue_before == TSR_NO_ID) {
        charge(w, TSR_EXPOSED_ORDER, from, to);
        return;
    }
    const struct tsr__node *other = &w->g->nodes[node->queue_before];
    double until = sooner(to, later(from, other->span.end));
    charge(w, TSR_EXPOSED_ORDER, until, to);
    charge(w, behind(w, other), from, until);
}

/* What kept item `at` from its start in [from, to), the last thing first. */
static void walk_stream(struct walk *w, uint32_t at, double from, double to, int depth)
{
    to = sooner(to, w->g->nodes[at].span.start);
    while (to > from && w->left > 0.0) {
        const struct tsr__node *node = &w->g->nodes[at];
        const struct tsr__node *before =
            node->before == TSR_NO_ID ? NULL : &w->g->nodes[node->before];
        double reached = later(node->issue, before ? before->span.end : -INFINITY);
        charge_queue(w, at, later(from, reached), to);
        to = sooner(to, reached);
        if (!before || node->issue >= before->span.end) {
            charge(w, TSR_EXPOSED_HOST, from, to);
            return;
        }
        charge_item(w, before, later(from, before->span.start), to, depth);
        to = sooner(to, before->span.start);
        at = node->before;
    }
}

/* The host had not issued the collective in [from, to). Where it waited for an event in a hook, it
 * did so for memory: that is how the number of gathered units is limited. */
static void charge_host(struct walk *w, uint32_t at, double from, double to)
{
    uint32_t first = w->g->first[w->g->nodes[at].program];
    for (uint32_t i = at; i-- > first && to > from && w->left > 0.0;) {
        const struct tsr__node *node = &w->g->nodes[i];
        if (!tsr__limits_host(node) || node->span.start >= to)
            continue;
        charge(w, TSR_EXPOSED_HOST, later(from, node->span.end), to);
        to = sooner(to, later(from, node->span.end));
        charge(w, TSR_EXPOSED_BUFFER, later(from, node->span.start), to);
        to = later(from, node->span.start);
    }
    charge(w, TSR_EXPOSED_HOST, from, to);
}

static double charge_set(const struct tsr__set *set, enum tsr_exposure why, double from, double to,
                         double idle, struct tsr_overlap_item *item)
{
    double seconds = sooner(idle, tsr__set_covered(set, from, to));
    item->why[why] += seconds;
    return idle - seconds;
}

/* Idle seconds that no launch explains. */
static double charge_launches(const struct tsr__overlap_window *window, double from, double to,
                              struct tsr_overlap_item *item)
{
    if (to <= from)
        return 0.0;
    double idle = to - from - tsr__set_covered(window->compute, from, to);
    idle = charge_set(&window->idle->late, TSR_EXPOSED_HOST, from, to, idle, item);
    idle = charge_set(&window->idle->limited, TSR_EXPOSED_BUFFER, from, to, idle, item);
    return charge_set(&window->idle->order, TSR_EXPOSED_ORDER, from, to, idle, item);
}

void tsr__overlap_charge_idle(const struct tsr__overlap_window *window, double from, double to,
                              uint32_t at, struct tsr_overlap_item *item)
{
    double joined = sooner(to, later(from, window->graph->nodes[at].joined));
    item->why[TSR_EXPOSED_RANKS] += charge_launches(window, from, joined, item);
    charge_launches(window, joined, to, item);
}

void tsr__overlap_why(const struct tsr__overlap_window *window, uint32_t at,
                      struct tsr_overlap_item *item)
{
    struct walk w = {window->graph, window->compute, &window->graph->nodes[at], item,
                     item->exposed};
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        w.left -= item->why[i];
    w.left = later(0.0, w.left);
    double from = later(window->low, w.node->data), start = w.node->span.start;
    double issue = later(from, sooner(w.node->issue, start));
    walk_stream(&w, at, issue, start, 0);
    charge_host(&w, at, from, issue);
    item->why[TSR_EXPOSED_BANDWIDTH] += w.left;
}

/* ---- overlap idle ---------------------------------------------------------------------------- */

/* The gaps of the compute stream, and whether the host or the order of the device
 * left them open. */

void tsr__idle_fini(struct tsr__idle *idle)
{
    tsr__set_fini(&idle->late);
    tsr__set_fini(&idle->limited);
    tsr__set_fini(&idle->order);
}

/* The host waits in a hook: so the number of gathered units is limited. */
static bool find_limits(const struct tsr__graph *g, struct tsr__set *limits)
{
    bool ok = true;
    for (uint32_t i = 0; i < g->n && ok; i++) {
        const struct tsr__node *node = &g->nodes[i];
        if (tsr__limits_host(node))
            ok = tsr__set_add(limits, node->span.start, node->span.end);
    }
    tsr__set_unite(limits);
    return ok;
}

/* Nothing was issued in [start, end). */
static bool add_host_gap(struct tsr__idle *idle, const struct tsr__set *limits, double start,
                         double end)
{
    struct tsr__set part = {0};
    double from = start;
    bool ok = tsr__set_add_common(&part, limits, start, end);
    for (size_t i = 0; i < part.n && ok; i++) {
        ok = tsr__set_add(&idle->late, from, part.items[i].start) &&
             tsr__set_add(&idle->limited, part.items[i].start, part.items[i].end);
        from = part.items[i].end;
    }
    ok = ok && tsr__set_add(&idle->late, from, end);
    tsr__set_fini(&part);
    return ok;
}

/* From the end of the item before to the start of this one. */
static bool add_gap(struct tsr__idle *idle, const struct tsr__graph *g,
                    const struct tsr__set *limits, const struct tsr__node *node)
{
    double tail = node->before == TSR_NO_ID ? 0.0 : g->nodes[node->before].span.end;
    double issue = node->issue < node->span.start ? node->issue : node->span.start;
    double from = issue > tail ? issue : tail;
    return (issue <= tail || add_host_gap(idle, limits, tail, issue)) &&
           tsr__set_add(&idle->order, from, node->span.start);
}

tsr_status tsr__idle_init(struct tsr__idle *idle, const struct tsr__graph *g)
{
    struct tsr__set limits = {0};
    *idle = (struct tsr__idle){0};
    bool ok = find_limits(g, &limits);
    for (uint32_t i = 0; i < g->n && ok; i++)
        if (g->nodes[i].on_compute)
            ok = add_gap(idle, g, &limits, &g->nodes[i]);
    tsr__set_unite(&idle->late);
    tsr__set_unite(&idle->limited);
    tsr__set_unite(&idle->order);
    tsr__set_fini(&limits);
    if (ok)
        return TSR_OK;
    tsr__idle_fini(idle);
    return tsr_no_memory("the idle time of a run");
}
