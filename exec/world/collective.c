/* collective.c: checks, signatures and words of collectives, the first failure, and what is the
 * same in all worlds.
 */
#include "exec/world/collective.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/word.h"
#include "exec/world/world.h"

enum { CALL_TEXT = 160, PART_ALIGN = 64 };

void tsr__copy(void *to, const void *from, uint64_t bytes)
{
    if (bytes && to != from)
        memcpy(to, from, bytes);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct tsr_call call_of(const struct tsr_world *world, const struct tsr_comm *comm,
                               uint16_t comm_id, uint64_t sequence)
{
    return (struct tsr_call){.sig = {.comm_size = comm->size, .comm_stride = comm->stride},
                             .comm = comm,
                             .comm_id = comm_id,
                             .sequence = sequence,
                             .rank = world->rank,
                             .me = tsr_comm_index(comm, world->rank),
                             .n = comm->size,
                             .deadline = tsr__now() + world->timeout_s};
}

struct tsr_call tsr__call_of(const struct tsr_world *world, const struct tsr_collective *c)
{
    struct tsr_call call = call_of(world, c->comm, c->comm_id, c->sequence);
    call.sig.kind = c->kind;
    call.sig.dtype = c->dtype;
    call.sig.bytes = c->bytes;
    if (c->kind == TSR_ALL_REDUCE || c->kind == TSR_REDUCE_SCATTER) {
        call.sig.reduce_op = c->reduce_op;
        call.sig.factor = c->reduce_op == TSR_REDUCE_PREMUL_SUM ? c->factor : 0;
    }
    return call;
}

struct tsr_call tsr__call_of_messages(const struct tsr_world *world, const struct tsr_comm *comm,
                                      uint16_t comm_id, uint64_t sequence)
{
    struct tsr_call call = call_of(world, comm, comm_id, sequence);
    call.sig.kind = TSR_SEND;
    return call;
}

static const char *comm_name(const struct tsr_comm *comm)
{
    return comm->name ? comm->name : "?";
}

/* "all_gather #12 of 'shard'". */
static void name_call(const struct tsr_call *call, char *text, size_t bytes)
{
    const char *kind =
        call->sig.kind == TSR_SEND ? "messages" : tsr_instr_kind_name(call->sig.kind);
    (void)snprintf(text, bytes, "%s #%llu of '%s'", kind, (unsigned long long)call->sequence,
                   comm_name(call->comm));
}

tsr_status tsr__call_timeout(const struct tsr_world *world, const struct tsr_call *call,
                             uint32_t member, const char *did)
{
    char name[CALL_TEXT];
    name_call(call, name, sizeof name);
    return tsr_fail(TSR_EPEER, "rank %u did not %s %s within %g s", tsr__call_rank(call, member),
                    did, name, world->timeout_s);
}

/* ---- what members must agree on -------------------------------------------------------------- */

/* "all_reduce of 4096 bytes of bf16, sum". */
static void describe(const struct tsr_signature *sig, char *text, size_t bytes)
{
    if (sig->kind == TSR_SEND) {
        (void)snprintf(text, bytes, "messages");
        return;
    }
    char op[64] = "";
    if (sig->reduce_op == TSR_REDUCE_PREMUL_SUM)
        (void)snprintf(op, sizeof op, ", %s by %.9g", tsr_reduce_op_name(sig->reduce_op),
                       sig->factor);
    else if (sig->reduce_op != TSR_REDUCE_NONE)
        (void)snprintf(op, sizeof op, ", %s", tsr_reduce_op_name(sig->reduce_op));
    (void)snprintf(text, bytes, "%s of %llu bytes of %s%s", tsr_instr_kind_name(sig->kind),
                   (unsigned long long)sig->bytes, tsr_dtype_name(sig->dtype), op);
}

tsr_status tsr__signature_check(const struct tsr_call *call, uint32_t member,
                                const struct tsr_signature *theirs)
{
    const struct tsr_signature *mine = &call->sig;
    uint32_t rank = tsr__call_rank(call, member);
    if (theirs->comm_size != mine->comm_size || theirs->comm_stride != mine->comm_stride)
        return tsr_fail(TSR_EDEFECT,
                        "call #%llu of '%s': rank %u has %u members %u ranks apart, "
                        "rank %u has %u members %u ranks apart",
                        (unsigned long long)call->sequence, comm_name(call->comm), call->rank,
                        mine->comm_size, mine->comm_stride, rank, theirs->comm_size,
                        theirs->comm_stride);
    if (theirs->kind == mine->kind && theirs->dtype == mine->dtype &&
        theirs->reduce_op == mine->reduce_op && theirs->bytes == mine->bytes &&
        theirs->factor == mine->factor)
        return TSR_OK;
    char ours[CALL_TEXT], others[CALL_TEXT];
    describe(mine, ours, sizeof ours);
    describe(theirs, others, sizeof others);
    return tsr_fail(TSR_EDEFECT, "call #%llu of '%s': rank %u calls %s, rank %u calls %s",
                    (unsigned long long)call->sequence, comm_name(call->comm), call->rank, ours,
                    rank, others);
}

/* ---- what a call may be ---------------------------------------------------------------------- */

static tsr_status check_comm(const struct tsr_world *world, const struct tsr_comm *comm)
{
    if (comm->size == 0 || comm->stride == 0)
        return tsr_fail(TSR_EDEFECT, "communicator '%s' has %u members %u ranks apart",
                        comm_name(comm), comm->size, comm->stride);
    uint64_t last = tsr_comm_member(comm, world->rank, comm->size - 1);
    if (last >= world->size)
        return tsr_fail(TSR_EDEFECT, "communicator '%s' of rank %u has a rank %llu; there are %u",
                        comm_name(comm), world->rank, (unsigned long long)last, world->size);
    return TSR_OK;
}

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

/* The aliases that world.h allows are the only ones. */
static bool aliases_are_allowed(const struct tsr_collective *c, uint32_t me)
{
    uint64_t part = tsr_ceil_div(c->bytes, c->comm->size);
    const char *send = c->send, *recv = c->recv;
    switch (c->kind) {
    case TSR_ALL_GATHER:
        return !overlap(send, part, recv, c->bytes) || send == recv + me * part;
    case TSR_REDUCE_SCATTER:
        return !overlap(send, c->bytes, recv, part) || recv == send + me * part;
    case TSR_BROADCAST:
        return me != 0 || send == recv || !overlap(send, c->bytes, recv, c->bytes);
    case TSR_ALL_REDUCE:
        return send == recv || !overlap(send, c->bytes, recv, c->bytes);
    default:
        return c->comm->size == 1 ? send == recv || !overlap(send, c->bytes, recv, c->bytes)
                                  : !overlap(send, c->bytes, recv, c->bytes);
    }
}

static tsr_status check_sizes(const struct tsr_collective *c, uint32_t rank)
{
    const char *kind = tsr_instr_kind_name(c->kind), *name = comm_name(c->comm);
    bool is_reduction = c->kind == TSR_ALL_REDUCE || c->kind == TSR_REDUCE_SCATTER;
    unsigned item = tsr_dtype_bytes(c->dtype);
    if (is_reduction &&
        (item == 0 || c->reduce_op == TSR_REDUCE_NONE || c->reduce_op > TSR_REDUCE_MAX))
        return tsr_fail(TSR_EDEFECT, "%s of '%s' on rank %u: no %s of elements of %s", kind, name,
                        rank, tsr_reduce_op_name(c->reduce_op), tsr_dtype_name(c->dtype));
    bool is_whole = c->kind == TSR_ALL_REDUCE || c->kind == TSR_BROADCAST;
    uint64_t unit = (uint64_t)(is_whole ? 1 : c->comm->size) * (item ? item : 1);
    if (unit == 0 || c->bytes % unit)
        return tsr_fail(TSR_EDEFECT, "%s of '%s' on rank %u: %llu bytes are no multiple of %llu",
                        kind, name, rank, (unsigned long long)c->bytes, (unsigned long long)unit);
    return TSR_OK;
}

tsr_status tsr__collective_check(const struct tsr_world *world, const struct tsr_collective *c)
{
    TSR_TRY(check_comm(world, c->comm));
    bool is_known = c->kind == TSR_ALL_GATHER || c->kind == TSR_REDUCE_SCATTER ||
                    c->kind == TSR_ALL_REDUCE || c->kind == TSR_BROADCAST ||
                    c->kind == TSR_ALL_TO_ALL;
    if (!is_known)
        return tsr_fail(TSR_EDEFECT, "%s is no collective of a world",
                        tsr_instr_kind_name(c->kind));
    TSR_TRY(check_sizes(c, world->rank));
    if (c->bytes && !aliases_are_allowed(c, tsr_comm_index(c->comm, world->rank)))
        return tsr_fail(TSR_EDEFECT, "%s of '%s' on rank %u: its input overlaps its output",
                        tsr_instr_kind_name(c->kind), comm_name(c->comm), world->rank);
    return TSR_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

tsr_status tsr__messages_check(const struct tsr_world *world, const struct tsr_comm *comm,
                               const struct tsr_message *messages, size_t n)
{
    TSR_TRY(check_comm(world, comm));
    for (size_t i = 0; i < n; i++)
        if (messages[i].peer >= comm->size)
            return tsr_fail(TSR_EDEFECT, "message of rank %u to member %u of '%s', which has %u",
                            world->rank, messages[i].peer, comm_name(comm), comm->size);
    return TSR_OK;
}

uint64_t tsr__messages_count(const struct tsr_message *messages, size_t n, bool is_send,
                             uint32_t peer)
{
    uint64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += messages[i].is_send == is_send && messages[i].peer == peer;
    return count;
}

const struct tsr_message *tsr__message_at(const struct tsr_message *messages, size_t n,
                                          bool is_send, uint32_t peer, uint64_t k)
{
    for (size_t i = 0; i < n; i++)
        if (messages[i].is_send == is_send && messages[i].peer == peer && k-- == 0)
            return &messages[i];
    return NULL;
}

tsr_status tsr__messages_mismatch(const struct tsr_call *call, uint32_t from, uint32_t to,
                                  uint64_t n_sends, uint64_t n_receives)
{
    return tsr_fail(
        TSR_EDEFECT, "messages #%llu of '%s': rank %u sends %llu to rank %u, which receives %llu",
        (unsigned long long)call->sequence, comm_name(call->comm), tsr__call_rank(call, from),
        (unsigned long long)n_sends, tsr__call_rank(call, to), (unsigned long long)n_receives);
}

tsr_status tsr__message_size_mismatch(const struct tsr_call *call, uint32_t from, uint32_t to,
                                      uint64_t sent, uint64_t room)
{
    return tsr_fail(TSR_EDEFECT,
                    "messages #%llu of '%s': rank %u sends %llu bytes to rank %u, which expects "
                    "%llu",
                    (unsigned long long)call->sequence, comm_name(call->comm),
                    tsr__call_rank(call, from), (unsigned long long)sent, tsr__call_rank(call, to),
                    (unsigned long long)room);
}

tsr_status tsr__messages_to_self(const struct tsr_call *call, const struct tsr_message *messages,
                                 size_t n)
{
    uint64_t sends = tsr__messages_count(messages, n, true, call->me);
    uint64_t receives = tsr__messages_count(messages, n, false, call->me);
    if (sends != receives)
        return tsr__messages_mismatch(call, call->me, call->me, sends, receives);
    for (uint64_t k = 0; k < sends; k++) {
        const struct tsr_message *from = tsr__message_at(messages, n, true, call->me, k);
        const struct tsr_message *to = tsr__message_at(messages, n, false, call->me, k);
        if (from->bytes != to->bytes)
            return tsr__message_size_mismatch(call, call->me, call->me, from->bytes, to->bytes);
        tsr__copy(to->data, from->data, from->bytes);
    }
    return TSR_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

struct tsr_collective_part tsr__all_reduce_part(const struct tsr_collective *c, uint32_t member)
{
    unsigned item = tsr_dtype_bytes(c->dtype);
    uint64_t n = c->bytes / item;
    uint64_t each = tsr_round_up(tsr_ceil_div(n, c->comm->size), PART_ALIGN / item);
    uint64_t first = tsr_min_u64(n, each * member);
    return (struct tsr_collective_part){first, tsr_min_u64(each, n - first)};
}

void tsr__collective_alone(const struct tsr_collective *c)
{
    if (c->kind == TSR_ALL_REDUCE || c->kind == TSR_REDUCE_SCATTER) {
        struct tsr_reduction how = tsr__reduction_of(c);
        tsr__reduce(&how, &c->send, 1, c->recv, c->bytes / tsr_dtype_bytes(c->dtype));
    } else if (c->kind != TSR_BROADCAST || c->send) {
        tsr__copy(c->recv, c->send, c->bytes);
    }
}

/* ---- the first failure ----------------------------------------------------------------------- */

bool tsr__abort_set(struct tsr_abort *abort, tsr_status status, const char *text)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&abort->state, &none, 1))
        return false;
    abort->status = status;
    (void)snprintf(abort->text, sizeof abort->text, "%s", text);
    atomic_store(&abort->state, 2);
    return true;
}

