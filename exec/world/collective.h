/* collective.h: what all worlds have in common: which calls are allowed, what members must agree
 * on, how failures are worded, and which failure was the first.
 */
#ifndef TSR_EXEC_COLLECTIVE_H
#define TSR_EXEC_COLLECTIVE_H

#include <stdatomic.h>

#include "exec/world/reduce_order.h"
#include "exec/world/world.h"

/* What the members of a call must agree on. Is sent as it is between processes: no padding. */
struct tsr_signature {
    uint8_t kind, dtype, reduce_op, unused; /* SEND: a launch of messages */
    uint32_t comm_size, comm_stride;
    uint32_t unused_too;
    uint64_t bytes;
    double factor;
};

/* One call of one rank. */
struct tsr_call {
    struct tsr_signature sig;
    const struct tsr_comm *comm;
    uint16_t comm_id;
    uint64_t sequence;
    uint32_t rank, me, n; /* rank; its member number, members */
    double deadline;      /* tsr__now() */
};

struct tsr_call tsr__call_of(const struct tsr_world *world, const struct tsr_collective *c);
struct tsr_call tsr__call_of_messages(const struct tsr_world *world, const struct tsr_comm *comm,
                                      uint16_t comm_id, uint64_t sequence);
/* Global rank of a member. */
static inline uint32_t tsr__call_rank(const struct tsr_call *call, uint32_t member)
{
    return tsr_comm_member(call->comm, call->rank, member);
}

/* TSR_EDEFECT: a communicator outside of the world, a dtype that cannot be summed, bytes that do
 * not divide, or buffers that overlap where they may not. */
tsr_status tsr__collective_check(const struct tsr_world *world, const struct tsr_collective *c);
/* TSR_EDEFECT: a peer outside of the communicator. */
tsr_status tsr__messages_check(const struct tsr_world *world, const struct tsr_comm *comm,
                               const struct tsr_message *messages, size_t n);
/* TSR_EDEFECT: the member's signature is another; the text has both. */
tsr_status tsr__signature_check(const struct tsr_call *call, uint32_t member,
                                const struct tsr_signature *theirs);
/* TSR_EPEER: "rank 3 did not arrive at all_gather #12 of 'shard' within 30 s"; `did` is the verb.
 */
tsr_status tsr__call_timeout(const struct tsr_world *world, const struct tsr_call *call,
                             uint32_t member, const char *did);
/* TSR_EDEFECT: two members of a launch of messages want different things. */
tsr_status tsr__messages_mismatch(const struct tsr_call *call, uint32_t from, uint32_t to,
                                  uint64_t n_sends, uint64_t n_receives);
tsr_status tsr__message_size_mismatch(const struct tsr_call *call, uint32_t from, uint32_t to,
                                      uint64_t sent, uint64_t room);

/* How many of `messages` are sends to (or receives from) `peer`. */
uint64_t tsr__messages_count(const struct tsr_message *messages, size_t n, bool is_send,
                             uint32_t peer);
/* The k-th of them; NULL if there are fewer. */
const struct tsr_message *tsr__message_at(const struct tsr_message *messages, size_t n,
                                          bool is_send, uint32_t peer, uint64_t k);
/* Messages of a rank to itself. */
tsr_status tsr__messages_to_self(const struct tsr_call *call, const struct tsr_message *messages,
                                 size_t n);

static inline struct tsr_reduction tsr__reduction_of(const struct tsr_collective *c)
{
    return (struct tsr_reduction){c->dtype, c->reduce_op, c->factor};
}

/* The part of an all-reduce that a member sums: elements [first, first + n). */
struct tsr_collective_part {
    uint64_t first, n;
};
struct tsr_collective_part tsr__all_reduce_part(const struct tsr_collective *c, uint32_t member);

/* The whole collective of a communicator with one member. */
void tsr__collective_alone(const struct tsr_collective *c);
/* memcpy() that may be told to copy nothing, or onto itself. */
void tsr__copy(void *to, const void *from, uint64_t bytes);

/* ---- the first failure ----------------------------------------------------------------------- */

enum { TSR_ABORT_TEXT = 512 };

/* As one process knows it. It is written once; from then on every call ends with its status and its
 * text. */
struct tsr_abort {
    _Atomic int state; /* 0: none; 1: being written; 2: there */
    tsr_status status;
    char text[TSR_ABORT_TEXT];
};

static inline bool tsr__aborted(struct tsr_abort *abort)
{
    return atomic_load_explicit(&abort->state, memory_order_seq_cst) != 0;
}
/* True for the caller whose failure is the first; another's is dropped. */
bool tsr__abort_set(struct tsr_abort *abort, tsr_status status, const char *text);
/* TSR_ENOMEM, with the rank: other ranks say it, too. */
tsr_status tsr__no_memory_on(uint32_t rank);
/* "rank 2 gave up: why"; true if it is the first failure. */
bool tsr__abort_by(struct tsr_abort *abort, uint32_t rank, tsr_status status, const char *why);
/* Fails with the first failure; there must be one. */
tsr_status tsr__abort_status(struct tsr_abort *abort);

#endif
