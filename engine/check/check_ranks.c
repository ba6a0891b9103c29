/* check_ranks.c: the calls that ranks make together, noted rank by rank (the last section) and then
 * compared: the members of a communicator must make the
 * same ones in the same order, and no ring of ranks may wait for each other.
 *
 * Inside a rank every wait is for something that was issued before (check_order.c), so ranks can
 * only be caught in a ring if they issue collectives in different orders. It is looked for by
 * letting every rank make its calls one after the other, each until all members have come. That is
 * also what keeps communicators apart on a device which cannot hold the kernels of two at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/check/check_impl.h"

static bool is_p2p(uint8_t kind)
{
    return kind == TSR_SEND || kind == TSR_RECV;
}

/* ---- the same calls in the same order -------------------------------------------------------- */

static bool same_call(const struct tsr__call *a, const struct tsr__call *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->reduce_op == b->reduce_op &&
           a->bytes == b->bytes && a->purpose == b->purpose &&
           (a->reduce_op != TSR_REDUCE_PREMUL_SUM || a->factor == b->factor);
}

/* The next collective of a communicator at or behind i. */
static size_t next_of(const struct tsr__check_rank *r, uint32_t comm, size_t i)
{
    while (i < r->n_calls && (r->calls[i].comm != comm || is_p2p(r->calls[i].kind)))
        i++;
    return i;
}

static void call_text(const struct tsr__check_rank *r, size_t i, char *out, size_t size)
{
    char text[TSR__TEXT];
    if (i >= r->n_calls) {
        snprintf(out, size, "nothing more");
        return;
    }
    const struct tsr__call *c = &r->calls[i];
    snprintf(out, size, "%s (%s, %llu bytes, %s%s%s)", tsr__short(r, c->note, text, sizeof text),
             tsr_instr_kind_name(c->kind), (unsigned long long)c->bytes,
             tsr_dtype_name((tsr_dtype)c->dtype), c->reduce_op ? ", " : "",
             c->reduce_op ? tsr_reduce_op_name(c->reduce_op) : "");
}

/* The last calls of a communicator up to and with i. */
static void add_history(const struct tsr__check_rank *r, uint32_t rank, uint32_t comm, size_t i,
                        char *out, size_t size)
{
    enum { SHOWN = 4 };
    char text[TSR__TEXT];
    size_t from = i < r->n_calls ? i + 1 : r->n_calls, n = strlen(out);
    for (int k = 0; from > 0 && k < SHOWN; from--)
        k += r->calls[from - 1].comm == comm;
    for (; from <= i && from < r->n_calls && n < size; from++)
        if (r->calls[from].comm == comm) {
            tsr__full(r, r->calls[from].note, text, sizeof text);
            snprintf(out + n, size - n, "    rank %u: %s\n", rank, text);
            n = strlen(out);
        }
}

static void report_mismatch(struct tsr_checker *c, uint32_t a, uint32_t b, uint32_t comm, size_t i,
                            size_t k, size_t at)
{
    char headline[6 * TSR__TEXT], details[8 * TSR__TEXT] = "", x[2 * TSR__TEXT], y[2 * TSR__TEXT];
    const struct tsr__check_rank *ra = c->ranks[a], *rb = c->ranks[b];
    call_text(ra, i, x, sizeof x);
    call_text(rb, k, y, sizeof y);
    snprintf(headline, sizeof headline,
             "communicator %s: call %zu of rank %u is %s, that of rank %u is %s",
             c->comms[comm].comm.name, at, a, x, b, y);
    add_history(ra, a, comm, i, details, sizeof details);
    add_history(rb, b, comm, k, details, sizeof details);
    tsr__find_text(c, a, TSR_CHECK_MISMATCH, tsr_hash_u64(comm, at), headline, details);
}

static void compare_pair(struct tsr_checker *c, uint32_t a, uint32_t b, uint32_t comm)
{
    const struct tsr__check_rank *ra = c->ranks[a], *rb = c->ranks[b];
    size_t i = next_of(ra, comm, 0), k = next_of(rb, comm, 0), at = 0;
    while (i < ra->n_calls && k < rb->n_calls && same_call(&ra->calls[i], &rb->calls[k])) {
        i = next_of(ra, comm, i + 1);
        k = next_of(rb, comm, k + 1);
        at++;
    }
    if (i < ra->n_calls || k < rb->n_calls)
        report_mismatch(c, a, b, comm, i, k, at);
}

