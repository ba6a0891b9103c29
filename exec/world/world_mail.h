/* world_mail.h: collectives of ranks that share no memory, over anything that carries bytes from
 * one rank to another (shared memory, TCP, MPI). The sums are those of a world of threads.
 */
#ifndef TSR_WORLD_MAIL_H
#define TSR_WORLD_MAIL_H

#include "exec/world/mail.h"

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
