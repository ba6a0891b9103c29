/* rendezvous_impl.h: what the two ways to meet have in common. */
#ifndef TSR_EXEC_RENDEZVOUS_IMPL_H
#define TSR_EXEC_RENDEZVOUS_IMPL_H

#include "exec/rendezvous/handshake.h"
#include "exec/rendezvous/rendezvous.h"

struct tsr_rendezvous_ops {
    /* Arguments have been checked. */
    tsr_status (*gather)(struct tsr_rendezvous *r, const char *name, const void *in, size_t bytes,
                         void *out);
    /* NULL: has no connections that stay. */
    void (*tell)(struct tsr_rendezvous *r, tsr_status status, const char *text);
    tsr_status (*watch)(struct tsr_rendezvous *r, double seconds);
    void (*close)(struct tsr_rendezvous *r);
};

enum { TSR_RENDEZVOUS_ADDRESS = 64 };

struct tsr_rendezvous {
    const struct tsr_rendezvous_ops *ops;
    uint32_t rank, size;
    double timeout_s;
    struct tsr_secret secret; /* of this job; before all have met: of its token */
    char local[TSR_RENDEZVOUS_ADDRESS];
};

/* On success the ranks can gather, but have not met yet. */
tsr_status tsr__meet_open(const struct tsr_rendezvous_config *config, struct tsr_rendezvous **out);
tsr_status tsr__pmix_open(const struct tsr_rendezvous_config *config, struct tsr_rendezvous **out);

#endif