bool tsr__abort_by(struct tsr_abort *abort, uint32_t rank, tsr_status status, const char *why)
{
    char text[TSR_ABORT_TEXT];
    (void)snprintf(text, sizeof text, "rank %u gave up: %s", rank, why ? why : "no reason given");
    return tsr__abort_set(abort, status, text);
}

tsr_status tsr__no_memory_on(uint32_t rank)
{
    return tsr_fail(TSR_ENOMEM, "rank %u: out of memory", rank);
}

tsr_status tsr__abort_status(struct tsr_abort *abort)
{
    while (atomic_load(&abort->state) != 2)
        (void)sched_yield();
    return tsr_fail(abort->status, "%s", abort->text);
}

/* ---- any world ------------------------------------------------------------------------------- */

/* What is the same in all worlds, on top of their operations. */

/* What a rank says of itself. */
struct word {
    uint32_t status;
    char text[508];
};

static bool is_mistake(tsr_status status)
{
    return status != TSR_ENOMEM && status != TSR_EIO && status != TSR_EBACKEND &&
           status != TSR_EOOM && status != TSR_EDEFECT && status != TSR_EPEER;
}

static bool any_failed(const struct word *all, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        if (all[r].status != TSR_OK)
            return true;
    return false;
}

static tsr_status first_failure(const struct word *all)
{
    uint32_t r = 0;
    while (all[r].status == TSR_OK)
        r++;
    tsr_status status = all[r].status <= TSR_EPEER ? (tsr_status)all[r].status : TSR_EPEER;
    if (is_mistake(status))
        return tsr_fail(status, "%s", all[r].text);
    return tsr_fail(status, "rank %u: %s", r, all[r].text);
}

