/* tape.h: the programs of one rank class, compiled for the replay. Private to sim/.
 *
 * Everything that follows from issue order alone is resolved here once per class: the next task of
 * a stream, the RECORD that a wait means, the position in a communicator's wire queue, the sequence
 * number of a collective. The replay keeps only what time decides.
 */
#ifndef TSR_SIM_TAPE_H
#define TSR_SIM_TAPE_H

#include "sim/cluster/cluster.h"
#include "sim/input/job.h"

enum tsr__task_kind {
    TSR__HOST_ONLY, /* MARK, ALLOC, ...: no device work */
    TSR__HOST_SYNC, /* the host waits for task `dep` (HOST_WAIT, HOST_READ) */
    TSR__INSTANT,   /* a stream item without duration: RECORD, GROUP_*, COMM_CREATE */
    TSR__STREAM_WAIT,
    TSR__KERNEL,
    TSR__HOST_COPY, /* between host and device: a flow */
    TSR__WIRE,      /* a collective, SEND or RECV */
};

/* The arguments in `record` are what the replay works with: a collective moves record.bytes, the
 * executed hash is made of record when the task is done. */
struct tsr__task {
    struct tsr_exec_record record;
    double host_s;          /* host clock, unscaled */
    double body_s, start_s; /* KERNEL, HOST_COPY: see cost.h */
    uint64_t tuned_bytes;   /* WIRE: of all calls like it in its launch; NCCL chooses by them */
    uint32_t next;          /* in the stream; TSR_NO_ID: last */
    uint32_t dep;           /* task waited for, TSR_NO_ID: none */
    uint32_t device_index;  /* position among the class's stream items */
    uint32_t need;          /* WIRE: tasks of the wire queue that must be done */
    uint32_t number;        /* WIRE: among those of the class, in issue order */
    uint32_t sequence;      /* WIRE: number on the communicator (and pair) */
    uint32_t launch_after;  /* what must have started before, in its hardware queue; TSR_NO_ID */
    uint32_t group_end;     /* the GROUP_END of its launch, or TSR_NO_ID */
    uint16_t stream;        /* dense */
    uint16_t queue, comm;   /* WIRE: job-wide ids, see tsr__comms */
    uint16_t peer;
    uint8_t kind; /* enum tsr__task_kind */
    bool to_device, is_work, in_group;
    bool awaited;       /* others, or the host, go on at its end */
    uint16_t iteration; /* index into the job's iterations */
};

/* Communicators of all classes: those of equal name, size and stride are the same one. */
struct tsr__tape_comm {
    const char *name;
    uint32_t size, stride, nth; /* nth: of several equal ones in one table */
    uint32_t geometry;          /* index into geometries; TSR_NO_ID when size is 1 */
};
/* Comms of equal size and stride have the same groups and the same ways through the fabric. */
struct tsr__geometry {
    uint32_t size, stride;
    bool used[3]; /* by enum tsr__pattern */
};
struct tsr__comms {
    struct tsr__tape_comm *items;
    struct tsr__geometry *geometries;
    size_t n, cap, n_geometries, geometry_cap;
};

/* Job-wide id of communicator `index` of a class's tables (comms.c). Errors: TSR_EVALUE for a size
 * and stride that do not divide the world, TSR_ENOMEM. */
tsr_status tsr__comms_intern(struct tsr__comms *comms, const struct tsr_tables *tables,
                             uint32_t world, uint16_t index, uint16_t *id) TSR_MUST_USE;

struct tsr__send { /* SEND to member `peer` of a geometry's group */
    uint32_t geometry;
    uint16_t peer;
};

/* A full queue of the device gives places back in batches: the host goes on when the last item of a
 * batch is over. */
enum { TSR__CREDITS = 16 };

/* Most hardware queues that CUDA makes. */
enum { TSR__MAX_CONNECTIONS = 32 };

/* One rank class. Invariants: task i is the i-th instruction of all iterations in issue order, so
 * first[] cuts the tasks into iterations, and a rank's spans are indexed like them. `dep` and
 * `launch_after` name tasks before a task, `next` and `group_end` tasks behind it: a replay in
 * issue order never waits for itself. device[] and the `next` of a stream ascend. Constant after
 * compilation; classes share nothing but the communicators. */
struct tsr__tape {
    struct tsr__task *tasks;
    uint32_t n_tasks, n_device;
    uint32_t *device;    /* [n_device]: task of the k-th stream item in issue order */
    uint32_t *first;     /* [n_iterations + 1]: first task of each iteration */
    uint32_t *head;      /* [n_streams]: first task of each stream */
    uint16_t *stream_id; /* [n_streams]: index into the class's tables */
    uint32_t n_streams, n_queues, n_wires;
    bool host_copies;
    struct tsr__send *sends;
    size_t n_sends;
};

struct tsr__tapes {
    struct tsr__comms comms;
    struct tsr__tape *items; /* [n] one per class */
    uint32_t n;
};

/* Compiles all classes of the job. On failure nothing is left to free. */
tsr_status tsr__tapes_build(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                            const struct tsr_sim_options *options,
                            struct tsr__tapes *tapes) TSR_MUST_USE;
void tsr__tapes_fini(struct tsr__tapes *tapes);

#endif
