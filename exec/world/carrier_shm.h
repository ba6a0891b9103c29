/* carrier_shm.h: mail between processes of one host, through rings in shared memory. The memory has
 * no name anywhere: it is gone with the last process, however that ends.
 */
#ifndef TSR_CARRIER_SHM_H
#define TSR_CARRIER_SHM_H

#include "exec/rendezvous/rendezvous.h"
#include "exec/world/world_mail.h"

struct tsr_shm;

struct tsr_shm_config {
    struct tsr_carrier *carrier;       /* borrowed: gets mail and failures */
    struct tsr_rendezvous *rendezvous; /* used during open only */
    uint32_t rank, size;
    const bool *is_peer; /* [size]: those on this host; false for this rank itself */
};

/* What processes must have in common to share memory: host, boot, name space of processes, user. */
uint64_t tsr__shm_host(void);

/* All ranks of the job call it. *out is NULL when a rank of the job could not share its memory:
 * then it is NULL on all of them, and `why` says what went wrong, if it was this one. */
tsr_status tsr__shm_open(const struct tsr_shm_config *config, char *why, size_t why_bytes,
                         struct tsr_shm **out);
/* As tsr_carrier_ops.send. */
bool tsr__shm_send(struct tsr_shm *shm, uint32_t to, const struct tsr_mail_header *header,
                   const void *data, double deadline);
void tsr__shm_close(struct tsr_shm *shm); /* NULL is allowed */

#endif
