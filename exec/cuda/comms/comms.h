/* comms.h: collectives between GPUs, on streams. Two kinds: NCCL (comms_nccl.c), and loopback
 * (comms_loopback.c): the ranks are threads of one process on one GPU, collectives are
 * event-ordered copies and sums in rank order.
 *
 * All calls come from the rank's host thread, in the order of the program, and only enqueue work.
 */
#ifndef TSR_EXEC_COMMS_H
#define TSR_EXEC_COMMS_H

#include "exec/cuda/gpu/gpu.h"
#include "exec/cuda/kernels/grid/loopback.h"
#include "exec/world/collective.h"
#include "exec/world/world.h"

struct tsr_comms;

/* What a library of collectives does for one rank. poll() and abort() may come from any thread,
 * all else from the rank's host thread. What is enqueued on a stream fails later: poll() tells. */
struct tsr_comms_ops {
    const char *name; /* "nccl", "loopback" */
    /* Work on streams can be captured in a graph. Loopback's cannot: its streams wait for events of
     * other ranks, which a graph of one rank does not have. */
    bool captures;
    /* The calls between `begin`, which is told of them, and `end` are one launch; see
     * tsr_comms_run(). NULL: nothing to do. */
    tsr_status (*begin)(struct tsr_comms *comms, const struct tsr_collective *calls, size_t n);
    tsr_status (*end)(struct tsr_comms *comms);
    /* call->sequence counts per communicator. Buffers are device memory that the stream owns. */
    tsr_status (*collective)(struct tsr_comms *comms, const struct tsr_cuda_context *context,
                             const struct tsr_collective *call);
    tsr_status (*messages)(struct tsr_comms *comms, const struct tsr_cuda_context *context,
                           const struct tsr_comm *comm, uint16_t comm_id, uint64_t sequence,
                           const struct tsr_message *messages, size_t n);
    /* Memory that collectives will use is there (a segment), and goes. NULL: nothing to do. */
    tsr_status (*map)(struct tsr_comms *comms, void *memory, uint64_t bytes);
    tsr_status (*unmap)(struct tsr_comms *comms, void *memory, uint64_t bytes);
    /* What has gone wrong since, without waiting; TSR_OK: nothing. Any thread. */
    tsr_status (*poll)(struct tsr_comms *comms);
    /* Ends what is enqueued and what waits; from then on every call fails with `status` and `why`
     * (or with what came first). Any thread, more than once. */
    void (*abort)(struct tsr_comms *comms, tsr_status status, const char *why);
    /* What is in use, in a line: for notes. NULL: nothing to say. */
    void (*describe)(const struct tsr_comms *comms, char *text, size_t bytes);
    /* By the rank's host thread, when its streams are drained (or aborted) and the graphs that were
     * captured with collectives are gone. */
    void (*destroy)(struct tsr_comms *comms);
};

/* Implementations embed this as their first member. */
struct tsr_comms {
    const struct tsr_comms_ops *ops;
    struct tsr_world *world;
    double timeout_s; /* of a collective, once those before it are done */
};

/* The collectives of one instruction, in order: in one launch where there are several and the kind
 * of communicator can. */
tsr_status tsr_comms_run(struct tsr_comms *comms, const struct tsr_cuda_context *context,
                         const struct tsr_collective *calls, size_t n) TSR_MUST_USE;

struct tsr_comms_config {
    struct tsr_world *world; /* borrowed: how the hosts of the ranks talk */
    double timeout_s;        /* of everything that waits for a peer */
    bool force;              /* one-rank communicators are NCCL's too (--force-nccl) */
    bool deterministic;
    /* NCCL only. Communicators whose first call is an all-gather may copy by the GPU's copy
     * engines, without multiprocessors; their buffers are registered as symmetric windows. */
    bool zero_cta, windows;
    int reduce_ctas; /* most multiprocessors of communicators whose first call is another; 0: any */
};

/* One end per rank; TSR_EBACKEND: the NCCL that is loaded is older than the one of the build. NCCL
 * makes a communicator when it is first used: of the world by the id that
 * rank 0 tells the others, of meshes by splitting it, in the same order on all ranks. */
tsr_status tsr_comms_nccl(const struct tsr_comms_config *config,
                          struct tsr_comms **out) TSR_MUST_USE;

/* What the threads of a loopback world share; made before them, destroyed after them and their
 * devices. TSR_EVALUE: more than TSR_LOOPBACK_RANKS. */
enum { TSR_LOOPBACK_RANKS = 256 };
struct tsr_loopback;
tsr_status tsr_loopback_create(uint32_t size, struct tsr_loopback **out) TSR_MUST_USE;
void tsr_loopback_destroy(struct tsr_loopback *loopback);
/* The end of the rank config->world->rank. All sums are the host's, bit for bit. */
tsr_status tsr_comms_loopback(struct tsr_loopback *loopback, const struct tsr_comms_config *config,
                              struct tsr_comms **out) TSR_MUST_USE;

/* ---- what the kinds share: copies and sums on a stream --------------------------------------- */

/* Segments of one launch are copied beside each other: none is read where another is written.
 * `kind`: enum tsr_instr_kind, for words. Those without bytes, and onto themselves, are left out.
 */
tsr_status tsr__device_copy(const struct tsr_cuda_context *context, uint8_t kind,
                            const struct tsr_segment *segments, size_t n) TSR_MUST_USE;
/* tsr__reduce() on the stream. n_parts <= TSR_LOOPBACK_PARTS. */
tsr_status tsr__device_reduce(const struct tsr_cuda_context *context, uint8_t kind,
                              const struct tsr_reduction *how, const void *const *parts,
                              uint32_t n_parts, void *out, uint64_t n) TSR_MUST_USE;

/* The whole call of a communicator with one member. */
tsr_status tsr__device_alone(const struct tsr_cuda_context *context,
                             const struct tsr_collective *c) TSR_MUST_USE;

/* What the receives of `to` from member `from_member` take out of the messages of that member:
 * appends to segments[*n], which have room for n_to more. TSR_EDEFECT: they do not fit each other.
 */
tsr_status tsr__match_messages(const struct tsr_call *call, uint32_t from_member,
                               const struct tsr_message *from, size_t n_from, uint32_t to_member,
                               const struct tsr_message *to, size_t n_to,
                               struct tsr_segment *segments, size_t *n) TSR_MUST_USE;

#endif
