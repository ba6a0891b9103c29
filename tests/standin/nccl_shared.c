/* nccl_shared.c: the stand-in of NCCL between processes; see nccl_shared.h. */
#include "tests/standin/nccl_shared.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exec/base/word.h"
#include "exec/world/reduce_order.h"

enum { RANKS = 16, HUBS = 64, STAGE = 1 << 15, LANE = 1 << 12, LINE = 64, PAGE = 4096 };
#define LOOK_S 0.003 /* how often a sleeper looks whether its communicator has ended */

/* The beginning of an id's memory. A process maps the hubs only if it needs them. */
struct page {
    uint64_t key;
    _Atomic int n;
    _Atomic int pids[NCCL_RANKS]; /* 0: has not signed */
};

/* Bytes from one member to another: one writer, one reader. */
struct lane {
    _Alignas(LINE) _Atomic uint64_t head; /* ever written */
    _Alignas(LINE) _Atomic uint64_t tail; /* ever read */
    _Alignas(LINE) char data[LANE];
};

struct wish {
    int color, key;
};

/* Meetings: those of collectives, which streams' threads come to, and of windows, the hosts'. */
enum meeting { OF_CALLS, OF_WINDOWS, MEETINGS };

/* Where the members of a communicator meet. All zeros: nobody has come yet. */
struct nccl_shared {
    _Atomic uint64_t key;                    /* 0: free */
    struct tsr_word bell;                    /* changes with everything that others may wait for */
    _Atomic uint64_t steps[MEETINGS][RANKS]; /* how often a member has come */
    struct nccl_post posts[RANKS];
    uint64_t windows[RANKS];
    _Atomic uint64_t splits[RANKS];
    struct wish wishes[2][RANKS]; /* of the last split and the one before, which some still read */
    _Alignas(PAGE) char stages[RANKS][STAGE];
    struct lane lanes[RANKS][RANKS]; /* [from][to] */
};

struct nccl_roll {
    struct page *page;
    struct nccl_shared *hubs;
    int fd;
    struct nccl_roll *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nccl_roll *rolls;

/* What an id says: its memory is a file of a process. */
struct place {
    uint64_t key;
    int pid, fd;
};

/* ---- ids and rolls --------------------------------------------------------------------------- */

static void *map(int fd, size_t from, size_t bytes)
{
    void *at =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)from);
    return at == MAP_FAILED ? NULL : at;
}

/* Takes the file; NULL: it is none of ours, or no memory. */
static struct nccl_roll *add_roll(int fd, uint64_t key, bool is_new)
{
    struct nccl_roll *roll = calloc(1, sizeof *roll);
    struct page *page = roll ? map(fd, 0, PAGE) : NULL;
    if (page && is_new)
        page->key = key;
    if (!page || page->key != key) {
        if (page)
            munmap(page, PAGE);
        free(roll);
        close(fd);
        return NULL;
    }
    *roll = (struct nccl_roll){.page = page, .fd = fd, .next = rolls};
    rolls = roll;
    return roll;
}

static int make_memory(void)
{
    int fd = (int)syscall(SYS_memfd_create, "nccl-standin", 1u /* MFD_CLOEXEC */);
    if (fd >= 0 && ftruncate(fd, PAGE + (off_t)sizeof(struct nccl_shared) * HUBS) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

bool tsr__nccl_roll_make(ncclUniqueId *id)
{
    static uint64_t n;
    struct place place = {.pid = getpid(), .fd = make_memory()};
    if (place.fd < 0)
        return false;
    pthread_mutex_lock(&lock);
    place.key = (uint64_t)place.pid << 32 | ++n;
    bool made = add_roll(place.fd, place.key, true) != NULL;
    pthread_mutex_unlock(&lock);
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &place, sizeof place);
    return made;
}

static struct nccl_roll *find_roll(const struct place *place)
{
    char path[64];
    for (struct nccl_roll *roll = rolls; roll; roll = roll->next)
        if (roll->page->key == place->key)
            return roll;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place->pid, place->fd);
    int fd = place->key ? open(path, O_RDWR | O_CLOEXEC) : -1;
    return fd >= 0 ? add_roll(fd, place->key, false) : NULL;
}

