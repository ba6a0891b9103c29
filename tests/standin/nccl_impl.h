/* nccl_impl.h: the stand-in of NCCL: what its files share. */
#ifndef TSR_STANDIN_NCCL_IMPL_H
#define TSR_STANDIN_NCCL_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/base.h"
#include "impl.h"
#include "nccl.h"

/* nccl.h says them without their parameters. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

enum { NCCL_RANKS = 64, NCCL_SLOTS = 64, NCCL_MAX_OPS = 32, NCCL_MESSAGES = 4096 };

enum nccl_kind { NCCL_GATHER, NCCL_SCATTER, NCCL_REDUCE, NCCL_BROADCAST, NCCL_ALL_TO_ALL };

/* What a member has put up for a call. */
struct nccl_post {
    enum nccl_kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op; /* built-in; PREMUL_SUM is ncclNumOps */
    double factor;
    int root;
};

/* The calls with one number, of all members. */
struct nccl_slot {
    uint64_t number;
    int posted, read, left;
    bool has[NCCL_RANKS];
    struct nccl_post posts[NCCL_RANKS];
};

/* A message that is there to be taken. */
struct nccl_letter {
    int from, to;
    const void *data;
    size_t bytes;
    bool taken;
    uint64_t number; /* in the order in which they were sent */
};

/* Members of a communicator meet here. */
struct nccl_hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n, joined, refs;
    uint64_t key; /* of the id */
    struct nccl_slot slots[NCCL_SLOTS];
    int n_letters;
    struct nccl_letter letters[NCCL_MESSAGES];
    uint64_t n_sent;
    /* ncclCommSplit() number `split_number`: what members want; by rank */
    int n_split, n_split_done;
    bool wants[NCCL_RANKS];
    int color[NCCL_RANKS], key_of[NCCL_RANKS];
    struct nccl_hub *child[NCCL_RANKS]; /* by rank, once all have said what they want */
    int child_rank[NCCL_RANKS];
    /* windows: a barrier */
    int n_windows, window_round;
    size_t window_bytes;
    bool window_differs;
    struct nccl_hub *next; /* of those that wait for members */
};

struct ncclComm {
    struct nccl_hub *hub;
    int rank, n, blocking;
    _Atomic bool ended; /* aborted or revoked: its work gives up */
    bool revoked;
    _Atomic int error; /* asynchronous */
    uint64_t next;     /* call that is enqueued */
    uint64_t turn;     /* call that may run: they run in order, whatever their streams */
    ncclComm_t kept;   /* memory of communicators stays until the process ends: their work, too */
    ncclComm_t *child; /* a split is under way: where its communicator goes */
    ncclConfig_t child_config;
    bool split_said;
    bool used_op[NCCL_MAX_OPS];
    double factors[NCCL_MAX_OPS];
};

/* The turn of call `number` comes; false: the communicator has ended. Under the lock. */
bool tsr__nccl_begin(ncclComm_t comm, uint64_t number);
void tsr__nccl_done(ncclComm_t comm);
/* Sleeps for a few milliseconds at most, under the lock. */
void tsr__nccl_wait(struct nccl_hub *hub);
size_t tsr__nccl_item(ncclDataType_t type);
/* Work that stream threads run; see nccl_work.c. */
struct nccl_work {
    ncclComm_t comm;
    uint64_t number;
    struct nccl_post post;
};
int tsr__nccl_run(void *work);
struct nccl_mail_item {
    bool is_send;
    int peer;
    void *data;
    size_t bytes;
};
struct nccl_mail {
    ncclComm_t comm;
    uint64_t number;
    size_t n;
    struct nccl_mail_item items[];
};
int tsr__nccl_run_mail(void *mail);

#endif
