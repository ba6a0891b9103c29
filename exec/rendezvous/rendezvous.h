/* rendezvous.h: how the processes of a job find each other without MPI. Every rank gives a few
 * bytes and gets those of all.
 *
 * Two ways. Our own: rank 0 listens, all ranks (rank 0, too) connect to it, prove that they belong
 * to the job (handshake.h), and stay connected: a connection that breaks says that a rank is lost,
 * even if it was killed. Or the launcher's: PMIx, under mpirun and srun; then nobody listens.
 */
#ifndef TSR_EXEC_RENDEZVOUS_H
#define TSR_EXEC_RENDEZVOUS_H

#include "engine/program/base.h"

/* Bytes that a rank may give at once; of a name; of a token. */
enum { TSR_RENDEZVOUS_VALUE = 1024, TSR_RENDEZVOUS_NAME = 63, TSR_RENDEZVOUS_TOKEN = 129 };

struct tsr_rendezvous;
struct tsr_secret; /* exec/rendezvous/handshake.h */

/* Strings are copied. */
struct tsr_rendezvous_config {
    bool pmix;        /* the launcher's way; what follows up to rank is not looked at */
    const char *addr; /* of rank 0: a name, IPv4 or IPv6 */
    const char *bind; /* where rank 0 listens; "": at addr */
    uint16_t port;
    int listen_fd;     /* rank 0: a socket that listens already and is closed here; -1: none */
    const char *token; /* of the job: others are turned away. "": ranks meet at a Unix socket, and
                          must be processes of one user on one host */
    uint32_t rank, size;
    double timeout_s; /* of every call */
};

/* Whether this build can use PMIx. */
bool tsr_rendezvous_has_pmix(void);

/* Returns when all ranks are there. TSR_ECONFIG: the port is in use, the token or the size is not
 * that of rank 0, two processes have one rank, another version, an address that is not this host's.
 * TSR_EPEER: rank 0 cannot be reached, or ranks did not come in time (the text names them).
 * TSR_EUNSUPPORTED: PMIx, in a build without it. TSR_EBACKEND: PMIx fails. */
tsr_status tsr_rendezvous_open(const struct tsr_rendezvous_config *config,
                               struct tsr_rendezvous **out) TSR_MUST_USE;
/* Says goodbye; rank 0 serves the others until they have, too, or a moment longer after a failure.
 * NULL is allowed. */
void tsr_rendezvous_close(struct tsr_rendezvous *r);

/* Every rank gives `bytes` (the same number on all, TSR_RENDEZVOUS_VALUE at most) and gets those of
 * all ranks in their order: size * bytes. Returns when all ranks are in it. A name may be used
 * again. One thread at a time. TSR_EPEER: a rank is lost or gave up, or time is over; TSR_EDEFECT:
 * ranks differ in `bytes`. */
tsr_status tsr_rendezvous_gather(struct tsr_rendezvous *r, const char *name, const void *in,
                                 size_t bytes, void *out) TSR_MUST_USE;
/* Returns when all ranks are in it. */
tsr_status tsr_rendezvous_barrier(struct tsr_rendezvous *r, const char *name) TSR_MUST_USE;

/* Whether the rendezvous stays open between the ranks, so that tell() and watch() can do what they
 * say. PMIx does not: the carriers of the mail must notice by themselves who is lost. */
bool tsr_rendezvous_watches(const struct tsr_rendezvous *r);
/* Tells all ranks, from any thread, that the job is over, and why. */
void tsr_rendezvous_tell(struct tsr_rendezvous *r, tsr_status status, const char *text);
/* Hears, for `seconds`, whether the job is over: then fails with the reason. */
tsr_status tsr_rendezvous_watch(struct tsr_rendezvous *r, double seconds) TSR_MUST_USE;

/* An address of this process, as a number, that the other ranks reach. */
const char *tsr_rendezvous_local_address(const struct tsr_rendezvous *r);
/* What only ranks of this job know; new in each job. */
const struct tsr_secret *tsr_rendezvous_secret(const struct tsr_rendezvous *r);

#endif
