/* async_save.c: the thread's queue of pieces, its copies and its end. */
#include "exec/train/async_save.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct copy {
    struct copy *next;
    struct tsr_piece piece;
    uint64_t bytes;   /* of what is owned */
    void *owned;      /* NULL: data is lent */
    const void *data; /* what is written */
};

struct tsr_async_save {
    tsr_async_put_fn put;
    tsr_async_end_fn end;
    void *user;
    pthread_t thread;
    bool has_thread;
    uint64_t limit;       /* of bytes in copies: half of what the machine had free at the start */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct copy *first, **last;
    uint64_t held; /* bytes in copies */
    bool is_closed, is_done;
    tsr_status status;
    char why[512];
};

/* ---- what it does ---------------------------------------------------------------------------- */

static struct copy *take(struct tsr_async_save *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->first && !s->is_closed)
        pthread_cond_wait(&s->changed, &s->lock);
    struct copy *c = s->first;
    if (c)
        s->first = c->next;
    if (!s->first)
        s->last = &s->first;
    pthread_mutex_unlock(&s->lock);
    return c;
}

/* `freed` bytes of copies are gone. */
static void note(struct tsr_async_save *s, tsr_status status, uint64_t freed, bool is_done)
{
    pthread_mutex_lock(&s->lock);
    if (status != TSR_OK && s->status == TSR_OK) {
        s->status = status;
        snprintf(s->why, sizeof s->why, "%s", tsr_error_text());
    }
    s->held -= freed;
    s->is_done = is_done;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* After a failure the rest is only let go. */
static void *write_copies(void *user)
{
    struct tsr_async_save *s = user;
    tsr_status status = TSR_OK;
    for (struct copy *c = take(s); c; c = take(s)) {
        if (status == TSR_OK)
            status = s->put(s->user, &c->piece, c->data);
        free(c->owned);
        note(s, status, c->bytes, false);
        free(c);
    }
    if (status == TSR_OK)
        status = s->end(s->user);
    note(s, status, 0, true);
    return NULL;
}

/* ---- what the rank does with it -------------------------------------------------------------- */

static uint64_t free_memory(void)
{
    long pages = sysconf(_SC_AVPHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : UINT64_MAX;
}

tsr_status tsr_async_save_start(tsr_async_put_fn put, tsr_async_end_fn end, void *user,
                                struct tsr_async_save **out)
{
    struct tsr_async_save *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return tsr_no_memory("a checkpoint");
    *s = (struct tsr_async_save){
        .put = put, .end = end, .user = user, .limit = free_memory() / 2, .last = &s->first};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->has_thread = pthread_create(&s->thread, NULL, write_copies, s) == 0;
    if (!s->has_thread) {
        tsr_async_save_destroy(s);
        return tsr_fail(TSR_EBACKEND, "no thread for a checkpoint");
    }
    *out = s;
    return TSR_OK;
}

/* Room, perhaps after some of the copies before it are written. */
static void *room_for(struct tsr_async_save *s, uint64_t bytes)
{
    void *data = NULL;
    pthread_mutex_lock(&s->lock);
    while (s->held > 0 && (bytes > s->limit || s->held > s->limit - bytes))
        pthread_cond_wait(&s->changed, &s->lock);
    while (!(data = malloc(bytes ? bytes : 1)) && s->held > 0)
        pthread_cond_wait(&s->changed, &s->lock);
    s->held += data ? bytes : 0;
    pthread_mutex_unlock(&s->lock);
    return data;
}

static void append(struct tsr_async_save *s, struct copy *c)
{
    pthread_mutex_lock(&s->lock);
    *s->last = c;
    s->last = &c->next;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

tsr_status tsr_async_save_add(struct tsr_async_save *s, const struct tsr_piece *piece,
                              const void *data, uint64_t bytes)
{
    struct copy *c = calloc(1, sizeof *c);
    if (c)
        c->owned = room_for(s, bytes);
    if (!c || !c->owned) {
        free(c);
        return tsr_fail(TSR_ENOMEM, "out of memory: a copy of %llu bytes for a checkpoint",
                        (unsigned long long)bytes);
    }
    if (bytes)
        memcpy(c->owned, data, bytes);
    c->data = c->owned;
    c->piece = *piece;
    c->bytes = bytes;
    append(s, c);
    return TSR_OK;
}

tsr_status tsr_async_save_lend(struct tsr_async_save *s, const struct tsr_piece *piece,
                               const void *data)
{
    struct copy *c = calloc(1, sizeof *c);
    if (!c)
        return tsr_no_memory("a checkpoint");
    c->piece = *piece;
    c->data = data;
    append(s, c);
    return TSR_OK;
}

void tsr_async_save_close(struct tsr_async_save *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_closed = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool tsr_async_save_is_done(struct tsr_async_save *s)
{
    pthread_mutex_lock(&s->lock);
    bool is_done = s->is_done;
    pthread_mutex_unlock(&s->lock);
    return is_done;
}

tsr_status tsr_async_save_wait(struct tsr_async_save *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->is_done)
        pthread_cond_wait(&s->changed, &s->lock);
    tsr_status status = s->status;
    pthread_mutex_unlock(&s->lock);
    return status == TSR_OK ? TSR_OK : tsr_fail(status, "%s", s->why);
}

void tsr_async_save_destroy(struct tsr_async_save *s)
{
    if (!s)
        return;
    if (s->has_thread) {
        tsr_async_save_close(s);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