/* Every known member against the first known one; pairs of programs only once. */
static void compare_comm(struct tsr_checker *c, uint32_t comm)
{
    const struct tsr_comm *info = &c->comms[comm].comm;
    const struct tsr__check_rank *last_a = NULL, *last_b = NULL;
    for (uint32_t rank = 0; rank < c->config.world; rank++) {
        uint32_t first = rank;
        for (uint32_t i = 0; i < info->size; i++) {
            first = tsr_comm_member(info, rank, i);
            if (first < c->config.world && c->ranks[first])
                break;
        }
        if (first >= c->config.world || !c->ranks[rank] || !c->ranks[first] ||
            c->ranks[first] == c->ranks[rank])
            continue;
        if (c->ranks[first] == last_a && c->ranks[rank] == last_b)
            continue;
        last_a = c->ranks[first];
        last_b = c->ranks[rank];
        compare_pair(c, first, rank, comm);
    }
}

/* ---- rings ----------------------------------------------------------------------------------- */

struct progress {
    size_t next;  /* call that the rank makes next */
    bool started; /* its launch has begun */
};

/* All ranks making their calls. */
struct run {
    struct tsr_checker *c;
    uint32_t world;
    bool with_peers;
    struct progress *ranks;  /* [world] */
    uint32_t **arrived;      /* [comm][rank]: collectives that the rank has begun there */
    uint32_t *sent, *wanted; /* [comm][from][to]: SENDs and RECVs that were begun */
    uint32_t **seq;          /* [rank][call]: number among its like */
};

static void run_fini(struct run *run)
{
    for (size_t i = 0; run->arrived && i < run->c->n_comms; i++)
        free(run->arrived[i]);
    for (uint32_t i = 0; run->seq && i < run->world; i++)
        if (run->c->ranks[i] && run->c->ranks[i]->rank == i)
            free(run->seq[i]);
    free(run->arrived);
    free(run->seq);
    free(run->ranks);
    free(run->sent);
    free(run->wanted);
}

static size_t pair_index(const struct run *run, uint32_t comm, uint32_t from, uint32_t to)
{
    return ((size_t)comm * run->world + from) * run->world + to;
}

/* How many like it came before each call: of its communicator, or to or from its peer. */
static uint32_t *number_calls(const struct run *run, const struct tsr__check_rank *r)
{
    uint32_t *seq = calloc(r->n_calls + 1, sizeof *seq);
    uint32_t *counts = calloc(run->c->n_comms * 2UL * (run->world + 1UL) + 1, sizeof *counts);
    for (size_t i = 0; seq && counts && i < r->n_calls; i++) {
        const struct tsr__call *call = &r->calls[i];
        size_t slot = call->comm * 2UL * (run->world + 1UL);
        if (is_p2p(call->kind))
            slot += 1 + (call->kind == TSR_RECV ? run->world : 0) + call->peer % run->world;
        seq[i] = counts[slot]++;
    }
    free(counts);
    return seq;
}

static bool run_init(struct run *run)
{
    struct tsr_checker *c = run->c;
    size_t pairs = run->with_peers ? (size_t)c->n_comms * run->world * run->world : 0;
    run->ranks = calloc(run->world + 1UL, sizeof *run->ranks);
    run->arrived = calloc(c->n_comms + 1, sizeof *run->arrived);
    run->seq = calloc(run->world + 1UL, sizeof *run->seq);
    run->sent = calloc(pairs + 1, sizeof *run->sent);
    run->wanted = calloc(pairs + 1, sizeof *run->wanted);
    if (!run->ranks || !run->arrived || !run->seq || !run->sent || !run->wanted)
        return false;
    for (size_t i = 0; i < c->n_comms; i++)
        if (!(run->arrived[i] = calloc(run->world + 1UL, sizeof(uint32_t))))
            return false;
    for (uint32_t i = 0; i < run->world; i++) {
        const struct tsr__check_rank *r = c->ranks[i];
        run->seq[i] = r && r->rank != i ? run->seq[r->rank] : r ? number_calls(run, r) : NULL;
        if (r && !run->seq[i])
            return false;
    }
    return true;
}

static void begin_call(struct run *run, uint32_t rank, const struct tsr__call *call)
{
    const struct tsr_comm *comm = &run->c->comms[call->comm].comm;
    if (!is_p2p(call->kind)) {
        run->arrived[call->comm][rank]++;
    } else if (run->with_peers && call->peer < comm->size) {
        uint32_t peer = tsr_comm_member(comm, rank, call->peer);
        if (call->kind == TSR_SEND)
            run->sent[pair_index(run, call->comm, rank, peer)]++;
        else
            run->wanted[pair_index(run, call->comm, peer, rank)]++;
    }
}