struct nccl_roll *tsr__nccl_roll_of(const ncclUniqueId *id)
{
    struct place place;
    memcpy(&place, id->internal, sizeof place);
    pthread_mutex_lock(&lock);
    struct nccl_roll *roll = find_roll(&place);
    pthread_mutex_unlock(&lock);
    return roll;
}

uint64_t tsr__nccl_roll_key(const struct nccl_roll *roll)
{
    return roll->page->key;
}

bool tsr__nccl_roll_sign(struct nccl_roll *roll, int n, int rank)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&roll->page->n, &none, n) && none != n)
        return false;
    atomic_store(&roll->page->pids[rank], getpid());
    return true;
}

enum nccl_members tsr__nccl_roll_members(const struct nccl_roll *roll)
{
    const struct page *page = roll->page;
    int n = atomic_load(&page->n), here = 0;
    for (int r = 0; r < n; r++) {
        int pid = atomic_load(&page->pids[r]);
        if (!pid)
            return NCCL_INCOMPLETE;
        here += pid == getpid();
    }
    return here == n ? NCCL_THREADS : NCCL_PROCESSES;
}

/* ---- hubs ------------------------------------------------------------------------------------ */

/* The hub with a key: whoever comes first takes a free one for it. */
static struct nccl_shared *hub_of(struct nccl_roll *roll, uint64_t key)
{
    for (int i = 0; i < HUBS; i++) {
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(&roll->hubs[i].key, &there, key) || there == key)
            return &roll->hubs[i];
    }
    abort(); /* more communicators than any test makes */
}

struct nccl_shared *tsr__nccl_shared_of(struct nccl_roll *roll)
{
    pthread_mutex_lock(&lock);
    if (!roll->hubs && atomic_load(&roll->page->n) <= RANKS)
        roll->hubs = map(roll->fd, PAGE, sizeof *roll->hubs * HUBS);
    struct nccl_shared *hub = roll->hubs ? hub_of(roll, roll->page->key) : NULL;
    pthread_mutex_unlock(&lock);
    return hub;
}

