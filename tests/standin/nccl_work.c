/* nccl_work.c: what the stand-in's collectives do on their streams: members meet, read each
 * other's input, and part when all have read. Sums run in the order of ranks. Here members are
 * threads of one process; nccl_shared.c is for others.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/standin/nccl_shared.h"

size_t tsr__nccl_item(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
        return 4;
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
        return 8;
    default:
        return 1;
    }
}

static uint8_t dtype_of(ncclDataType_t type)
{
    static const uint8_t dtypes[ncclNumTypes] = {
        [ncclUint8] = TSR_U8,    [ncclInt64] = TSR_I64,   [ncclFloat16] = TSR_F16,
        [ncclFloat32] = TSR_F32, [ncclFloat64] = TSR_F64, [ncclBfloat16] = TSR_BF16};
    return dtypes[type];
}

static uint8_t op_of(ncclRedOp_t op)
{
    return op == ncclAvg   ? TSR_REDUCE_AVG
           : op == ncclMax ? TSR_REDUCE_MAX
           : op == ncclSum ? TSR_REDUCE_SUM
                           : TSR_REDUCE_PREMUL_SUM;
}

/* ---- collectives ----------------------------------------------------------------------------- */

struct tsr_reduction tsr__nccl_reduction(const struct nccl_post *post)
{
    return (struct tsr_reduction){dtype_of(post->type), op_of(post->op), post->factor};
}

/* What the real one exchanges kernels' worth of; other differences give other bytes there. */
bool tsr__nccl_same(const struct nccl_post *a, const struct nccl_post *b)
{
    return a->kind == b->kind && a->count == b->count && a->type == b->type && a->op == b->op &&
           a->factor == b->factor && a->root == b->root;
}

static bool all_same(const struct nccl_slot *s, int n)
{
    for (int r = 1; r < n; r++)
        if (!tsr__nccl_same(&s->posts[0], &s->posts[r]))
            return false;
    return true;
}

static void reduce(const struct nccl_slot *s, int n, int rank, void *out)
{
    const struct nccl_post *p = &s->posts[rank];
    const void *parts[NCCL_RANKS];
    size_t first = p->kind == NCCL_SCATTER ? p->count * (size_t)rank : 0;
    for (int r = 0; r < n; r++)
        parts[r] = (const char *)s->posts[r].send + first * tsr__nccl_item(p->type);
    const struct tsr_reduction how = tsr__nccl_reduction(p);
    tsr__reduce(&how, parts, (uint32_t)n, out, p->count);
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes)
        memcpy(to, from, bytes);
}

static void take(const struct nccl_slot *s, int n, int rank)
{
    const struct nccl_post *p = &s->posts[rank];
    size_t bytes = p->count * tsr__nccl_item(p->type);
    for (int r = 0; r < n && p->kind != NCCL_BROADCAST; r++)
        copy((char *)p->recv + (size_t)r * bytes,
             (const char *)s->posts[r].send +
                 (p->kind == NCCL_ALL_TO_ALL ? (size_t)rank * bytes : 0),
             bytes);
    if (p->kind == NCCL_BROADCAST)
        copy(p->recv, s->posts[p->root].send, bytes);
}

/* In place an all-reduce overwrites what others still read: into memory aside, then there. */
static void *all_reduce(const struct nccl_slot *s, int n, int rank)
{
    const struct nccl_post *p = &s->posts[rank];
    void *aside = malloc(p->count * tsr__nccl_item(p->type) + 1);
    if (!aside)
        abort();
    reduce(s, n, rank, aside);
    return aside;
}

/* Under its lock. */
static void wait_at(struct nccl_hub *hub)
{
    tsr__nccl_wait(&hub->changed, &hub->lock);
}

static bool wait_until(struct nccl_work *w, const int *value, int target)
{
    while (*value < target && !atomic_load(&w->comm->ended))
        wait_at(w->comm->hub);
    return !atomic_load(&w->comm->ended);
}

/* Takes the slot of the call; false: the communicator has ended. */
static bool open_slot(struct nccl_work *w, struct nccl_slot *s)
{
    while (s->number != w->number && s->posted > 0 && !atomic_load(&w->comm->ended))
        wait_at(w->comm->hub);
    if (atomic_load(&w->comm->ended))
        return false;
    s->number = w->number;
    s->posts[w->comm->rank] = w->post;
    s->posted++;
    pthread_cond_broadcast(&w->comm->hub->changed);
    return true;
}

