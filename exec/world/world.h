/* world.h: the ranks of a job and how they talk: collectives for the streams of a device, a small
 * host-side exchange, and the end of it all when one of them is lost.
 *
 * A world is made by threads of one process (world_threads.c), by processes that met through the
 * rendezvous (world_process.c: shared memory or TCP), or by MPI (a build option). All sum in rank
 * order, in f32 (f64 for f64), and round once: results are the same bits whichever it is.
 *
 * Calls of one rank may come from several threads (one per stream). A call is matched with the
 * calls of the other members by communicator and sequence number, which the submitting host counts
 * up per communicator; so two streams may be inside collectives of one communicator at once.
 */
#ifndef TSR_EXEC_WORLD_H
#define TSR_EXEC_WORLD_H

#include "engine/program/program.h"

struct tsr_world;
struct tsr_launch; /* exec/launch/launch.h */

/* One collective as one rank sees it. Buffers stay the caller's and may be used again on return. */
struct tsr_collective {
    uint8_t kind; /* TSR_ALL_GATHER, TSR_REDUCE_SCATTER, TSR_ALL_REDUCE, TSR_BROADCAST,
                     TSR_ALL_TO_ALL */
    uint8_t dtype, reduce_op;
    double factor;               /* PREMUL_SUM */
    const struct tsr_comm *comm; /* the group that contains this rank */
    uint16_t comm_id;            /* index in the tables: the same on all members */
    uint64_t sequence;           /* of this communicator on this rank: 0, 1, ... without gaps */
    const void *send;
    void *recv; /* may be `send` (all-reduce, broadcast), or hold it at its place (all-gather) */
    uint64_t bytes; /* of the big side: all-gather output, reduce-scatter input, buffer */
};

/* A message between two members; those of one launch go together. Matched per pair of ranks,
 * communicator and launch sequence, in order. */
struct tsr_message {
    bool is_send;
    uint32_t peer; /* member of the communicator */
    void *data;
    uint64_t bytes;
};

struct tsr_world_ops {
    const char *name; /* "threads", "processes", "mpi" */
    /* Blocks until this rank's part is done. TSR_EPEER: a member is lost, or the deadline passed;
     * the world is aborted then. TSR_EDEFECT: members disagree about kind, bytes, dtype or
     * reduction (the text says who and what). */
    tsr_status (*collective)(struct tsr_world *world, const struct tsr_collective *call);
    tsr_status (*messages)(struct tsr_world *world, const struct tsr_comm *comm, uint16_t comm_id,
                           uint64_t sequence, const struct tsr_message *messages, size_t n);
    /* Host side: `bytes` of every rank of the world, in rank order; called by one thread of a rank,
     * in the same order on all. `in` and `out` are never NULL. */
    tsr_status (*exchange)(struct tsr_world *world, const void *in, void *out, size_t bytes);
    /* Says to all ranks that this one gives up, and why: calls in progress and later ones return
     * `status` on all of them, so that they end alike. May be called from any thread, more than
     * once: the first counts. */
    void (*abort)(struct tsr_world *world, tsr_status status, const char *why);
    /* Never waits. TSR_OK: all ranks are there, as far as this one knows; else what calls fail
     * with. May be called from any thread. */
    tsr_status (*check)(struct tsr_world *world);
    void (*destroy)(struct tsr_world *world);
};

/* Implementations embed this as their first member.
 *
 * A world fails once, with the first failure of any rank: from then on every call of every rank
 * ends with it, within timeout_s even if a rank has gone without a word. It never recovers; what it
 * carried half is nobody's. */
struct tsr_world {
    const struct tsr_world_ops *ops;
    uint32_t rank, size;
    double timeout_s; /* of every blocking call */
};

static inline tsr_status tsr_world_barrier(struct tsr_world *world)
{
    char nothing = 0; /* an address: implementations count from it */
    return world->ops->exchange(world, &nothing, &nothing, 0);
}

/* Every rank says how it fared (`status`, with the error text of this thread); all return what the
 * first rank that failed says. Names that rank unless the fault is the user's, which has none. Like
 * exchange(): one thread of each rank, in the same order on all. NULL: a world of one. */
tsr_status tsr_world_agree(struct tsr_world *world, tsr_status status) TSR_MUST_USE;

/* Compares `hash` of every rank (of the job's configuration, of a program). TSR_ECONFIG on all
 * ranks alike: the first rank that differs from rank 0, and `what`. Like exchange(): one thread of
 * each rank, in the same order on all. */
tsr_status tsr_world_same(struct tsr_world *world, const char *what, uint64_t hash) TSR_MUST_USE;

/* Threads of one process: `worlds` gets one end per rank; each is destroyed by its rank. */
tsr_status tsr_world_threads(uint32_t size, double timeout_s,
                             struct tsr_world **worlds) TSR_MUST_USE;

/* One process of a job that tsr_launch_read() found. transport: "shm" (all processes are on one
 * host), "tcp", or "auto": shared memory between processes of one host, TCP between hosts. Returns
 * when all processes are connected; a job of one opens no port. A process that is lost ends the
 * calls of all others with TSR_EPEER. Destroying a world that has not failed waits for the other
 * processes to do it, too. Errors: those of tsr_rendezvous_open(); TSR_ECONFIG for a transport that
 * cannot be. */
tsr_status tsr_world_processes(const struct tsr_launch *launch, double timeout_s,
                               const char *transport, struct tsr_world **out) TSR_MUST_USE;
/* The same where processes with one `host` share memory, whatever host that is (tests stand for
 * several hosts). */
tsr_status tsr__world_processes(const struct tsr_launch *launch, double timeout_s,
                                const char *transport, uint64_t host, struct tsr_world **out);

/* One process of an MPI job, which carries bytes only: the sums stay ours. Rank and size are those
 * of MPI_COMM_WORLD; with a `launch` (NULL: none) they must be its, too. Initialises MPI if nobody
 * has, and ends it when the world is destroyed without a failure. When a process is lost, mpirun
 * ends the others. TSR_EUNSUPPORTED: a build without MPI, or an MPI that threads cannot share. */
tsr_status tsr_world_mpi(const struct tsr_launch *launch, double timeout_s,
                         struct tsr_world **out) TSR_MUST_USE;

#endif
