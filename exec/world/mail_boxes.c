/* mail_boxes.c: what arrives in pieces becomes mail, which lies in boxes until somebody takes it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "exec/base/word.h"
#include "exec/rendezvous/handshake.h"
#include "exec/world/world_mail.h"

_Static_assert(sizeof(struct tsr_mail_header) == 64, "the header has no padding");
_Static_assert(sizeof(struct tsr_mail) % 16 == 0, "data is aligned");

#define WAKE_S 0.05 /* a sleeper looks this often whether the world has failed */
enum { MOST_MAIL = 1 << 20, COMMON_BYTES = 1 << 30 };

/* NULL when there is no memory. free() releases it. */
static struct tsr_mail *mail_create(const struct tsr_mail_header *header)
{
    if (header->bytes > SIZE_MAX / 2)
        return NULL;
    struct tsr_mail *mail = malloc(sizeof *mail + (size_t)header->bytes);
    if (!mail)
        return NULL;
    mail->next = NULL;
    mail->header = *header;
    return mail;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

static bool box_init(struct tsr_mail_box *box)
{
    pthread_condattr_t attr;
    box->first = NULL;
    box->last = &box->first;
    if (pthread_mutex_init(&box->lock, NULL) != 0)
        return false;
    if (pthread_condattr_init(&attr) == 0) {
        (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        int error = pthread_cond_init(&box->arrived, &attr);
        (void)pthread_condattr_destroy(&attr);
        if (error == 0)
            return true;
    }
    (void)pthread_mutex_destroy(&box->lock);
    return false;
}

static void box_fini(struct tsr_mail_box *box)
{
    for (struct tsr_mail *mail = box->first, *next; mail; mail = next) {
        next = mail->next;
        free(mail);
    }
    (void)pthread_cond_destroy(&box->arrived);
    (void)pthread_mutex_destroy(&box->lock);
}

tsr_status tsr__mail_boxes_init(struct tsr_mail_boxes *boxes)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    boxes->most = MOST_MAIL;
    boxes->most_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : COMMON_BYTES;
    atomic_store(&boxes->bytes, 0);
    atomic_store(&boxes->n, 0);
    for (int i = 0; i < TSR_MAIL_BOXES; i++)
        if (!box_init(&boxes->box[i])) {
            while (i-- > 0)
                box_fini(&boxes->box[i]);
            return tsr_fail(TSR_ENOMEM, "no locks left");
        }
    return TSR_OK;
}

void tsr__mail_boxes_fini(struct tsr_mail_boxes *boxes)
{
    for (int i = 0; i < TSR_MAIL_BOXES; i++)
        box_fini(&boxes->box[i]);
}

static struct tsr_mail_box *box_of(struct tsr_mail_boxes *boxes, const struct tsr_mail_header *h)
{
    uint64_t hash = tsr_hash_u64(tsr_hash_u64(h->from, h->comm_id), h->sequence);
    return &boxes->box[hash % TSR_MAIL_BOXES];
}

/* Takes ownership of `mail`. */
static void put(struct tsr_mail_boxes *boxes, struct tsr_mail *mail)
{
    struct tsr_mail_box *box = box_of(boxes, &mail->header);
    atomic_fetch_add_explicit(&boxes->n, 1, memory_order_relaxed);
    (void)pthread_mutex_lock(&box->lock);
    mail->next = NULL;
    *box->last = mail;
    box->last = &mail->next;
    (void)pthread_cond_broadcast(&box->arrived);
    (void)pthread_mutex_unlock(&box->lock);
}

void tsr__mail_wake(struct tsr_mail_boxes *boxes)
{
    for (int i = 0; i < TSR_MAIL_BOXES; i++) {
        (void)pthread_mutex_lock(&boxes->box[i].lock);
        (void)pthread_cond_broadcast(&boxes->box[i].arrived);
        (void)pthread_mutex_unlock(&boxes->box[i].lock);
    }
}

static bool is_wanted(const struct tsr_mail_header *h, const struct tsr_mail_header *want)
{
    return h->from == want->from && h->comm_id == want->comm_id && h->sequence == want->sequence &&
           h->phase == want->phase && h->index == want->index;
}

static struct tsr_mail *unlink_wanted(struct tsr_mail_box *box, const struct tsr_mail_header *want)
{
    for (struct tsr_mail **at = &box->first; *at; at = &(*at)->next) {
        struct tsr_mail *mail = *at;
        if (!is_wanted(&mail->header, want))
            continue;
        *at = mail->next;
        if (box->last == &mail->next)
            box->last = at;
        return mail;
    }
    return NULL;
}

struct tsr_mail *tsr__mail_take(struct tsr_mail_boxes *boxes, const struct tsr_mail_header *want,
                                double deadline, struct tsr_abort *abort)
{
    struct tsr_mail_box *box = box_of(boxes, want);
    struct tsr_mail *mail;
    (void)pthread_mutex_lock(&box->lock);
    while (!(mail = unlink_wanted(box, want)) && !tsr__aborted(abort)) {
        double now = tsr__now();
        if (now >= deadline)
            break;
        double until = now + WAKE_S < deadline ? now + WAKE_S : deadline;
        struct timespec t = {.tv_sec = (time_t)until};
        t.tv_nsec = (long)((until - (double)t.tv_sec) * 1e9);
        (void)pthread_cond_timedwait(&box->arrived, &box->lock, &t);
    }
    (void)pthread_mutex_unlock(&box->lock);
    if (mail) {
        atomic_fetch_sub_explicit(&boxes->bytes, mail->header.bytes, memory_order_relaxed);
        atomic_fetch_sub_explicit(&boxes->n, 1, memory_order_relaxed);
    }
    return mail;
}

/* ---- streams --------------------------------------------------------------------------------- */

void *tsr__mail_stream_target(struct tsr_mail_stream *stream, size_t *room)
{
    if (!stream->mail) {
        *room = sizeof stream->header - stream->n;
        return (char *)&stream->header + stream->n;
    }
    *room = (size_t)stream->header.bytes - stream->n;
    return (char *)tsr__mail_data(stream->mail) + stream->n;
}

/* A header is complete: is it one, and is there room for what it announces? */
static tsr_status begin_mail(struct tsr_mail_stream *stream, uint32_t from,
                             struct tsr_mail_boxes *boxes)
{
    const struct tsr_mail_header *h = &stream->header;
    bool is_news = h->magic == TSR_NEWS_MAGIC && h->bytes < TSR_ABORT_TEXT;
    if ((!is_news && h->magic != TSR_MAIL_MAGIC) || h->from != from)
        return tsr_fail(TSR_EPEER, "what came from rank %u is no message of this program", from);
    uint64_t waiting = atomic_load_explicit(&boxes->bytes, memory_order_relaxed);
    if (h->bytes > boxes->most_bytes || waiting > boxes->most_bytes - h->bytes ||
        atomic_load_explicit(&boxes->n, memory_order_relaxed) >= boxes->most)
        return tsr_fail(TSR_EPEER,
                        "rank %u sends %llu bytes while %llu wait in %llu messages; allowed: %llu "
                        "bytes, %llu messages",
                        from, (unsigned long long)h->bytes, (unsigned long long)waiting,
                        (unsigned long long)atomic_load(&boxes->n),
                        (unsigned long long)boxes->most_bytes, (unsigned long long)boxes->most);
    stream->mail = mail_create(h);
    if (!stream->mail)
        return tsr_fail(TSR_ENOMEM, "no memory left for %llu bytes from rank %u",
                        (unsigned long long)h->bytes, from);
    atomic_fetch_add_explicit(&boxes->bytes, h->bytes, memory_order_relaxed);
    stream->n = 0;
    return TSR_OK;
}

/* The text of another rank is the reason here, too. */
static tsr_status hear_news(const struct tsr_mail_stream *stream)
{
    const struct tsr_mail_header *h = &stream->header;
    char text[TSR_ABORT_TEXT];
    (void)snprintf(text, sizeof text, "%.*s", (int)h->bytes,
                   (const char *)tsr__mail_data(stream->mail));
    tsr__plain_text(text);
    return tsr_fail(h->index > TSR_OK && h->index <= TSR_EPEER ? (tsr_status)h->index : TSR_EPEER,
                    "%s", text);
}

tsr_status tsr__mail_stream_advance(struct tsr_mail_stream *stream, uint32_t from, size_t n,
                                    struct tsr_mail_boxes *boxes)
{
    stream->n += n;
    if (!stream->mail) {
        if (stream->n < sizeof stream->header)
            return TSR_OK;
        TSR_TRY(begin_mail(stream, from, boxes));
    }
    if (stream->n < stream->header.bytes)
        return TSR_OK;
    if (stream->header.magic == TSR_NEWS_MAGIC)
        return hear_news(stream);
    put(boxes, stream->mail);
    stream->mail = NULL;
    stream->n = 0;
    return TSR_OK;
}

void tsr__mail_stream_fini(struct tsr_mail_stream *stream)
{
    free(stream->mail);
    stream->mail = NULL;
}