void tsr__nccl_shared_wake(struct nccl_shared *hub)
{
    tsr__word_bump(&hub->bell);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool all_have(const struct ncclComm *comm, const _Atomic uint64_t *counts, uint64_t n)
{
    for (int r = 0; r < comm->n; r++)
        if (atomic_load(&counts[r]) < n)
            return false;
    return true;
}

/* Comes to a meeting and waits for all; false: the communicator has ended. */
static bool meet(ncclComm_t comm, enum meeting meeting)
{
    struct nccl_shared *hub = comm->shared;
    _Atomic uint64_t *steps = hub->steps[meeting];
    uint64_t mine = atomic_fetch_add(&steps[comm->rank], 1) + 1;
    tsr__word_bump(&hub->bell);
    while (!atomic_load(&comm->ended)) {
        uint32_t before = tsr__word_get(&hub->bell);
        if (all_have(comm, steps, mine))
            return true;
        tsr__word_sleep(&hub->bell, before, LOOK_S);
    }
    return false;
}

/* What members who disagree do. */
static bool hang(ncclComm_t comm)
{
    while (!atomic_load(&comm->ended))
        tsr__word_sleep(&comm->shared->bell, tsr__word_get(&comm->shared->bell), LOOK_S);
    return false;
}

/* ---- splitting, windows ---------------------------------------------------------------------- */

/* Of the children of a hub, by what their members share. */
static uint64_t child_key(uint64_t key, uint64_t nth, int color)
{
    uint64_t hash = tsr_hash_u64(tsr_hash_u64(TSR_HASH_INIT, key), nth);
    return tsr_hash_u64(hash, (uint64_t)color) | 1;
}

bool tsr__nccl_shared_split(ncclComm_t comm, int color, int key, struct nccl_shared **out, int *n,
                            int *rank)
{
    struct nccl_shared *hub = comm->shared;
    uint64_t nth = comm->n_splits + 1;
    struct wish *wishes = hub->wishes[nth % 2], mine = {color, key};
    if (atomic_load(&hub->splits[comm->rank]) < nth) {
        wishes[comm->rank] = mine;
        atomic_store(&hub->splits[comm->rank], nth);
        tsr__word_bump(&hub->bell);
    }
    if (!all_have(comm, hub->splits, nth))
        return false;
    *n = *rank = 0;
    for (int r = 0; r < comm->n; r++) {
        bool before = wishes[r].key < key || (wishes[r].key == key && r < comm->rank);
        *n += wishes[r].color == color;
        *rank += wishes[r].color == color && before;
    }
    *out = hub_of(comm->roll, child_key(atomic_load(&hub->key), nth, color));
    comm->n_splits = nth;
    return true;
}

/* The second meeting: all have compared. */
bool tsr__nccl_shared_window(ncclComm_t comm, size_t bytes)
{
    struct nccl_shared *hub = comm->shared;
    hub->windows[comm->rank] = bytes;
    if (!meet(comm, OF_WINDOWS))
        return false;
    for (int r = 0; r < comm->n; r++)
        if (hub->windows[r] != bytes)
            return hang(comm);
    return meet(comm, OF_WINDOWS);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* A piece: elements [first, first + n) of each part of `count`. A stage holds one, or, where each
 * member gets its own, one for each of them. */
struct piece {
    const struct nccl_post *post;
    struct nccl_shared *hub;
    int me, members;
    size_t item, room, first, n; /* room: elements of a piece at most */
};

static bool each_its_own(enum nccl_kind kind)
{
    return kind == NCCL_SCATTER || kind == NCCL_ALL_TO_ALL;
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(to, from, bytes);
}

static char *stage_of(const struct piece *p, int from, int to)
{
    size_t slot = each_its_own(p->post->kind) ? (size_t)to : 0;
    return p->hub->stages[from] + slot * p->room * p->item;
}

static size_t at(const struct piece *p, int part)
{
    return ((size_t)part * p->post->count + p->first) * p->item;
}

static void put(const struct piece *p)
{
    const char *send = p->post->send;
    int parts = each_its_own(p->post->kind) ? p->members : 1;
    if (p->post->kind == NCCL_BROADCAST && p->me != p->post->root)
        return;
    for (int to = 0; to < parts; to++)
        copy(stage_of(p, p->me, to), send + at(p, to), p->n * p->item);
}

static void take(const struct piece *p)
{
    char *recv = p->post->recv;
    const void *parts[RANKS];
    for (int from = 0; from < p->members; from++)
        parts[from] = stage_of(p, from, p->me);
    if (p->post->kind == NCCL_BROADCAST) {
        copy(recv + at(p, 0), parts[p->post->root], p->n * p->item);
    } else if (p->post->kind == NCCL_REDUCE || p->post->kind == NCCL_SCATTER) {
        const struct tsr_reduction how = tsr__nccl_reduction(p->post);
        tsr__reduce(&how, parts, (uint32_t)p->members, recv + at(p, 0), p->n);
    } else {
        for (int from = 0; from < p->members; from++)
            copy(recv + at(p, from), parts[from], p->n * p->item);
    }
}

/* At least one piece, even of nothing: what has been posted stays until all have compared. */
static bool run_pieces(ncclComm_t comm, const struct nccl_post *post)
{
    struct piece p = {.post = post,
                      .hub = comm->shared,
                      .me = comm->rank,
                      .members = comm->n,
                      .item = tsr__nccl_item(post->type)};
    p.room = STAGE / p.item / (each_its_own(post->kind) ? (size_t)comm->n : 1);
    do {
        p.n = post->count - p.first < p.room ? post->count - p.first : p.room;
        put(&p);
        if (!meet(comm, OF_CALLS))
            return false;
        take(&p);
        if (!meet(comm, OF_CALLS))
            return false;
        p.first += p.n;
    } while (p.first < post->count);
    return true;
}

bool tsr__nccl_shared_run(ncclComm_t comm, const struct nccl_post *post)
{
    struct nccl_shared *hub = comm->shared;
    hub->posts[comm->rank] = *post;
    if (!meet(comm, OF_CALLS))
        return false;
    for (int r = 0; r < comm->n; r++)
        if (!tsr__nccl_same(&hub->posts[r], post))
            return hang(comm);
    return run_pieces(comm, post);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* How far a message is. Its length goes ahead of its bytes. */
struct progress {
    uint64_t length, at; /* at: bytes that went through the lane, with those of the length */
    uint64_t end;        /* sent: where in the lane it ends */
    bool done;
};

static size_t write_lane(struct lane *lane, const void *data, size_t bytes)
{
    uint64_t head = atomic_load(&lane->head);
    uint64_t room = LANE - (head - atomic_load(&lane->tail)), offset = head % LANE;
    size_t n = bytes < room ? bytes : room;
    n = n < LANE - offset ? n : LANE - offset;
    copy(lane->data + offset, data, n);
    atomic_store(&lane->head, head + n);
    return n;
}

static size_t read_lane(struct lane *lane, void *data, size_t bytes)
{
    uint64_t tail = atomic_load(&lane->tail);
    uint64_t there = atomic_load(&lane->head) - tail, offset = tail % LANE;
    size_t n = bytes < there ? bytes : there;
    n = n < LANE - offset ? n : LANE - offset;
    copy(data, lane->data + offset, n);
    atomic_store(&lane->tail, tail + n);
    return n;
}

/* A message has gone when it was read. */
static bool send_some(struct lane *lane, const struct nccl_mail_item *item, struct progress *p)
{
    uint64_t before = p->at, head = sizeof p->length;
    const char *data = item->data;
    p->length = item->bytes;
    if (p->at < head)
        p->at += write_lane(lane, (const char *)&p->length + p->at, head - p->at);
    if (p->at >= head)
        p->at += write_lane(lane, data + (p->at - head), head + p->length - p->at);
    if (p->at > before)
        p->end = atomic_load(&lane->head);
    p->done = p->at == head + p->length && atomic_load(&lane->tail) >= p->end;
    return p->at > before || p->done;
}

/* Another length than the sender's hangs. */
static bool receive_some(struct lane *lane, const struct nccl_mail_item *item, struct progress *p)
{
    uint64_t before = p->at, head = sizeof p->length;
    char *data = item->data;
    if (p->at < head)
        p->at += read_lane(lane, (char *)&p->length + p->at, head - p->at);
    if (p->at < head || p->length != item->bytes)
        return p->at > before;
    p->at += read_lane(lane, data + (p->at - head), head + p->length - p->at);
    p->done = p->at == head + p->length;
    return p->at > before || p->done;
}

/* Messages between two members go in order. */
static bool has_turn(const struct nccl_mail *m, const struct progress *progress, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (!progress[j].done && m->items[j].peer == m->items[i].peer &&
            m->items[j].is_send == m->items[i].is_send)
            return false;
    return true;
}

/* True: something has moved. *left: messages that are not done. */
static bool move_all(ncclComm_t comm, const struct nccl_mail *m, struct progress *progress,
                     size_t *left)
{
    struct nccl_shared *hub = comm->shared;
    bool moved = false;
    *left = 0;
    for (size_t i = 0; i < m->n; i++) {
        const struct nccl_mail_item *item = &m->items[i];
        if (!progress[i].done && has_turn(m, progress, i))
            moved |= item->is_send
                         ? send_some(&hub->lanes[comm->rank][item->peer], item, &progress[i])
                         : receive_some(&hub->lanes[item->peer][comm->rank], item, &progress[i]);
        *left += !progress[i].done;
    }
    return moved;
}

bool tsr__nccl_shared_mail(ncclComm_t comm, const struct nccl_mail *m)
{
    struct nccl_shared *hub = comm->shared;
    struct progress *progress = calloc(m->n + 1, sizeof *progress);
    size_t left = m->n;
    if (!progress)
        abort();
    while (left > 0 && !atomic_load(&comm->ended)) {
        uint32_t before = tsr__word_get(&hub->bell);
        if (move_all(comm, m, progress, &left))
            tsr__word_bump(&hub->bell);
        else if (left > 0)
            tsr__word_sleep(&hub->bell, before, LOOK_S);
    }
    free(progress);
    return left == 0;
}
