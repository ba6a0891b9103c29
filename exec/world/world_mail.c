/* world_mail.c: collectives by messages.
 *
 * Every member sends each other member what that one needs, then takes what it needs itself; a
 * carrier takes up everything that arrives, so nobody waits for somebody who waits. Each message
 * has the signature of its call. Members take the message of member 0 first, who sends to all in
 * every kind of call: members that disagree find out, instead of waiting for what never comes.
 */
#include "exec/world/world_mail.h"

#include <stdlib.h>

#include "exec/base/word.h"

enum { PHASE_DATA, PHASE_SECOND }; /* the sums of an all-reduce; a broadcast has arrived */

#define HOST_COMM_ID UINT16_MAX

struct mail_world {
    struct tsr_world base;
    struct tsr_world_ops ops; /* named after the carrier */
    struct tsr_carrier *carrier;
    uint64_t n_exchanges;
};

struct visit {
    struct mail_world *w;
    struct tsr_call call;
};

void tsr__carrier_fail(struct tsr_carrier *carrier, tsr_status status, const char *text, bool tell)
{
    if (!tsr__abort_set(&carrier->abort, status, text))
        return;
    tsr__mail_wake(&carrier->boxes);
    if (tell)
        carrier->ops->tell(carrier, status, carrier->abort.text);
}

/* Makes the failure known to all ranks, and fails as they do. */
static tsr_status give_up(struct mail_world *w, tsr_status status)
{
    tsr__carrier_fail(w->carrier, status, tsr_error_text(), true);
    return tsr__abort_status(&w->carrier->abort);
}

/* ---- sending and taking ---------------------------------------------------------------------- */

static tsr_status unanswered(struct visit *v, uint32_t member, const char *did)
{
    if (tsr__aborted(&v->w->carrier->abort))
        return tsr__abort_status(&v->w->carrier->abort);
    return give_up(v->w, tsr__call_timeout(&v->w->base, &v->call, member, did));
}

static tsr_status send_part(struct visit *v, uint32_t member, uint16_t phase, uint32_t index,
                            const void *data, uint64_t bytes)
{
    struct tsr_carrier *carrier = v->w->carrier;
    const struct tsr_mail_header header = {.magic = TSR_MAIL_MAGIC,
                                           .from = v->call.rank,
                                           .index = index,
                                           .comm_id = v->call.comm_id,
                                           .phase = phase,
                                           .sequence = v->call.sequence,
                                           .bytes = bytes,
                                           .sig = v->call.sig};
    if (carrier->ops->send(carrier, tsr__call_rank(&v->call, member), &header, data,
                           v->call.deadline))
        return TSR_OK;
    return unanswered(v, member, "take its part of");
}

/* The message of a member; the caller frees it. Its signature is that of this call. */
static tsr_status take(struct visit *v, uint32_t member, uint16_t phase, uint32_t index,
                       struct tsr_mail **out)
{
    struct tsr_carrier *carrier = v->w->carrier;
    const struct tsr_mail_header want = {.from = tsr__call_rank(&v->call, member),
                                         .index = index,
                                         .comm_id = v->call.comm_id,
                                         .phase = phase,
                                         .sequence = v->call.sequence};
    struct tsr_mail *mail =
        tsr__mail_take(&carrier->boxes, &want, v->call.deadline, &carrier->abort);
    if (!mail)
        return unanswered(v, member, phase == PHASE_DATA ? "arrive at" : "finish");
    tsr_status status = tsr__signature_check(&v->call, member, &mail->header.sig);
    if (status != TSR_OK) {
        free(mail);
        return give_up(v->w, status);
    }
    *out = mail;
    return TSR_OK;
}