/* The rank that call i of `rank` still waits for; TSR__NONE: none. */
static uint32_t waits_for(const struct run *run, uint32_t rank, size_t i)
{
    const struct tsr__call *call = &run->c->ranks[rank]->calls[i];
    const struct tsr_comm *comm = &run->c->comms[call->comm].comm;
    uint32_t seq = run->seq[rank][i];
    if (is_p2p(call->kind)) {
        if (!run->with_peers || call->peer >= comm->size)
            return TSR__NONE;
        uint32_t peer = tsr_comm_member(comm, rank, call->peer);
        uint32_t came = call->kind == TSR_SEND
                            ? run->wanted[pair_index(run, call->comm, rank, peer)]
                            : run->sent[pair_index(run, call->comm, peer, rank)];
        return came > seq ? TSR__NONE : peer;
    }
    for (uint32_t k = 0; k < comm->size; k++) {
        uint32_t member = tsr_comm_member(comm, rank, k);
        bool known = member < run->world && run->c->ranks[member];
        if (known && run->arrived[call->comm][member] <= seq)
            return member;
    }
    return TSR__NONE;
}

static size_t unit_end(const struct tsr__check_rank *r, size_t i)
{
    size_t end = i;
    while (end < r->n_calls && r->calls[end].unit == r->calls[i].unit)
        end++;
    return end;
}

/* Makes the calls of a rank until one has to wait. True: it got on. */
static bool advance(struct run *run, uint32_t rank)
{
    const struct tsr__check_rank *r = run->c->ranks[rank];
    struct progress *p = &run->ranks[rank];
    bool moved = false;
    while (r && p->next < r->n_calls) {
        size_t end = unit_end(r, p->next);
        if (!p->started) {
            for (size_t i = p->next; i < end; i++)
                begin_call(run, rank, &r->calls[i]);
            p->started = moved = true;
        }
        for (size_t i = p->next; i < end; i++)
            if (waits_for(run, rank, i) != TSR__NONE)
                return moved;
        p->next = end;
        p->started = false;
        moved = true;
    }
    return moved;
}

/* The first call of its launch that a stuck rank waits in. */
static size_t stuck_call(const struct run *run, uint32_t rank, uint32_t *peer)
{
    const struct tsr__check_rank *r = run->c->ranks[rank];
    size_t i = run->ranks[rank].next, end = unit_end(r, i);
    for (; i < end; i++)
        if ((*peer = waits_for(run, rank, i)) != TSR__NONE)
            return i;
    return end;
}

static void report_ring(struct run *run, uint32_t rank)
{
    enum { MOST = 16 };
    char headline[4 * TSR__TEXT], details[8 * TSR__TEXT] = "", text[2 * TSR__TEXT];
    struct tsr_checker *c = run->c;
    size_t n = 0, d = 0;
    uint32_t first = rank, peer = TSR__NONE;
    headline[0] = '\0';
    for (int k = 0; k < MOST && n < sizeof headline; k++) {
        const struct tsr__check_rank *r = c->ranks[rank];
        size_t i = stuck_call(run, rank, &peer);
        call_text(r, i, text, sizeof text);
        snprintf(headline + n, sizeof headline - n, "%srank %u in %s on %s waits for rank %u",
                 k ? "; " : "", rank, text, c->comms[r->calls[i].comm].comm.name, peer);
        n = strlen(headline);
        tsr__full(r, r->calls[i].note, text, sizeof text);
        snprintf(details + d, sizeof details - d, "    rank %u: %s\n", rank, text);
        d = strlen(details);
        if (!c->ranks[peer] || run->ranks[peer].next >= c->ranks[peer]->n_calls) {
            snprintf(headline + n, sizeof headline - n, ", which makes no further call");
            break;
        }
        rank = peer;
        if (rank == first)
            break;
    }
    tsr__find_text(c, first, TSR_CHECK_DEADLOCK, 1, headline, details);
}

static tsr_status look_for_rings(struct tsr_checker *c, bool with_peers)
{
    struct run run = {.c = c, .world = c->config.world, .with_peers = with_peers};
    bool ok = run_init(&run), moved = ok;
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < run.world; i++)
            moved |= advance(&run, i);
    }
    for (uint32_t i = 0; ok && i < run.world; i++)
        if (c->ranks[i] && run.ranks[i].next < c->ranks[i]->n_calls) {
            report_ring(&run, i);
            break;
        }
    run_fini(&run);
    return ok ? TSR_OK
              : tsr_fail(TSR_ENOMEM, "no memory left to compare %u ranks", c->config.world);
}

