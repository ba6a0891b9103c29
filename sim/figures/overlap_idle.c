/* overlap_idle.c: the gaps of the compute stream, and whether the host or the order of the device
 * left them open. */
#include "sim/figures/overlap_parts.h"

#include <math.h>

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