/* What a member sends goes to `into`; its length follows from the signature. */
static tsr_status take_into(struct visit *v, uint32_t member, uint16_t phase, void *into,
                            uint64_t bytes)
{
    struct tsr_mail *mail;
    TSR_TRY(take(v, member, phase, 0, &mail));
    bool fits = mail->header.bytes == bytes;
    if (fits)
        tsr__copy(into, tsr__mail_data(mail), bytes);
    free(mail);
    return fits ? TSR_OK
                : give_up(v->w, tsr_fail(TSR_EDEFECT,
                                         "rank %u: a message of rank %u has another "
                                         "length than its call says",
                                         v->call.rank, tsr__call_rank(&v->call, member)));
}

/* Sends `bytes` at data + j * pitch to every other member j, not all to the same one at a time. */
static tsr_status send_all(struct visit *v, uint16_t phase, const void *data, uint64_t pitch,
                           uint64_t bytes)
{
    for (uint32_t i = 1; i < v->call.n; i++) {
        uint32_t j = (v->call.me + i) % v->call.n;
        TSR_TRY(send_part(v, j, phase, 0, (const char *)data + j * pitch, bytes));
    }
    return TSR_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static tsr_status chunks(struct visit *v, const struct tsr_collective *c)
{
    uint64_t bytes = c->bytes / v->call.n, pitch = c->kind == TSR_ALL_TO_ALL ? bytes : 0;
    TSR_TRY(send_all(v, PHASE_DATA, c->send, pitch, bytes));
    tsr__copy((char *)c->recv + v->call.me * bytes, (const char *)c->send + v->call.me * pitch,
              bytes);
    for (uint32_t j = 0; j < v->call.n; j++)
        if (j != v->call.me)
            TSR_TRY(take_into(v, j, PHASE_DATA, (char *)c->recv + j * bytes, bytes));
    return TSR_OK;
}

static tsr_status broadcast(struct visit *v, const struct tsr_collective *c)
{
    if (v->call.me != 0) {
        TSR_TRY(take_into(v, 0, PHASE_DATA, c->recv, c->bytes));
        return send_part(v, 0, PHASE_SECOND, 0, NULL, 0);
    }
    const void *data = c->send ? c->send : c->recv;
    TSR_TRY(send_all(v, PHASE_DATA, data, 0, c->bytes));
    tsr__copy(c->recv, data, c->bytes);
    for (uint32_t j = 1; j < v->call.n; j++) /* so that member 0 cannot run ahead without end */
        TSR_TRY(take_into(v, j, PHASE_SECOND, NULL, 0));
    return TSR_OK;
}

/* Takes the others' inputs for this member's part, mine + theirs in the order of the members. */
static tsr_status sum(struct visit *v, const struct tsr_collective *c, const void *mine,
                      uint64_t bytes, void *out)
{
    uint32_t n = v->call.n;
    const void **parts = calloc(n, sizeof *parts);
    struct tsr_mail **mail = calloc(n, sizeof(struct tsr_mail *));
    tsr_status status = TSR_OK;
    if (!parts || !mail)
        status = give_up(v->w, tsr__no_memory_on(v->call.rank));
    for (uint32_t j = 0; j < n && status == TSR_OK; j++) {
        if (j != v->call.me)
            status = take(v, j, PHASE_DATA, 0, &mail[j]);
        if (status == TSR_OK)
            parts[j] = j == v->call.me ? mine : tsr__mail_data(mail[j]);
    }
    if (status == TSR_OK) {
        struct tsr_reduction how = tsr__reduction_of(c);
        tsr__reduce(&how, parts, n, out, bytes / tsr_dtype_bytes(c->dtype));
    }
    for (uint32_t j = 0; mail && j < n; j++)
        free(mail[j]);
    free(mail);
    free(parts);
    return status;
}

static tsr_status reduce_scatter(struct visit *v, const struct tsr_collective *c)
{
    uint64_t bytes = c->bytes / v->call.n;
    TSR_TRY(send_all(v, PHASE_DATA, c->send, bytes, bytes));
    return sum(v, c, (const char *)c->send + v->call.me * bytes, bytes, c->recv);
}

static tsr_status all_reduce(struct visit *v, const struct tsr_collective *c)
{
    uint64_t item = tsr_dtype_bytes(c->dtype);
    for (uint32_t i = 1; i < v->call.n; i++) {
        uint32_t j = (v->call.me + i) % v->call.n;
        struct tsr_collective_part part = tsr__all_reduce_part(c, j);
        TSR_TRY(send_part(v, j, PHASE_DATA, 0, (const char *)c->send + part.first * item,
                          part.n * item));
    }
    struct tsr_collective_part mine = tsr__all_reduce_part(c, v->call.me);
    char *result = (char *)c->recv + mine.first * item;
    TSR_TRY(sum(v, c, (const char *)c->send + mine.first * item, mine.n * item, result));
    TSR_TRY(send_all(v, PHASE_SECOND, result, 0, mine.n * item));
    for (uint32_t j = 0; j < v->call.n; j++) {
        struct tsr_collective_part part = tsr__all_reduce_part(c, j);
        if (j != v->call.me)
            TSR_TRY(
                take_into(v, j, PHASE_SECOND, (char *)c->recv + part.first * item, part.n * item));
    }
    return TSR_OK;
}

static tsr_status collective(struct mail_world *w, const struct tsr_collective *c)
{
    if (tsr__aborted(&w->carrier->abort))
        return tsr__abort_status(&w->carrier->abort);
    tsr_status status = tsr__collective_check(&w->base, c);
    if (status != TSR_OK)
        return give_up(w, status);
    if (c->comm->size == 1) {
        tsr__collective_alone(c);
        return TSR_OK;
    }
    struct visit v = {w, tsr__call_of(&w->base, c)};
    switch (c->kind) {
    case TSR_ALL_GATHER:
    case TSR_ALL_TO_ALL:
        return chunks(&v, c);
    case TSR_BROADCAST:
        return broadcast(&v, c);
    case TSR_REDUCE_SCATTER:
        return reduce_scatter(&v, c);
    default:
        return all_reduce(&v, c);
    }
}

static tsr_status mail_collective(struct tsr_world *world, const struct tsr_collective *call)
{
    struct mail_world *w = (struct mail_world *)world;
    if (call->comm_id == HOST_COMM_ID)
        return give_up(w,
                       tsr_fail(TSR_EUNSUPPORTED, "communicator %u is the hosts'", HOST_COMM_ID));
    return collective(w, call);
}

static tsr_status mail_exchange(struct tsr_world *world, const void *in, void *out, size_t bytes)
{
    struct mail_world *w = (struct mail_world *)world;
    const struct tsr_comm comm = {.name = "the hosts", .size = world->size, .stride = 1};
    const struct tsr_collective call = {.kind = TSR_ALL_GATHER,
                                        .dtype = TSR_U8,
                                        .comm = &comm,
                                        .comm_id = HOST_COMM_ID,
                                        .sequence = w->n_exchanges++,
                                        .send = in,
                                        .recv = out,
                                        .bytes = (uint64_t)bytes * world->size};
    return collective(w, &call);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* What the two sides of a pair tell each other first (index 0); it also shows that they came. */
struct counts {
    uint64_t sends, receives;
};

static struct counts counts_of(const struct tsr_message *messages, size_t n, uint32_t peer)
{
    return (struct counts){tsr__messages_count(messages, n, true, peer),
                           tsr__messages_count(messages, n, false, peer)};
}

static tsr_status send_to(struct visit *v, const struct tsr_message *messages, size_t n,
                          uint32_t peer, struct counts mine)
{
    TSR_TRY(send_part(v, peer, PHASE_DATA, 0, &mine, sizeof mine));
    for (uint64_t k = 0; k < mine.sends; k++) {
        const struct tsr_message *m = tsr__message_at(messages, n, true, peer, k);
        TSR_TRY(send_part(v, peer, PHASE_DATA, (uint32_t)k + 1, m->data, m->bytes));
    }
    return TSR_OK;
}

static tsr_status take_from(struct visit *v, const struct tsr_message *messages, size_t n,
                            uint32_t peer, struct counts mine)
{
    struct counts theirs;
    uint32_t me = v->call.me;
    TSR_TRY(take_into(v, peer, PHASE_DATA, &theirs, sizeof theirs));
    if (theirs.sends != mine.receives)
        return give_up(v->w,
                       tsr__messages_mismatch(&v->call, peer, me, theirs.sends, mine.receives));
    if (theirs.receives != mine.sends)
        return give_up(v->w,
                       tsr__messages_mismatch(&v->call, me, peer, mine.sends, theirs.receives));
    for (uint64_t k = 0; k < mine.receives; k++) {
        const struct tsr_message *m = tsr__message_at(messages, n, false, peer, k);
        struct tsr_mail *mail;
        TSR_TRY(take(v, peer, PHASE_DATA, (uint32_t)k + 1, &mail));
        uint64_t bytes = mail->header.bytes;
        if (bytes == m->bytes)
            tsr__copy(m->data, tsr__mail_data(mail), bytes);
        free(mail);
        if (bytes != m->bytes)
            return give_up(v->w, tsr__message_size_mismatch(&v->call, peer, me, bytes, m->bytes));
    }
    return TSR_OK;
}

static tsr_status mail_messages(struct tsr_world *world, const struct tsr_comm *comm,
                                uint16_t comm_id, uint64_t sequence,
                                const struct tsr_message *messages, size_t n)
{
    struct mail_world *w = (struct mail_world *)world;
    if (tsr__aborted(&w->carrier->abort))
        return tsr__abort_status(&w->carrier->abort);
    tsr_status status = tsr__messages_check(world, comm, messages, n);
    if (status != TSR_OK)
        return give_up(w, status);
    struct visit v = {w, tsr__call_of_messages(world, comm, comm_id, sequence)};
    status = tsr__messages_to_self(&v.call, messages, n);
    if (status != TSR_OK)
        return give_up(w, status);
    for (int taking = 0; taking < 2; taking++)
        for (uint32_t j = 0; j < v.call.n; j++) {
            struct counts mine = counts_of(messages, n, j);
            if (j == v.call.me || mine.sends + mine.receives == 0)
                continue;
            TSR_TRY(taking ? take_from(&v, messages, n, j, mine)
                           : send_to(&v, messages, n, j, mine));
        }
    return TSR_OK;
}

/* ---- the world ------------------------------------------------------------------------------- */

static void mail_abort(struct tsr_world *world, tsr_status status, const char *why)
{
    struct tsr_carrier *carrier = ((struct mail_world *)world)->carrier;
    if (tsr__abort_by(&carrier->abort, world->rank, status, why)) {
        tsr__mail_wake(&carrier->boxes);
        carrier->ops->tell(carrier, status, carrier->abort.text);
    }
}

static tsr_status mail_check(struct tsr_world *world)
{
    struct tsr_abort *abort = &((struct mail_world *)world)->carrier->abort;
    return tsr__aborted(abort) ? tsr__abort_status(abort) : TSR_OK;
}

static void mail_destroy(struct tsr_world *world)
{
    struct mail_world *w = (struct mail_world *)world;
    w->carrier->ops->destroy(w->carrier, !tsr__aborted(&w->carrier->abort));
    free(w);
}

static const struct tsr_world_ops mail_ops = {
    .collective = mail_collective,
    .messages = mail_messages,
    .exchange = mail_exchange,
    .abort = mail_abort,
    .check = mail_check,
    .destroy = mail_destroy,
};

tsr_status tsr__world_mail(struct tsr_carrier *carrier, uint32_t rank, uint32_t size,
                           double timeout_s, struct tsr_world **out)
{
    struct mail_world *w = calloc(1, sizeof *w);
    if (!w)
        return tsr_no_memory("a world");
    w->ops = mail_ops;
    w->ops.name = carrier->ops->name;
    w->base = (struct tsr_world){&w->ops, rank, size, timeout_s};
    w->carrier = carrier;
    *out = &w->base;
    return TSR_OK;
}
