/* nccl_impl.h: one rank's end of NCCL: its communicators and what is registered with them. Private
 * to comms_nccl.c and nccl_comm.c.
 *
 * Threads. The rank's host thread makes, uses and frees communicators. Other threads may poll and
 * abort: for these `life` keeps the list of communicators still, and `calls` is held by the host
 * thread while it is inside NCCL.
 *
 * Abort. A communicator is revoked first, which ends its kernels and calls and frees nothing, so it
 * does no harm if the host thread is inside a call; ncclCommAbort() follows in destroy(), by the
 * host thread itself. (ncclCommAbort() alone frees what a call in progress uses, and waits for
 * graphs that were captured with the communicator.)
 */
#ifndef TSR_EXEC_NCCL_IMPL_H
#define TSR_EXEC_NCCL_IMPL_H

#include <nccl.h>
#include <pthread.h>

#include "exec/cuda/comms/comms.h"
#include "exec/world/collective.h"

/* PREMUL_SUM of one dtype and factor. */
struct tsr_nccl_op {
    ncclRedOp_t op;
    ncclDataType_t type;
    double factor;
};

struct tsr_nccl_window {
    const void *memory;  /* the segment's */
    ncclWindow_t window; /* NULL: NCCL refused it */
};

/* A communicator of the program. Owns `comm`, the operators that were made for it and the windows
 * that were registered with it. */
struct tsr_nccl_comm {
    uint16_t id; /* of the tables */
    char name[48];
    uint32_t size;
    bool gathers; /* its first call was an all-gather */
    ncclComm_t comm;
    size_t n_ops, cap_ops;
    struct tsr_nccl_op *ops;
    size_t n_windows, cap_windows;
    struct tsr_nccl_window *windows;
};

struct tsr_nccl_segment {
    void *memory;
    uint64_t bytes;
};

/* Owns the communicators, each by itself, so that pointers to them stay; the world is borrowed.
 * `revoked` is set once and stays: from then on every call fails with what `abort` holds. */
struct tsr_nccl {
    struct tsr_comms base;
    struct tsr_comms_config config;
    struct tsr_world *world;
    pthread_mutex_t life, calls;
    ncclComm_t root; /* of the world; never blocks; only split. NULL: not yet */
    size_t n_comms, cap_comms;
    struct tsr_nccl_comm **comms;
    size_t n_segments, cap_segments;
    struct tsr_nccl_segment *segments; /* as they were mapped */
    bool in_group;
    bool segments_differ; /* ranks have other memory: no windows */
    bool windows_refused; /* by NCCL */
    bool revoked;         /* under `life` */
    struct tsr_abort abort;
};

/* Fails with `tried` (a call of `name`), what NCCL says, and the rank; or with what ended the
 * communicators before. ncclSuccess and ncclInProgress: TSR_OK. */
tsr_status tsr__nccl_check(struct tsr_nccl *n, ncclResult_t result, const char *name,
                           const char *tried) TSR_MUST_USE;

/* The communicator of a call; makes it if `kind` is its first. All ranks of the world come here in
 * the same order. */
tsr_status tsr__nccl_comm_of(struct tsr_nccl *n, const struct tsr_comm *comm, uint16_t comm_id,
                             uint8_t kind, struct tsr_nccl_comm **out) TSR_MUST_USE;
void tsr__nccl_comms_free(struct tsr_nccl *n);

/* Registers segments that are new with `c`, if all ranks have the same ones. All ranks come here
 * at the same calls. */
tsr_status tsr__nccl_register(struct tsr_nccl *n, struct tsr_nccl_comm *c) TSR_MUST_USE;
tsr_status tsr__nccl_map(struct tsr_comms *comms, void *memory, uint64_t bytes);
tsr_status tsr__nccl_unmap(struct tsr_comms *comms, void *memory, uint64_t bytes);

#endif
