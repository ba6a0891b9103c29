/* world_mail.h: collectives of ranks that share no memory, over anything that carries bytes from
 * one rank to another (shared memory, TCP, MPI), and the boxes that sort what arrives. The sums
 * are those of a world of threads.
 */
#ifndef TSR_EXEC_WORLD_MAIL_H
#define TSR_EXEC_WORLD_MAIL_H

#include <pthread.h>
#include <stdatomic.h>

#include "exec/world/collective.h"

/* ---- mail ------------------------------------------------------------------------------------ */

/* Messages between processes, sorted into boxes by sender, communicator and sequence number
 * until the call that wants them takes them.
 *
 * The boxes have locks that the streams of a rank share; races between streams are looked for in a
 * world of threads, which has none. */

/* Goes ahead of the bytes on every wire, in the byte order of the machine. */
struct tsr_mail_header {
    uint32_t magic, from; /* from: global rank */
    uint32_t index;       /* of the messages of one launch to one peer: 1, 2, ...; else 0 */
    uint16_t comm_id, phase;
    uint64_t sequence, bytes;
    struct tsr_signature sig;
};
#define TSR_MAIL_MAGIC UINT32_C(0x4c4d5354) /* "TSML" */
/* Not mail, but the end of the job: `index` is the status, and a text follows. */
#define TSR_NEWS_MAGIC UINT32_C(0x574e5354) /* "TSNW" */

struct tsr_mail {
    _Alignas(16) struct tsr_mail *next;
    struct tsr_mail_header header;
    /* header.bytes follow, aligned for every dtype */
};
static inline void *tsr__mail_data(struct tsr_mail *mail)
{
    return mail + 1;
}

enum { TSR_MAIL_BOXES = 64 };

struct tsr_mail_box {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct tsr_mail *first, **last;
};
/* Mail that nobody has taken yet is bounded: by the memory of the host, and in number. A rank in
 * order is never far ahead of the others; one that floods is named. */
struct tsr_mail_boxes {
    struct tsr_mail_box box[TSR_MAIL_BOXES];
    uint64_t most_bytes, most; /* of all mail that waits */
    _Atomic uint64_t bytes, n;
};

/* TSR_ENOMEM when the system has no locks left; nothing to undo then. */
tsr_status tsr__mail_boxes_init(struct tsr_mail_boxes *boxes);
void tsr__mail_boxes_fini(struct tsr_mail_boxes *boxes); /* frees what nobody took */
/* The oldest mail that agrees with `want` in from, comm_id, sequence, phase and index; the caller
 * frees it. NULL: the deadline passed, or the world has failed. */
struct tsr_mail *tsr__mail_take(struct tsr_mail_boxes *boxes, const struct tsr_mail_header *want,
                                double deadline, struct tsr_abort *abort);
/* Wakes all who wait, so that they see the failure. */
void tsr__mail_wake(struct tsr_mail_boxes *boxes);

/* Mail that arrives in pieces from one sender: the next bytes belong at `target`. */
struct tsr_mail_stream {
    struct tsr_mail_header header;
    size_t n; /* bytes of the header, then of the data, that are there */
    struct tsr_mail *mail;
};
/* Where to put the next bytes, and how many at most (> 0). */
void *tsr__mail_stream_target(struct tsr_mail_stream *stream, size_t *room);
/* `n` of them are there: complete mail is put into its box. TSR_EPEER: no mail of rank
 * `from`, or more of it than may wait; TSR_ENOMEM; what the rank says, if it is news. */
tsr_status tsr__mail_stream_advance(struct tsr_mail_stream *stream, uint32_t from, size_t n,
                                    struct tsr_mail_boxes *boxes);
void tsr__mail_stream_fini(struct tsr_mail_stream *stream);

/* ---- carriers -------------------------------------------------------------------------------- */

struct tsr_carrier;

struct tsr_carrier_ops {
    const char *name;
    /* Hands over header and data (header->bytes); both are free again on return. From any thread.
     * False: not before the deadline, or the world has failed. */
    bool (*send)(struct tsr_carrier *carrier, uint32_t to, const struct tsr_mail_header *header,
                 const void *data, double deadline);
    /* Tells the other ranks of the first failure. From any thread. */
    void (*tell)(struct tsr_carrier *carrier, tsr_status status, const char *text);
    /* in_order: waits until the other ranks have come here, too, so that all mail has arrived.
     * Frees the carrier. */
    void (*destroy)(struct tsr_carrier *carrier, bool in_order);
};

/* Puts what arrives into the boxes, and its own failures into abort: both are all that threads of
 * the carrier and streams of the rank share. Made before the world, which owns it then. */
struct tsr_carrier {
    const struct tsr_carrier_ops *ops;
    struct tsr_mail_boxes boxes;
    struct tsr_abort abort;
};

/* The end of the world as a carrier saw it. tell: the other ranks do not know yet. */
void tsr__carrier_fail(struct tsr_carrier *carrier, tsr_status status, const char *text, bool tell);

/* Takes the carrier on success; it stays the caller's on failure. */
tsr_status tsr__world_mail(struct tsr_carrier *carrier, uint32_t rank, uint32_t size,
                           double timeout_s, struct tsr_world **out);

#endif
