/* replay_traffic.c: the messages of others (conditions.h), which take their share of links while
 * the job runs. The k-th begins at start + k * period, or when the one before it has ended. They
 * stop with the job.
 */
#include <math.h>
#include <stdlib.h>

#include "sim/replay/replay.h"

struct tsr__sender {
    const struct tsr_traffic *what;
    uint32_t route;
    uint64_t n_sent;
};

bool tsr__traffic_owns(const struct tsr__replay *r, const void *object)
{
    const struct tsr__sender *sender = object;
    return r->n_senders && sender >= r->senders && sender < r->senders + r->n_senders;
}

static void send_next(struct tsr__replay *r, struct tsr__sender *s)
{
    double wait = s->what->start_s + (double)s->n_sent * s->what->period_s - tsr__backend_now();
    struct tsr__activity activity = {.work = TSR__FLOW,
                                     .where = s->route,
                                     .delay_s = wait > 0.0 ? wait : 0.0,
                                     .amount = round(s->what->bytes * TSR__BYTE_SCALE),
                                     .object = s};
    tsr__replay_submit(r, &activity);
}

static uint32_t count_senders(const struct tsr__quotient *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->n_flows; i++)
        n += q->flows[i].pattern == TSR__TRAFFIC_PATTERN ? q->flows[i].copies : 0;
    return n;
}

bool tsr__traffic_start(struct tsr__replay *r)
{
    uint32_t n = r->options->infinite_bandwidth ? 0 : count_senders(r->q);
    if (!n || r->failed || !r->n_live)
        return true;
    r->senders = calloc(n, sizeof *r->senders);
    if (!r->senders)
        return false;
    r->n_senders = n;
    n = 0;
    for (uint32_t i = 0; i < r->q->n_flows; i++) {
        const struct tsr__qflow *flow = &r->q->flows[i];
        bool ours = flow->pattern == TSR__TRAFFIC_PATTERN;
        for (uint32_t k = 0; ours && k < flow->copies; k++) {
            struct tsr__sender *sender = &r->senders[n++];
            sender->what = &r->options->conditions.traffic.items[flow->from_i];
            sender->route = flow->route;
            send_next(r, sender);
        }
    }
    return true;
}

void tsr__traffic_sent(struct tsr__replay *r, void *object)
{
    struct tsr__sender *sender = object;
    sender->n_sent++;
    if (r->n_live)
        send_next(r, sender);
}
