/* nccl_impl.h: the stand-in of NCCL: what its files share. */
#ifndef TSR_STANDIN_NCCL_IMPL_H
#define TSR_STANDIN_NCCL_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/program/base.h"
#include "exec/world/reduce_order.h"
#include "tests/standin/impl.h"
#include "tests/standin/nccl.h"

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

/* Members of a communicator that are threads of one process meet here. */
struct nccl_hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n;
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

struct nccl_roll;
struct nccl_shared;

struct ncclComm {
    struct nccl_roll *roll; /* of its id, and of those that are split off */
    /* One of them once it is ready: all members are there. */
    struct nccl_hub *hub;
    struct nccl_shared *shared; /* nccl_shared.h */
    _Atomic bool ready;
    int rank, n, blocking;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* `turn` */
    _Atomic bool ended;     /* aborted or revoked: its work gives up */
    bool revoked;
    int finalizing; /* polls that still say "in progress"; 0: ncclCommFinalize() has not been called
                     */
    _Atomic int error;  /* asynchronous */
    _Atomic int graphs; /* that hold its work */
    uint64_t next;      /* call that is enqueued */
    uint64_t turn;      /* call that may run: they run in order, whatever their streams */
    uint64_t begun;     /* calls, with those of graphs, whose order is the graph's */
    ncclComm_t kept;    /* memory of communicators stays until the process ends: their work, too */
    ncclComm_t *child;  /* a split is under way: where its communicator goes */
    ncclConfig_t child_config;
    int child_color, child_key;
    bool split_said;
    uint64_t n_splits;
    bool used_op[NCCL_MAX_OPS];
    double factors[NCCL_MAX_OPS];
};

/* All members are there. Orders no stream before the caller. */
bool tsr__nccl_is_ready(ncclComm_t comm);
/* Waits for a change for a few milliseconds at most, under the lock. */
void tsr__nccl_wait(pthread_cond_t *changed, pthread_mutex_t *lock);
size_t tsr__nccl_item(ncclDataType_t type);
/* Members that post these take part in the same call. */
bool tsr__nccl_same(const struct nccl_post *a, const struct nccl_post *b);
struct tsr_reduction tsr__nccl_reduction(const struct nccl_post *post);
/* Work that stream threads run; see nccl_work.c. */
#define NCCL_CAPTURED UINT64_MAX
struct nccl_work {
    ncclComm_t comm;
    uint64_t ticket; /* NCCL_CAPTURED: of a graph */
    uint64_t number; /* of the calls that have begun */
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
    uint64_t ticket;
    size_t n;
    struct nccl_mail_item items[];
};
int tsr__nccl_run_mail(void *mail);

#endif
