/* rendezvous.h: how the processes of a job find each other without MPI. Rank 0 listens, all ranks
 * (rank 0, too) connect to it and share a small key-value store. The connections stay open: one
 * that breaks says that a rank is lost, even if it was killed.
 */
#ifndef TSR_EXEC_RENDEZVOUS_H
#define TSR_EXEC_RENDEZVOUS_H

#include "engine/program/base.h"

enum { TSR_RENDEZVOUS_VALUE = 1 << 20, TSR_RENDEZVOUS_TOKEN = 64 };

struct tsr_rendezvous;

/* Strings are copied. */
struct tsr_rendezvous_config {
    const char *addr; /* of rank 0: a name, IPv4 or IPv6 */
    uint16_t port;
    int listen_fd;     /* rank 0: a socket that listens already and is closed here; -1: none */
    const char *token; /* of the job: others are turned away. At most 63 bytes */
    uint32_t rank, size;
    double timeout_s; /* of every call */
};

/* Returns when all ranks are there. TSR_ECONFIG: the port is in use, the token or the size is not
 * that of rank 0, two processes have one rank, another version. TSR_EPEER: rank 0 cannot be
 * reached, or ranks did not come in time (the text names them). */
tsr_status tsr_rendezvous_open(const struct tsr_rendezvous_config *config,
                               struct tsr_rendezvous **out) TSR_MUST_USE;
/* Says goodbye; rank 0 serves the others until they have, too, or a moment longer after a failure.
 * NULL is allowed. */
void tsr_rendezvous_close(struct tsr_rendezvous *r);

/* The store. One thread at a time. TSR_EPEER: a rank is lost or gave up, or time is over. */
tsr_status tsr_rendezvous_set(struct tsr_rendezvous *r, const char *key, const void *value,
                              size_t bytes) TSR_MUST_USE;
/* Waits until the key is set. TSR_EIO: it has not `bytes` bytes. */
tsr_status tsr_rendezvous_get(struct tsr_rendezvous *r, const char *key, void *value,
                              size_t bytes) TSR_MUST_USE;
/* *value: after the addition; a key starts at 0. Has nothing to do with set and get. */
tsr_status tsr_rendezvous_add(struct tsr_rendezvous *r, const char *key, int64_t delta,
                              int64_t *value) TSR_MUST_USE;
/* Returns when all ranks are in it. A name may be used again. */
tsr_status tsr_rendezvous_barrier(struct tsr_rendezvous *r, const char *name) TSR_MUST_USE;

/* Tells all ranks, from any thread, that the job is over, and why. */
void tsr_rendezvous_tell(struct tsr_rendezvous *r, tsr_status status, const char *text);
/* Waits at most `seconds` for bad news: that a rank is lost or gave up. TSR_OK: none came. */
tsr_status tsr_rendezvous_watch(struct tsr_rendezvous *r, double seconds) TSR_MUST_USE;

/* The address of this end of the connection to rank 0, as a number: others can reach it there. */
const char *tsr_rendezvous_local_address(const struct tsr_rendezvous *r);

#endif
