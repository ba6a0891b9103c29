/* carriers.h: how mail of processes travels: through rings in shared memory inside a host, over TCP
 * between hosts (world_process.c has both, and chooses for each pair of ranks).
 */
#ifndef TSR_EXEC_CARRIERS_H
#define TSR_EXEC_CARRIERS_H

#include "exec/rendezvous/handshake.h"
#include "exec/rendezvous/rendezvous.h"
#include "exec/world/world_mail.h"

/* ---- shared memory --------------------------------------------------------------------------- */

/* The memory has no name anywhere: it is gone with the last process, however that ends. One process
 * of the host makes it and hands its descriptor to the others over a Unix socket, to processes of
 * the same user only; its size is sealed, and looked at before it is used. */
struct tsr_shm;

struct tsr_shm_config {
    struct tsr_carrier *carrier;       /* borrowed: gets mail and failures */
    struct tsr_rendezvous *rendezvous; /* used during open only */
    uint32_t rank, size;
    const bool *is_peer; /* [size]: those on this host; false for this rank itself */
    double timeout_s;
};

/* What processes must have in common to share memory: host, boot, name spaces of processes and of
 * networks, user. */
uint64_t tsr__shm_host(void);

/* All ranks of the job call it. *out is NULL when a rank of the job could not share its memory:
 * then it is NULL on all of them, and `why` says what went wrong, if it was this one. */
tsr_status tsr__shm_open(const struct tsr_shm_config *config, char *why, size_t why_bytes,
                         struct tsr_shm **out);
/* As tsr_carrier_ops.send. */
bool tsr__shm_send(struct tsr_shm *shm, uint32_t to, const struct tsr_mail_header *header,
                   const void *data, double deadline);
void tsr__shm_close(struct tsr_shm *shm); /* NULL is allowed */

/* ---- TCP ------------------------------------------------------------------------------------- */

/* A connection for each pair of ranks, on which both have proved that they belong to the job, and
 * are the ranks that they say; one thread receives. Nobody listens once all are connected. */
struct tsr_tcp;

struct tsr_tcp_config {
    struct tsr_carrier *carrier;       /* borrowed: gets mail and failures */
    struct tsr_rendezvous *rendezvous; /* used during open only */
    uint32_t rank, size;
    const bool *is_peer; /* [size]: the same on both sides of a pair; false for this rank itself */
    const char *bind;    /* where this rank listens; "": at its address in the rendezvous */
    enum tsr_purpose to; /* TSR_TO_MAIL; TSR_TO_WATCH: only for tsr__tcp_tell() and for losses */
    double timeout_s;
};

/* All ranks of the job call it. */
tsr_status tsr__tcp_open(const struct tsr_tcp_config *config, struct tsr_tcp **out);
/* As tsr_carrier_ops.send. */
bool tsr__tcp_send(struct tsr_tcp *tcp, uint32_t to, const struct tsr_mail_header *header,
                   const void *data, double deadline);
/* Tells the peers that the job is over; between them are only connections to watch. */
void tsr__tcp_tell(struct tsr_tcp *tcp, tsr_status status, const char *text);
/* From now on a connection that ends is no failure. */
void tsr__tcp_finish(struct tsr_tcp *tcp);
void tsr__tcp_close(struct tsr_tcp *tcp); /* NULL is allowed */

#endif
