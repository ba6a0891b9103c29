/* thread_call.h: one call of a rank in a world of threads: how it meets the calls of the other
 * members, and how it parts from them.
 *
 * Each rank has a post per communicator and sequence number (modulo SLOTS), where it puts up its
 * call: signature, buffers, and a word with the phase it has reached. A call waits for words of the
 * other members and for nothing else. So a collective orders the calls of its members, and two
 * streams of one rank meet only when a post is used again, SLOTS calls of one communicator later: a
 * missing wait between them stays visible to a race detector.
 *
 * A failed call returns while others may look at its buffers. They announce that in `readers` of
 * the post and then look whether the world has failed; the owner lets the world fail and then waits
 * for `readers` to be 0. One of the two sees the other.
 */
#ifndef TSR_EXEC_THREAD_CALL_H
#define TSR_EXEC_THREAD_CALL_H

#include "exec/base/word.h"
#include "exec/world/collective.h"

enum {
    TSR_THREAD_COMMS = 256, /* communicators; one more is the hosts' */
    TSR_THREAD_SLOTS = 64,  /* calls of one communicator that may be on their way */
};

/* What a member has done of call s; its word is 8 s + phase. */
enum tsr_thread_phase {
    TSR_PHASE_ARRIVED = 1,
    TSR_PHASE_SUMMED,   /* its part of an all-reduce is in its output */
    TSR_PHASE_RECORDED, /* of a device: the end of its reading is recorded */
    TSR_PHASE_READ,     /* needs nothing more of the others */
    TSR_PHASE_CLOSED,   /* nobody needs anything of it: the post is free */
};

struct tsr_post {
    struct tsr_word word;
    _Atomic uint32_t readers;
    struct tsr_signature sig;
    const void *send;
    void *recv;
    const struct tsr_message *messages;
    size_t n_messages;
};

/* Shared by the ranks; the last one frees it. */
struct tsr_hub {
    struct tsr_abort abort;
    _Atomic uint32_t n_worlds;
    uint32_t size;
    size_t post_bytes;
    struct tsr_post *posts; /* [size][TSR_THREAD_COMMS + 1][TSR_THREAD_SLOTS] */
};

/* A call in progress. */
struct tsr_visit {
    const struct tsr_world *world;
    struct tsr_hub *hub;
    struct tsr_call call;
    struct tsr_post *own;
    const struct tsr_message *messages; /* of a launch of messages */
    size_t n_messages;
    uint32_t n_entered; /* members [0, n_entered) that take part have arrived and are pinned */
};

/* Pages of posts that are never used cost nothing. NULL: no memory. */
struct tsr_hub *tsr__hub_create(uint32_t size);
void tsr__hub_destroy(struct tsr_hub *hub); /* NULL is fine */
/* TSR_EUNSUPPORTED for all ranks: more communicators than posts. */
tsr_status tsr__hub_check_comm(struct tsr_hub *hub, uint16_t comm_id);
/* Makes the failure known to all ranks, and fails as they do. */
tsr_status tsr__hub_give_up(struct tsr_hub *hub, tsr_status status);

/* Takes the post of the call. v->world, hub, call and messages are set. */
tsr_status tsr__visit_open(struct tsr_visit *v);
/* Puts up the call, as v->own describes it, and waits until all others have put up theirs, and
 * agree. From then on their posts and buffers may be read. */
tsr_status tsr__visit_enter(struct tsr_visit *v);
/* Ends a call that was opened: nobody reads its buffers any more when this returns. */
tsr_status tsr__visit_leave(struct tsr_visit *v, tsr_status status);

void tsr__visit_set(const struct tsr_visit *v, enum tsr_thread_phase phase);
tsr_status tsr__visit_wait(struct tsr_visit *v, uint32_t member, enum tsr_thread_phase phase);
/* All but this one; of a launch of messages, those that it has messages with. */
bool tsr__visit_has(const struct tsr_visit *v, uint32_t member);
struct tsr_post *tsr__visit_post(const struct tsr_visit *v, uint32_t member);

#endif
