/* replay_report.c: says what a replay that cannot go on waits for: a deadlock in words. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/replay/replay.h"

struct text {
    char *at;
    size_t left;
};

static void put(struct text *t, const char *part)
{
    size_t n = strlen(part);
    if (n >= t->left)
        n = t->left ? t->left - 1 : 0;
    if (!t->left)
        return;
    memcpy(t->at, part, n);
    t->at += n;
    t->left -= n;
    *t->at = '\0';
}

static void name_task(char *out, size_t size, const struct tsr__replay *r,
                      const struct tsr__player *p, uint32_t at)
{
    const struct tsr__task *task = &p->tape->tasks[at];
    const char *comm = task->kind == TSR__WIRE ? r->tapes->comms.items[task->comm].name : NULL;
    snprintf(out, size, "%s%s%s (iteration %u, instruction %u)",
             tsr_instr_kind_name(task->record.kind), comm ? " on " : "", comm ? comm : "",
             task->iteration, at - p->tape->first[task->iteration]);
}

/* Ranks (representatives) of the group that have not reached the collective. */
static void name_missing(struct text *t, const struct tsr__replay *r, const struct tsr__player *p,
                         const struct tsr__task *task)
{
    uint32_t geometry = r->tapes->comms.items[task->comm].geometry;
    uint32_t class = tsr__quotient_group(r->q, p->id, geometry);
    const struct tsr__qgroup *group = &r->q->groups[class];
    const struct tsr__wire *wire = r->pending[class];
    char part[64];
    if (task->record.kind == TSR_SEND || task->record.kind == TSR_RECV) {
        snprintf(part, sizeof part, " waits for peer %u", task->peer);
        put(t, part);
        return;
    }
    while (wire && (wire->comm != task->comm || wire->sequence != task->sequence))
        wire = wire->next;
    put(t, " waits for rank");
    uint32_t named = 0;
    for (uint32_t i = 0; wire && i < group->n_members; i++) {
        uint32_t member = r->q->members[group->first_member + i];
        bool here = false;
        for (uint32_t k = 0; k < wire->n_arrived; k++)
            here = here || wire->arrivals[k].player == member;
        if (here || named++ >= 4)
            continue;
        snprintf(part, sizeof part, " %u", r->players[member].info->rank);
        put(t, part);
    }
    if (named > 4)
        put(t, " ...");
}

static void report_stream(struct text *t, const struct tsr__replay *r, const struct tsr__player *p,
                          uint32_t i)
{
    const struct tsr__stream *s = &p->streams[i];
    char part[192], name[128];
    if (s->head == TSR_NO_ID || (s->head >= p->pc && !s->open))
        return; /* nothing issued is left */
    name_task(name, sizeof name, r, p, s->head);
    snprintf(part, sizeof part, "; rank %u stream %u: %s", p->info->rank, p->tape->stream_id[i],
             name);
    put(t, part);
    const struct tsr__task *task = &p->tape->tasks[s->head];
    if (task->kind == TSR__STREAM_WAIT) {
        name_task(name, sizeof name, r, p, task->dep);
        put(t, " waits for ");
        put(t, name);
    } else if (task->kind == TSR__WIRE && p->queues[task->queue].done < task->need) {
        put(t, " waits for an earlier call on its communicator");
    } else if (task->kind == TSR__WIRE) {
        name_missing(t, r, p, task);
    } else if (s->open) {
        put(t, " waits for the calls of its group");
    }
}

static void report_host(struct text *t, const struct tsr__replay *r, const struct tsr__player *p)
{
    char part[224], name[128];
    if (p->pc == p->tape->n_tasks)
        return;
    name_task(name, sizeof name, r, p, p->pc);
    snprintf(part, sizeof part, "; rank %u host: %s%s", p->info->rank, name,
             p->blocked ? "" : " waits for room in the device's queue");
    put(t, part);
}

void tsr__replay_report_deadlock(struct tsr__replay *r)
{
    char message[TSR__TEXT_BYTES - 16];
    struct text t = {message, sizeof message};
    put(&t, "deadlock");
    for (uint32_t i = 0; i < r->q->n_ranks; i++) {
        const struct tsr__player *p = &r->players[i];
        for (uint32_t s = 0; s < p->tape->n_streams; s++)
            report_stream(&t, r, p, s);
        report_host(&t, r, p);
    }
    tsr__replay_fail(r, TSR_EBACKEND, "%s", message);
}

/* ---- replay traffic -------------------------------------------------------------------------- */

/* The messages of others (conditions.h), which take their share of links while
 * the job runs. The k-th begins at start + k * period, or when the one before it has ended. They
 * stop with the job. */

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