/* All know of a failure before one of them leaves and aborts the world. */
static void settle(struct tsr_world *world)
{
    (void)!tsr_world_barrier(world);
}

tsr_status tsr_world_agree(struct tsr_world *world, tsr_status status)
{
    if (!world)
        return status;
    struct word mine = {.status = (uint32_t)status}, *all = malloc(world->size * sizeof *all);
    if (!all)
        return tsr_no_memory(NULL);
    if (status != TSR_OK)
        (void)snprintf(mine.text, sizeof mine.text, "%s", tsr_error_text());
    status = world->ops->exchange(world, &mine, all, sizeof mine);
    if (status == TSR_OK && any_failed(all, world->size)) {
        settle(world);
        status = first_failure(all);
    }
    free(all);
    return status;
}

tsr_status tsr_world_same(struct tsr_world *world, const char *what, uint64_t hash)
{
    uint64_t *all = malloc(world->size * sizeof *all);
    if (!all)
        return tsr_no_memory(NULL);
    tsr_status status = world->ops->exchange(world, &hash, all, sizeof hash);
    for (uint32_t r = 1; status == TSR_OK && r < world->size; r++) {
        if (all[r] == all[0])
            continue;
        settle(world);
        status = tsr_fail(TSR_ECONFIG, "rank %u runs another configuration than rank 0 (what: %s)",
                          r, what);
    }
    free(all);
    return status;
}
