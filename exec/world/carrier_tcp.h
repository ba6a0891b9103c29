/* carrier_tcp.h: mail over one TCP connection for each pair of ranks. One thread receives. */
#ifndef TSR_CARRIER_TCP_H
#define TSR_CARRIER_TCP_H

#include "exec/rendezvous/rendezvous.h"
#include "exec/world/world_mail.h"

struct tsr_tcp;

struct tsr_tcp_config {
    struct tsr_carrier *carrier;       /* borrowed: gets mail and failures */
    struct tsr_rendezvous *rendezvous; /* used during open only */
    uint32_t rank, size;
    const bool *is_peer; /* [size]: the same on both sides of a pair; false for this rank itself */
    const char *token;
    double timeout_s;
};

/* All ranks of the job call it. */
tsr_status tsr__tcp_open(const struct tsr_tcp_config *config, struct tsr_tcp **out);
/* As tsr_carrier_ops.send. */
bool tsr__tcp_send(struct tsr_tcp *tcp, uint32_t to, const struct tsr_mail_header *header,
                   const void *data, double deadline);
/* From now on a connection that ends is no failure. */
void tsr__tcp_finish(struct tsr_tcp *tcp);
void tsr__tcp_close(struct tsr_tcp *tcp); /* NULL is allowed */

#endif