/* ---- SEND and RECV --------------------------------------------------------------------------- */

/* The call with number `seq` of a kind to or from member `peer`. */
static const struct tsr__call *find_p2p(const struct tsr__check_rank *r, uint32_t comm,
                                        uint8_t kind, uint32_t peer, uint32_t seq)
{
    for (size_t i = 0; i < r->n_calls; i++) {
        const struct tsr__call *call = &r->calls[i];
        if (call->comm == comm && call->kind == kind && call->peer == peer && seq-- == 0)
            return call;
    }
    return NULL;
}

static void compare_sends(struct tsr_checker *c, const struct tsr__check_rank *r)
{
    char headline[4 * TSR__TEXT], text[TSR__TEXT];
    uint32_t *seen = calloc((size_t)c->n_comms * c->config.world + 1, sizeof *seen);
    for (size_t i = 0; seen && i < r->n_calls; i++) {
        const struct tsr__call *call = &r->calls[i];
        const struct tsr_comm *comm = &c->comms[call->comm].comm;
        if (call->kind != TSR_SEND || call->peer >= comm->size)
            continue;
        uint32_t peer = tsr_comm_member(comm, r->rank, call->peer);
        uint32_t seq = seen[(size_t)call->comm * c->config.world + peer]++;
        const struct tsr__call *other =
            find_p2p(c->ranks[peer], call->comm, TSR_RECV, tsr_comm_index(comm, r->rank), seq);
        if (other && other->bytes == call->bytes && other->dtype == call->dtype)
            continue;
        snprintf(
            headline, sizeof headline,
            "communicator %s: %s of rank %u sends %llu bytes of %s to rank %u, which %s %llu",
            comm->name, tsr__short(r, call->note, text, sizeof text), r->rank,
            (unsigned long long)call->bytes, tsr_dtype_name((tsr_dtype)call->dtype), peer,
            other ? "takes" : "takes nothing:", other ? (unsigned long long)other->bytes : 0ULL);
        tsr__find_text(c, r->rank, TSR_CHECK_MISMATCH, tsr_hash_u64(call->comm, 99), headline, "");
        break;
    }
    free(seen);
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Is every rank there with a program of its own? Then peers can be matched. */
static bool all_apart(const struct tsr_checker *c)
{
    for (uint32_t i = 0; i < c->config.world; i++)
        if (!c->ranks[i] || c->ranks[i]->rank != i)
            return false;
    return true;
}

static uint64_t order_hash(const struct tsr__check_rank *r, bool *p2p)
{
    uint64_t hash = TSR_HASH_INIT;
    for (size_t i = 0; i < r->n_calls; i++) {
        *p2p |= is_p2p(r->calls[i].kind);
        if (!is_p2p(r->calls[i].kind))
            hash = tsr_hash_u64(hash, r->calls[i].comm);
    }
    return hash;
}

tsr_status tsr__compare_ranks(struct tsr_checker *c)
{
    enum { MOST_PEERS = 256 };
    uint64_t before = c->counts.findings, hash = 0;
    bool p2p = false, differ = false, first = true;
    for (uint32_t i = 0; i < c->config.world; i++) {
        if (!c->ranks[i] || c->ranks[i]->rank != i)
            continue;
        uint64_t h = order_hash(c->ranks[i], &p2p);
        differ |= !first && h != hash;
        hash = h;
        first = false;
    }
    for (uint32_t comm = 0; comm < c->n_comms; comm++)
        compare_comm(c, comm);
    bool apart = all_apart(c) && c->config.world <= MOST_PEERS;
    c->counts.peers_compared = !p2p || apart;
    for (uint32_t i = 0; p2p && apart && i < c->config.world; i++)
        compare_sends(c, c->ranks[i]);
    if (c->counts.findings > before)
        return TSR_OK; /* ranks that make different calls wait for each other, of course */
    /* Ranks that all use their communicators in one order cannot wait in a ring. */
    return differ || (p2p && apart) ? look_for_rings(c, p2p && apart) : TSR_OK;
}

/* ---- the calls of one rank ------------------------------------------------------------------- */

/* Notes every collective, SEND and RECV of a rank for the comparison of ranks
 * (check_ranks.c), and sees that its operands hold what travels. */

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
