/* nccl.c: the stand-in of NCCL: communicators: how they begin, split and end; see nccl.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/standin/nccl_shared.h"

enum { MAX_SEEN = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nccl_hub *hubs; /* of all ids; kept until the process ends, as communicators are */
static ncclComm_t kept;
static _Atomic int live;
static _Atomic int next_error;
static int n_seen;
static struct tsr_standin_nccl_seen seen[MAX_SEEN];
static _Thread_local int fake_version;
static _Thread_local char last_error[128];

static ncclResult_t fail(ncclResult_t result, const char *why)
{
    snprintf(last_error, sizeof last_error, "%s", why);
    return result;
}

void tsr__nccl_wait(pthread_cond_t *changed, pthread_mutex_t *mutex)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 3000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(changed, mutex, &until);
}

static struct nccl_hub *new_hub(int n, uint64_t key)
{
    struct nccl_hub *hub = calloc(1, sizeof *hub);
    if (!hub)
        abort();
    pthread_mutex_init(&hub->lock, NULL);
    pthread_cond_init(&hub->changed, NULL);
    hub->n = n;
    hub->key = key;
    pthread_mutex_lock(&lock);
    hub->next = hubs;
    hubs = hub;
    pthread_mutex_unlock(&lock);
    return hub;
}

static ncclComm_t new_comm(struct nccl_roll *roll, int n, int rank, const ncclConfig_t *config)
{
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (!comm)
        abort();
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    comm->roll = roll;
    comm->rank = rank;
    comm->n = n;
    comm->blocking = config->blocking != 0;
    atomic_fetch_add(&live, 1);
    pthread_mutex_lock(&lock);
    comm->kept = kept;
    kept = comm;
    if (n_seen < MAX_SEEN) {
        struct tsr_standin_nccl_seen *s = &seen[n_seen++];
        *s = (struct tsr_standin_nccl_seen){.ranks = n,
                                            .cta_policy = config->CTAPolicy,
                                            .max_ctas = config->maxCTAs,
                                            .blocking = comm->blocking};
        snprintf(s->name, sizeof s->name, "%s", config->commName ? config->commName : "");
    }
    pthread_mutex_unlock(&lock);
    return comm;
}

bool tsr_standin_nccl_seen(int i, struct tsr_standin_nccl_seen *out)
{
    pthread_mutex_lock(&lock);
    bool there = i < n_seen;
    if (there)
        *out = seen[i];
    pthread_mutex_unlock(&lock);
    return there;
}

void tsr_standin_nccl_break(ncclResult_t error)
{
    atomic_store(&next_error, error);
}

int tsr_standin_nccl_live(void)
{
    return atomic_load(&live);
}

/* ---- words ----------------------------------------------------------------------------------- */

void tsr_standin_nccl_version(int version)
{
    fake_version = version;
}

ncclResult_t ncclGetVersion(int *version)
{
    TSR_STANDIN(ncclGetVersion, ncclResult_t);
    int everywhere = tsr_standin()->nccl ? tsr_standin()->nccl : NCCL_VERSION_CODE;
    *version = fake_version ? fake_version : everywhere;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const words[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return (unsigned)result < ncclNumResults ? words[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}

/* ---- beginnings ------------------------------------------------------------------------------ */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    TSR_STANDIN(ncclGetUniqueId, ncclResult_t);
    return tsr__nccl_roll_make(id) ? ncclSuccess : fail(ncclSystemError, "no shared memory");
}

/* The first member that knows that all are threads of this process makes their hub. */
static struct nccl_hub *hub_of(uint64_t key, int n)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    pthread_mutex_lock(&lock);
    struct nccl_hub *hub = hubs;
    while (hub && hub->key != key)
        hub = hub->next;
    pthread_mutex_unlock(&lock);
    if (!hub)
        hub = new_hub(n, key);
    pthread_mutex_unlock(&one);
    return hub;
}

bool tsr__nccl_is_ready(ncclComm_t comm)
{
    if (atomic_load_explicit(&comm->ready, memory_order_acquire))
        return true;
    pthread_mutex_lock(&comm->lock);
    enum nccl_members members = tsr__nccl_roll_members(comm->roll);
    if (members == NCCL_THREADS && !comm->hub)
        comm->hub = hub_of(tsr__nccl_roll_key(comm->roll), comm->n);
    else if (members == NCCL_PROCESSES && !comm->shared)
        comm->shared = tsr__nccl_shared_of(comm->roll);
    bool ready = comm->hub || comm->shared;
    atomic_store_explicit(&comm->ready, ready, memory_order_release);
    pthread_mutex_unlock(&comm->lock);
    return ready;
}

static bool is_config(const ncclConfig_t *config)
{
    return config->size == sizeof *config && config->magic == 0xcafebeef;
}

