/* replay_wire.c: collectives, point-to-point messages and copies to the host.
 *
 * A collective starts when every member has reached it, costs its latency once, then runs its flows
 * all at once, and ends for every member with the last of them. Its kernel is on a rank's GPU from
 * the moment at which that rank reaches it, and slows the kernels beside it (backend.h).
 */
#include <math.h>
#include <stdlib.h>

#include "sim/replay/replay.h"

/* Tags of a wire's activities. */
enum { TAG_LATENCY_PAID, TAG_FLOW_DONE };

static double later(double a, double b)
{
    return a > b ? a : b;
}

static const struct tsr__task *task_of(const struct tsr__replay *r, const struct tsr__arrival *a)
{
    return &r->players[a->player].tape->tasks[a->task];
}

static bool is_p2p(uint8_t kind)
{
    return tsr__coll_pattern(kind) == TSR__P2P;
}

/* ---- beside compute ---------------------------------------------------------------------- */

/* At `when` one more (or one fewer) kernel of a collective is on the player's GPU. */
static void change_beside(struct tsr__replay *r, const struct tsr__player *p, int change,
                          double when)
{
    struct tsr__activity activity = {.work = TSR__BESIDE,
                                     .where = p->id,
                                     .delay_s = later(0.0, when - tsr__backend_now()),
                                     .amount = change};
    if (r->q->slowdown > 0.0)
        tsr__replay_submit(r, &activity);
}

static void enter_gpu(struct tsr__replay *r, const struct tsr__wire *wire, struct tsr__player *p,
                      uint32_t at, double when)
{
    if (wire->choice.takes_sms && p->streams[p->tape->tasks[at].stream].on_wire++ == 0)
        change_beside(r, p, 1, when);
}

static void leave_gpu(struct tsr__replay *r, const struct tsr__wire *wire, struct tsr__player *p,
                      uint32_t at)
{
    struct tsr__stream *s = &p->streams[p->tape->tasks[at].stream];
    if (wire->choice.takes_sms && --s->on_wire == 0)
        change_beside(r, p, -1, later(p->spans[at].end, s->group_tail));
}

/* ---- ends -------------------------------------------------------------------------------- */

static void complete(struct tsr__replay *r, struct tsr__wire *wire, double end)
{
    for (uint32_t i = 0; i < wire->n_arrived; i++) {
        struct tsr__player *p = &r->players[wire->arrivals[i].player];
        tsr__replay_finish(r, p, wire->arrivals[i].task, end);
        leave_gpu(r, wire, p, wire->arrivals[i].task);
    }
    free(wire->arrivals);
    free(wire);
}

static bool carries(const struct tsr__wire *wire, const struct tsr__qflow *flow)
{
    enum tsr__pattern pattern = tsr__coll_pattern(wire->kind);
    return flow->pattern == pattern &&
           (pattern != TSR__P2P || (flow->from_i == wire->from_i && flow->to_i == wire->to_i));
}

/* Bytes in SimGrid's unit; 0: not worth a flow. */
static double scaled(double bytes)
{
    return round(bytes * TSR__BYTE_SCALE);
}

static double flow_amount(const struct tsr__wire *wire, const struct tsr__qflow *flow)
{
    return scaled(wire->choice.bytes[flow->medium] * flow->share);
}

/* Submits every flow of the wire after `delay_s`. */
static void start_flows(struct tsr__replay *r, struct tsr__wire *wire, double delay_s)
{
    const struct tsr__qgroup *group = &r->q->groups[wire->group];
    for (uint32_t i = 0; i < group->n_flows; i++) {
        const struct tsr__qflow *flow = &r->q->flows[group->first_flow + i];
        struct tsr__activity activity = {.work = TSR__FLOW,
                                         .where = flow->route,
                                         .delay_s = delay_s,
                                         .amount = flow_amount(wire, flow),
                                         .object = wire,
                                         .tag = TAG_FLOW_DONE};
        if (carries(wire, flow) && activity.amount > 0.0)
            for (uint32_t k = 0; k < flow->copies; k++)
                tsr__replay_submit(r, &activity);
    }
}

static uint32_t count_flows(const struct tsr__replay *r, const struct tsr__wire *wire)
{
    const struct tsr__qgroup *group = &r->q->groups[wire->group];
    uint32_t n = 0;
    for (uint32_t i = 0; i < group->n_flows && !r->options->infinite_bandwidth; i++) {
        const struct tsr__qflow *flow = &r->q->flows[group->first_flow + i];
        if (carries(wire, flow) && flow_amount(wire, flow) > 0.0)
            n += flow->copies;
    }
    return n;
}

void tsr__wire_progress(struct tsr__replay *r, struct tsr__wire *wire, uint32_t tag)
{
    if (tag == TAG_LATENCY_PAID)
        start_flows(r, wire, 0.0);
    else if (--wire->n_left == 0)
        complete(r, wire, tsr__backend_now());
}

