/* check_calls.c: notes every collective, SEND and RECV of a rank for the comparison of ranks
 * (check_ranks.c), and sees that its operands hold what travels.
 */
#include <string.h>

#include "engine/check/check_impl.h"

static bool same_comm(const struct tsr_comm *a, const struct tsr_comm *b)
{
    return a->size == b->size && a->stride == b->stride && strcmp(a->name, b->name) == 0;
}

/* Its number among the communicators of all ranks; TSR__NONE: out of memory. */
static uint32_t comm_number(struct tsr_checker *c, const struct tsr_comm *comm)
{
    for (size_t i = 0; i < c->n_comms; i++)
        if (same_comm(&c->comms[i].comm, comm))
            return (uint32_t)i;
    struct tsr__checked_comm own = {*comm};
    own.comm.name = tsr_arena_strdup(&c->arena, comm->name);
    if (!own.comm.name || !TSR_PUSH(c->comms, c->n_comms, c->cap_comms, own))
        return TSR__NONE;
    return (uint32_t)(c->n_comms - 1);
}

static bool is_p2p(uint8_t kind)
{
    return kind == TSR_SEND || kind == TSR_RECV;
}

/* What it is for: ranks that mix up two gathers of one size get each other's parameters. Numbers of
 * groups may differ between ranks, names do not. */
static uint64_t purpose_of(const struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    const struct tsr_origin *o = &instr->origin;
    uint64_t hash = tsr_hash_u64(TSR_HASH_INIT, o->phase | (uint64_t)o->micro << 8);
    if (o->group >= r->tables->n_groups)
        return hash;
    const char *name = r->tables->groups[o->group];
    return tsr_hash_bytes(hash, name, strlen(name));
}

/* Bytes of the operands that it reads (slot 0), and of those that it writes, which may be the same
 * ones. */
static void operand_bytes(const struct tsr_instr *instr, uint64_t *read, uint64_t *written)
{
    *read = *written = 0;
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        *read += instr->operands[i].access & TSR_READ ? instr->operands[i].bytes : 0;
        *written += instr->operands[i].access & TSR_WRITE ? instr->operands[i].bytes : 0;
    }
}

/* Do the operands hold what travels? */
static bool sizes_fit(const struct tsr_instr *instr, uint32_t size)
{
    uint64_t read, written;
    operand_bytes(instr, &read, &written);
    switch (instr->kind) {
    case TSR_ALL_GATHER:
        return written == instr->bytes && read * size == instr->bytes;
    case TSR_REDUCE_SCATTER:
        return read == instr->bytes && written * size == instr->bytes;
    case TSR_ALL_REDUCE:
    case TSR_BROADCAST:
        return read == instr->bytes && written == instr->bytes;
    case TSR_SEND:
        return read == instr->bytes && written == 0;
    case TSR_RECV:
        return written == instr->bytes && read == 0;
    default:
        return true;
    }
}

void tsr__on_call(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    char text[TSR__TEXT];
    uint32_t unit = r->in_launch ? r->n_units : ++r->n_units;
    if (!r->tables)
        return;
    if (instr->comm >= r->tables->n_comms) {
        tsr__find(r, TSR_CHECK_STRUCTURE, tsr__note_key(r, r->now), &r->now, 1,
                  "%s names communicator %u of %u", tsr__short(r, r->now, text, sizeof text),
                  instr->comm, r->tables->n_comms);
        return;
    }
    const struct tsr_comm *comm = &r->tables->comms[instr->comm];
    uint32_t number = comm_number(r->checker, comm);
    if (number == TSR__NONE) {
        tsr__check_no_memory(r);
        return;
    }
    if (is_p2p(instr->kind) &&
        (instr->peer >= comm->size || instr->peer == tsr_comm_index(comm, r->rank)))
        tsr__find(r, TSR_CHECK_STRUCTURE, tsr__note_key(r, r->now), &r->now, 1,
                  "%s names peer %u, and the rank is member %u of %u",
                  tsr__short(r, r->now, text, sizeof text), instr->peer,
                  tsr_comm_index(comm, r->rank), comm->size);
    if (!sizes_fit(instr, comm->size))
        tsr__find(r, TSR_CHECK_STRUCTURE, tsr_hash_u64(tsr__note_key(r, r->now), 1), &r->now, 1,
                  "%s has operands that do not hold the %llu bytes that travel among %u ranks",
                  tsr__short(r, r->now, text, sizeof text), (unsigned long long)instr->bytes,
                  comm->size);
    struct tsr__call call = {.kind = instr->kind,
                             .dtype = instr->dtype,
                             .reduce_op = instr->reduce_op,
                             .comm = (uint16_t)number,
                             .peer = is_p2p(instr->kind) ? instr->peer : 0,
                             .unit = unit,
                             .note = r->now,
                             .purpose = purpose_of(r, instr),
                             .bytes = instr->bytes,
                             .factor = instr->factor};
    if (!TSR_PUSH(r->calls, r->n_calls, r->cap_calls, call))
        tsr__check_no_memory(r);
}