/* For a blocking call: a moment. */
static void doze(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    TSR_STANDIN(ncclCommInitRankConfig, ncclResult_t);
    if (!out || !is_config(config) || n < 1 || n > NCCL_RANKS || rank < 0 || rank >= n)
        return fail(ncclInvalidArgument, "ncclCommInitRankConfig");
    struct nccl_roll *roll = tsr__nccl_roll_of(&id);
    if (!roll)
        return fail(ncclSystemError, "who made the id is gone");
    if (!tsr__nccl_roll_sign(roll, n, rank))
        return fail(ncclInvalidArgument, "members differ in the number of ranks");
    *out = new_comm(roll, n, rank, config);
    while ((*out)->blocking && !tsr__nccl_is_ready(*out) && !atomic_load(&(*out)->ended))
        doze();
    return (*out)->blocking ? ncclSuccess : ncclInProgress;
}

/* ---- splitting ------------------------------------------------------------------------------- */

/* All members have said what they want: whoever is first here makes the children. */
static void make_children(struct nccl_hub *hub)
{
    for (int r = 0; r < hub->n; r++) {
        int size = 0, at = 0;
        struct nccl_hub *child = NULL;
        for (int o = 0; o < hub->n; o++) {
            if (hub->color[o] != hub->color[r])
                continue;
            size++;
            at += hub->key_of[o] < hub->key_of[r] || (hub->key_of[o] == hub->key_of[r] && o < r);
            if (o < r)
                child = hub->child[o];
        }
        hub->child[r] = child ? child : new_hub(size, 0);
        hub->child_rank[r] = at;
    }
}

/* True when all have said what they want. */
static bool split_here(ncclComm_t comm, ncclComm_t *child)
{
    struct nccl_hub *hub = comm->hub;
    int me = comm->rank;
    pthread_mutex_lock(&hub->lock);
    if (!comm->split_said && hub->n_split_done == 0 && !hub->wants[me]) {
        comm->split_said = hub->wants[me] = true;
        hub->color[me] = comm->child_color;
        hub->key_of[me] = comm->child_key;
        if (++hub->n_split == hub->n)
            make_children(hub);
    }
    bool all = comm->split_said && hub->n_split == hub->n;
    if (all) {
        *child = new_comm(comm->roll, hub->child[me]->n, hub->child_rank[me], &comm->child_config);
        (*child)->hub = hub->child[me];
        atomic_store(&(*child)->ready, true);
        comm->split_said = false;
        if (++hub->n_split_done == hub->n) {
            hub->n_split = hub->n_split_done = 0;
            memset(hub->wants, 0, sizeof hub->wants);
        }
        pthread_cond_broadcast(&hub->changed);
    }
    pthread_mutex_unlock(&hub->lock);
    return all;
}

static bool split_shared(ncclComm_t comm, ncclComm_t *child)
{
    struct nccl_shared *shared;
    int n, rank;
    if (!tsr__nccl_shared_split(comm, comm->child_color, comm->child_key, &shared, &n, &rank))
        return false;
    *child = new_comm(comm->roll, n, rank, &comm->child_config);
    (*child)->shared = shared;
    atomic_store(&(*child)->ready, true);
    return true;
}

/* Of the communicator's host thread. True when this member has its child. */
static bool go_on_splitting(ncclComm_t comm)
{
    if (!(comm->shared ? split_shared(comm, comm->child) : split_here(comm, comm->child)))
        return false;
    comm->child = NULL;
    return true;
}

static ncclResult_t check_comm(ncclComm_t comm)
{
    if (!comm)
        return fail(ncclInvalidArgument, "no communicator");
    if (comm->revoked || atomic_load(&comm->ended))
        return fail(ncclInvalidUsage, "communicator was revoked");
    return tsr__nccl_is_ready(comm) && !comm->child
               ? ncclSuccess
               : fail(ncclInvalidArgument, "the communicator is not ready");
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    TSR_STANDIN(ncclCommSplit, ncclResult_t);
    ncclResult_t result = check_comm(comm);
    if (result != ncclSuccess)
        return result;
    if (color < 0 || !is_config(config))
        return fail(ncclInvalidArgument, "ncclCommSplit");
    *out = NULL;
    comm->child = out;
    comm->child_config = *config;
    comm->child_color = color;
    comm->child_key = key;
    while (!go_on_splitting(comm) && comm->blocking && !atomic_load(&comm->ended))
        doze();
    return ncclSuccess; /* as the real one says though it goes on */
}