/* ---- starts ------------------------------------------------------------------------------ */

/* Adds to the bytes that each member has sent. */
static void account(struct tsr__replay *r, const struct tsr__wire *wire)
{
    uint32_t geometry = r->tapes->comms.items[wire->comm].geometry;
    enum tsr__pattern pattern = tsr__coll_pattern(wire->kind);
    for (uint32_t i = 0; i < wire->n_arrived; i++) {
        const struct tsr__arrival *a = &wire->arrivals[i];
        const struct tsr__task *task = task_of(r, a);
        struct tsr_sim_rank *rank = &r->result->ranks[a->player];
        double intra = 0.0, inter = 0.0;
        if (pattern != TSR__P2P) {
            intra = tsr__quotient_sent(r->q, a->player, geometry, pattern, TSR__INTRA);
            inter = tsr__quotient_sent(r->q, a->player, geometry, pattern, TSR__INTER);
        } else if (task->record.kind == TSR_SEND) {
            const struct tsr__qgroup *group = &r->q->groups[wire->group];
            for (uint32_t k = 0; k < group->n_flows; k++) {
                const struct tsr__qflow *flow = &r->q->flows[group->first_flow + k];
                if (carries(wire, flow))
                    *(flow->medium == TSR__INTRA ? &intra : &inter) = flow->share;
            }
        }
        const double *sent = wire->choice.sent;
        rank->sent_intra[task->iteration] += (uint64_t)llround(intra * sent[TSR__INTRA]);
        rank->sent_inter[task->iteration] += (uint64_t)llround(inter * sent[TSR__INTER]);
    }
}

/* Algorithm, protocol, latency and bytes, as NCCL chooses. */
static struct tsr__coll_choice choose(const struct tsr__replay *r, const struct tsr__wire *wire,
                                      uint64_t tuned)
{
    const struct tsr__qgroup *group = &r->q->groups[wire->group];
    struct tsr__coll_group coll = group->coll;
    bool inter = false;
    for (uint32_t i = 0; i < group->n_flows && is_p2p(wire->kind); i++) {
        const struct tsr__qflow *flow = &r->q->flows[group->first_flow + i];
        if (!carries(wire, flow))
            continue;
        inter = flow->medium == TSR__INTER;
        coll.s_per_byte[TSR__P2P][flow->medium] = flow->s_per_byte;
    }
    return tsr__coll_choose(&r->q->model, &coll, wire->kind, wire->bytes, tuned, inter);
}

/* When everybody but `absent` has reached the wire. */
static double start_without(const struct tsr__replay *r, const struct tsr__wire *wire,
                            uint32_t absent)
{
    double start = 0.0;
    for (uint32_t i = 0; i < wire->n_arrived; i++) {
        const struct tsr__arrival *a = &wire->arrivals[i];
        if (a->player != absent)
            start = later(start, r->players[a->player].spans[a->task].start);
    }
    return start;
}

/* [Note: the twin of a slow GPU] in fold.h. */
static void check_twins(struct tsr__replay *r, const struct tsr__wire *wire)
{
    if (!r->q->groups[wire->group].relaxed ||
        start_without(r, wire, r->q->slow) == start_without(r, wire, r->q->twin))
        return;
    r->verdict->apart = 1;
    tsr__replay_fail(r, TSR_EBACKEND, "folding: a slow rank does not keep step with its group");
}

/* Nobody waits for a member any more. */
static void note_joined(struct tsr__replay *r, const struct tsr__wire *wire)
{
    for (uint32_t i = 0; i < wire->n_arrived; i++) {
        const struct tsr__arrival *a = &wire->arrivals[i];
        r->result->ranks[a->player].joined[task_of(r, a)->number] = wire->start;
    }
}

static void start(struct tsr__replay *r, struct tsr__wire *wire)
{
    check_twins(r, wire);
    note_joined(r, wire);
    account(r, wire);
    wire->n_left = count_flows(r, wire);
    if (wire->n_left == 0) {
        complete(r, wire, wire->start + wire->choice.latency_s);
        return;
    }
    double delay_s = later(0.0, wire->start - tsr__backend_now()) + wire->choice.latency_s;
    if (wire->n_left == 1 || delay_s <= 0.0) {
        start_flows(r, wire, delay_s);
        return;
    }
    struct tsr__activity activity = {
        .work = TSR__DELAY, .delay_s = delay_s, .object = wire, .tag = TAG_LATENCY_PAID};
    tsr__replay_submit(r, &activity);
}

/* ---- arrivals ---------------------------------------------------------------------------- */

static bool same_wire(const struct tsr__wire *a, const struct tsr__wire *b)
{
    return a->comm == b->comm && a->sequence == b->sequence && is_p2p(a->kind) == is_p2p(b->kind) &&
           a->from_i == b->from_i && a->to_i == b->to_i;
}