static void meet(struct nccl_work *w)
{
    struct nccl_hub *hub = w->comm->hub;
    struct nccl_slot *s = &hub->slots[w->number % NCCL_SLOTS];
    void *aside = NULL;
    pthread_mutex_lock(&hub->lock);
    bool goes = open_slot(w, s) && wait_until(w, &s->posted, hub->n);
    while (goes && !all_same(s, hub->n)) /* hangs */
        goes = wait_until(w, &s->posted, hub->n + 1);
    pthread_mutex_unlock(&hub->lock);
    if (!goes)
        return;
    if (w->post.kind == NCCL_REDUCE)
        aside = all_reduce(s, hub->n, w->comm->rank);
    else if (w->post.kind == NCCL_SCATTER)
        reduce(s, hub->n, w->comm->rank, w->post.recv);
    else
        take(s, hub->n, w->comm->rank);
    pthread_mutex_lock(&hub->lock);
    s->read++;
    pthread_cond_broadcast(&hub->changed);
    goes = wait_until(w, &s->read, hub->n);
    if (goes && ++s->left == hub->n) {
        s->posted = s->read = s->left = 0;
        pthread_cond_broadcast(&hub->changed);
    }
    if (goes && aside)
        copy(w->post.recv, aside, w->post.count * tsr__nccl_item(w->post.type));
    pthread_mutex_unlock(&hub->lock);
    free(aside);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void post_letters(const struct nccl_mail *m)
{
    struct nccl_hub *hub = m->comm->hub;
    for (size_t i = 0; i < m->n; i++) {
        if (!m->items[i].is_send)
            continue;
        if (hub->n_letters == NCCL_MESSAGES)
            abort();
        hub->letters[hub->n_letters++] = (struct nccl_letter){
            m->comm->rank, m->items[i].peer, m->items[i].data, m->items[i].bytes,
            false,         hub->n_sent++};
    }
    pthread_cond_broadcast(&hub->changed);
}

/* The first of those from `from` to `to` that was not taken. */
static struct nccl_letter *find_letter(struct nccl_hub *hub, int from, int to)
{
    struct nccl_letter *found = NULL;
    for (int i = 0; i < hub->n_letters; i++) {
        struct nccl_letter *l = &hub->letters[i];
        if (l->from == from && l->to == to && !l->taken && (!found || l->number < found->number))
            found = l;
    }
    return found;
}

/* Another length hangs. */
static bool take_letter(struct nccl_mail *m, const struct nccl_mail_item *item)
{
    struct nccl_hub *hub = m->comm->hub;
    struct nccl_letter *l;
    while (!(l = find_letter(hub, item->peer, m->comm->rank)) || l->bytes != item->bytes) {
        if (atomic_load(&m->comm->ended))
            return false;
        wait_at(hub);
    }
    copy(item->data, l->data, item->bytes);
    l->taken = true;
    pthread_cond_broadcast(&hub->changed);
    return true;
}

/* The sender takes its letters back when they were read. */
static bool collect_letters(struct nccl_mail *m)
{
    struct nccl_hub *hub = m->comm->hub;
    for (int i = 0; i < hub->n_letters;) {
        struct nccl_letter *l = &hub->letters[i];
        if (l->from != m->comm->rank) {
            i++;
        } else if (l->taken) {
            *l = hub->letters[--hub->n_letters];
        } else {
            if (atomic_load(&m->comm->ended))
                return false;
            wait_at(hub);
            i = 0;
        }
    }
    return true;
}

static void exchange(struct nccl_mail *m)
{
    pthread_mutex_lock(&m->comm->hub->lock);
    bool goes = true;
    post_letters(m);
    for (size_t i = 0; i < m->n && goes; i++)
        if (!m->items[i].is_send)
            goes = take_letter(m, &m->items[i]);
    if (goes)
        (void)collect_letters(m);
    pthread_mutex_unlock(&m->comm->hub->lock);
}

/* ---- work of a stream ------------------------------------------------------------------------ */

/* The turn of a call comes; false: the communicator has ended. *number: of those that began. */
static bool begin(ncclComm_t comm, uint64_t ticket, uint64_t *number)
{
    pthread_mutex_lock(&comm->lock);
    while (ticket != NCCL_CAPTURED && comm->turn != ticket && !atomic_load(&comm->ended))
        tsr__nccl_wait(&comm->changed, &comm->lock);
    *number = comm->begun++;
    pthread_mutex_unlock(&comm->lock);
    return !atomic_load(&comm->ended);
}

static void done(ncclComm_t comm, uint64_t ticket)
{
    pthread_mutex_lock(&comm->lock);
    comm->turn += ticket != NCCL_CAPTURED;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

int tsr__nccl_run(void *work)
{
    struct nccl_work *w = work;
    if (!begin(w->comm, w->ticket, &w->number))
        return 0;
    if (w->comm->shared)
        (void)tsr__nccl_shared_run(w->comm, &w->post);
    else
        meet(w);
    done(w->comm, w->ticket);
    return 0;
}

int tsr__nccl_run_mail(void *mail)
{
    struct nccl_mail *m = mail;
    uint64_t number;
    if (!begin(m->comm, m->ticket, &number))
        return 0;
    if (m->comm->shared)
        (void)tsr__nccl_shared_mail(m->comm, m);
    else
        exchange(m);
    done(m->comm, m->ticket);
    return 0;
}