/* ---- states and ends ------------------------------------------------------------------------- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    static struct tsr_standin_entry async = {.name = "(async)"};
    TSR_STANDIN(ncclCommGetAsyncError, ncclResult_t);
    int error = tsr_standin_enter(&async);
    if (!error)
        error = atomic_exchange(&next_error, 0);
    if (error)
        atomic_store(&comm->error, error);
    *state = (ncclResult_t)atomic_load(&comm->error);
    if (*state != ncclSuccess || atomic_load(&comm->ended))
        return ncclSuccess;
    if (comm->finalizing > 1) {
        comm->finalizing--;
        *state = ncclInProgress;
        return ncclSuccess;
    }
    bool ready = tsr__nccl_is_ready(comm) && (!comm->child || go_on_splitting(comm));
    *state = ready || comm->blocking ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
}

static void end(ncclComm_t comm)
{
    atomic_store(&comm->ended, true);
    pthread_mutex_lock(&comm->lock);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (comm->shared) {
        tsr__nccl_shared_wake(comm->shared);
    } else if (comm->hub) {
        pthread_mutex_lock(&comm->hub->lock);
        pthread_cond_broadcast(&comm->hub->changed);
        pthread_mutex_unlock(&comm->hub->lock);
    }
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    TSR_STANDIN(ncclCommRevoke, ncclResult_t);
    if (!comm || flags != NCCL_REVOKE_DEFAULT || comm->revoked)
        return fail(ncclInvalidArgument, "ncclCommRevoke");
    comm->revoked = true;
    end(comm);
    return ncclSuccess;
}

/* The real one waits for ever for graphs that hold its work. Those that are on their way are given
 * a moment. */
static void wait_for_graphs(ncclComm_t comm)
{
    for (int i = 0; atomic_load(&comm->graphs) > 0; i++) {
        if (i == 2000) {
            fprintf(stderr, "NCCL: a communicator goes before the graphs that hold its work\n");
            abort();
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    TSR_STANDIN(ncclCommAbort, ncclResult_t);
    end(comm);
    wait_for_graphs(comm);
    atomic_fetch_sub(&live, 1);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    TSR_STANDIN(ncclCommFinalize, ncclResult_t);
    if (comm->blocking || comm->finalizing)
        return fail(ncclInvalidArgument, "ncclCommFinalize");
    comm->finalizing = 4;
    return ncclInProgress;
}

/* After its work. The real one finalizes a communicator that does not block inside this call, if it
 * was not done, and may hang there: here that is refused, and the communicator stays. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    TSR_STANDIN(ncclCommDestroy, ncclResult_t);
    if (!comm->blocking && comm->finalizing != 1)
        return fail(ncclInvalidUsage, "ncclCommDestroy before ncclCommFinalize is done");
    pthread_mutex_lock(&comm->lock);
    while (comm->turn < comm->next && !atomic_load(&comm->ended) &&
           tsr_standin_sticky() == cudaSuccess)
        tsr__nccl_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    wait_for_graphs(comm);
    end(comm);
    atomic_fetch_sub(&live, 1);
    return ncclSuccess;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* All members come here, or it hangs. */
static void meet_for_window(ncclComm_t comm, size_t bytes)
{
    struct nccl_hub *hub = comm->hub;
    pthread_mutex_lock(&hub->lock);
    int round = hub->window_round;
    if (hub->n_windows == 0)
        hub->window_bytes = bytes;
    hub->window_differs |= hub->window_bytes != bytes;
    if (++hub->n_windows == hub->n && !hub->window_differs) {
        hub->n_windows = 0;
        hub->window_round++;
        pthread_cond_broadcast(&hub->changed);
    }
    while (hub->window_round == round && !atomic_load(&comm->ended))
        tsr__nccl_wait(&hub->changed, &hub->lock);
    pthread_mutex_unlock(&hub->lock);
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *out,
                                    int flags)
{
    TSR_STANDIN(ncclCommWindowRegister, ncclResult_t);
    ncclResult_t result = check_comm(comm);
    if (result != ncclSuccess)
        return result;
    if ((uintptr_t)buff % NCCL_WIN_REQUIRED_ALIGNMENT || flags != NCCL_WIN_COLL_SYMMETRIC ||
        tsr_standin_space_of(buff, size) != TSR_STANDIN_DEVICE)
        return fail(ncclInvalidArgument, "ncclCommWindowRegister");
    if (comm->shared)
        (void)tsr__nccl_shared_window(comm, size);
    else
        meet_for_window(comm, size);
    atomic_fetch_add(&live, 1);
    *out = (ncclWindow_t)buff;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    TSR_STANDIN(ncclCommWindowDeregister, ncclResult_t);
    if (!comm || !window)
        return fail(ncclInvalidArgument, "ncclCommWindowDeregister");
    atomic_fetch_sub(&live, 1);
    return ncclSuccess;
}