/* What a rank's task looks like from outside. */
static struct tsr__wire describe(const struct tsr__replay *r, const struct tsr__player *p,
                                 const struct tsr__task *task)
{
    uint32_t geometry = r->tapes->comms.items[task->comm].geometry;
    struct tsr__wire wire = {.group = tsr__quotient_group(r->q, p->id, geometry),
                             .comm = task->comm,
                             .sequence = task->sequence,
                             .kind = task->record.kind,
                             .bytes = task->record.bytes};
    wire.n_wanted = r->q->groups[wire.group].n_members;
    if (!is_p2p(wire.kind))
        return wire;
    uint16_t mine = (uint16_t)r->q->index_of[(size_t)p->id * r->q->n_geometries + geometry];
    wire.from_i = wire.kind == TSR_SEND ? mine : task->peer;
    wire.to_i = wire.kind == TSR_SEND ? task->peer : mine;
    wire.n_wanted = 2;
    return wire;
}

static struct tsr__wire *find_or_add(struct tsr__replay *r, const struct tsr__wire *like,
                                     uint64_t tuned)
{
    struct tsr__wire **list = &r->pending[like->group];
    for (struct tsr__wire *wire = *list; wire; wire = wire->next)
        if (same_wire(wire, like))
            return wire;
    struct tsr__wire *wire = malloc(sizeof *wire);
    struct tsr__arrival *arrivals = malloc(like->n_wanted * sizeof *arrivals);
    if (!wire || !arrivals) {
        free(wire);
        free(arrivals);
        tsr__replay_fail(r, TSR_ENOMEM, "out of memory: replay");
        return NULL;
    }
    *wire = *like;
    wire->arrivals = arrivals;
    wire->choice = choose(r, wire, tuned);
    wire->next = *list;
    *list = wire;
    return wire;
}

static void unlink_wire(struct tsr__replay *r, struct tsr__wire *wire)
{
    struct tsr__wire **at = &r->pending[wire->group];
    while (*at != wire)
        at = &(*at)->next;
    *at = wire->next;
}

static void check_match(struct tsr__replay *r, const struct tsr__wire *wire,
                        const struct tsr__wire *mine, const struct tsr__player *p)
{
    bool kinds = is_p2p(wire->kind) || wire->kind == mine->kind;
    if (kinds && wire->bytes == mine->bytes)
        return;
    tsr__replay_fail(
        r, TSR_EBACKEND,
        "collectives differ: call %u on communicator %s is %s of %llu bytes on rank "
        "%u and %s of %llu bytes on rank %u",
        wire->sequence, r->tapes->comms.items[wire->comm].name, tsr_instr_kind_name(wire->kind),
        (unsigned long long)wire->bytes, r->players[wire->arrivals[0].player].info->rank,
        tsr_instr_kind_name(mine->kind), (unsigned long long)mine->bytes, p->info->rank);
}

void tsr__wire_arrive(struct tsr__replay *r, struct tsr__player *p, uint32_t at, double ready)
{
    const struct tsr__task *task = &p->tape->tasks[at];
    if (r->tapes->comms.items[task->comm].geometry == TSR_NO_ID) { /* one member */
        tsr__replay_finish(r, p, at, ready);
        return;
    }
    struct tsr__wire mine = describe(r, p, task);
    struct tsr__wire *wire = find_or_add(r, &mine, task->tuned_bytes);
    if (!wire)
        return;
    check_match(r, wire, &mine, p);
    wire->arrivals[wire->n_arrived++] = (struct tsr__arrival){p->id, at};
    enter_gpu(r, wire, p, at, ready);
    wire->start = later(wire->start, ready);
    if (wire->n_arrived < wire->n_wanted || r->failed)
        return;
    unlink_wire(r, wire);
    start(r, wire);
}

/* ---- copies between host and device ------------------------------------------------------ */

void tsr__wire_host_copy(struct tsr__replay *r, struct tsr__player *p, uint32_t at, double ready,
                         double start_s)
{
    const struct tsr__task *task = &p->tape->tasks[at];
    uint32_t group = tsr__quotient_group(r->q, p->id, r->q->host_geometry);
    const struct tsr__qgroup *flows = &r->q->groups[group];
    double amount = scaled((double)task->record.bytes);
    if (r->options->infinite_bandwidth || amount <= 0.0) {
        tsr__replay_finish(r, p, at, ready + start_s);
        return;
    }
    for (uint32_t i = 0; i < flows->n_flows; i++) {
        const struct tsr__qflow *flow = &r->q->flows[flows->first_flow + i];
        if (flow->to_device != task->to_device)
            continue;
        struct tsr__activity activity = {.work = TSR__FLOW,
                                         .where = flow->route,
                                         .delay_s =
                                             later(0.0, ready - tsr__backend_now()) + start_s,
                                         .amount = amount,
                                         .object = p,
                                         .tag = at};
        tsr__replay_submit(r, &activity);
        return;
    }
}
