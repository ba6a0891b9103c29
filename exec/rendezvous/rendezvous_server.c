/* rendezvous_server.c: the thread of rank 0 that knows all ranks: their connections, and what they
 * gather. No rank can hold it up, since sockets do not block; none can make it grow, since each has
 * one request at a time, of bounded size, and is cut off when it does not take its answers.
 * Strangers stay before the door (handshake.h).
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/base/word.h"
#include "exec/rendezvous/rendezvous_wire.h"

#define NEWS_S 1.0 /* to hear the news and leave, when rank 0 has nothing else to do */
enum {
    TEXT = 512,
    LOOK_MS = 20,
    NAMED_RANKS = 8,
    CHUNK = 4096,
    UNREAD = 1 << 16 /* bytes of answers that a rank may leave lying, beyond what it asked for */
};

struct member {
    int fd; /* -1: closed */
    bool left;
    uint32_t rank;
    struct tsr_wire_buffer in, out;
    bool waits; /* in the gathering `name`, with `value` */
    double deadline;
    int64_t wait_ms;
    uint32_t value_bytes;
    char name[TSR_WIRE_KEY + 1], value[TSR_RENDEZVOUS_VALUE];
};

struct tsr_rendezvous_server {
    pthread_t thread;
    _Atomic bool stopping;
    _Atomic double stopped_at, patience_s;
    struct tsr_secret secret;
    struct tsr_door *door;
    uint32_t size;
    struct member **members; /* [size]; NULL: has not come */
    struct pollfd *polls;
    size_t polls_cap;
    tsr_status news; /* the end of the job, as told to all; OK: none */
    char news_text[TEXT];
};

/* ---- members --------------------------------------------------------------------------------- */

/* Closes the connection; the rank stays known. */
static void member_close(struct member *m)
{
    if (m->fd >= 0)
        (void)close(m->fd);
    m->fd = -1;
    m->waits = false;
    m->out.n = m->in.n = 0;
}

static void put(struct member *m, struct tsr_wire_frame frame, const void *value)
{
    if (m->fd >= 0 && !tsr__wire_put(&m->out, frame, "", value))
        member_close(m);
}

static void reply(struct member *m, tsr_status status, const void *value, size_t bytes)
{
    m->waits = false;
    put(m,
        (struct tsr_wire_frame){
            .op = TSR_WIRE_REPLY, .status = (uint8_t)status, .value_bytes = (uint32_t)bytes},
        value);
}

static void put_news(struct tsr_rendezvous_server *s, struct member *m)
{
    put(m,
        (struct tsr_wire_frame){.op = TSR_WIRE_NEWS,
                                .status = (uint8_t)s->news,
                                .value_bytes = (uint32_t)strlen(s->news_text)},
        s->news_text);
}

/* The end of the job, to all ranks. Only the first counts; who joins later hears it, too. */
static void spread(struct tsr_rendezvous_server *s, tsr_status status, const char *text)
{
    if (s->news != TSR_OK)
        return;
    s->news = status == TSR_OK ? TSR_EPEER : status;
    (void)snprintf(s->news_text, sizeof s->news_text, "%s", text);
    tsr__plain_text(s->news_text);
    for (uint32_t r = 0; r < s->size; r++)
        if (s->members[r])
            put_news(s, s->members[r]);
}

/* The connection is at its end, for whatever reason: of a rank that has not said goodbye, a loss.
 */
static void member_end(struct tsr_rendezvous_server *s, struct member *m)
{
    char text[TEXT];
    member_close(m);
    if (m->left)
        return;
    m->left = true;
    (void)snprintf(text, sizeof text, TSR_RANK_LOST, m->rank);
    spread(s, TSR_EPEER, text);
}

/* Somebody at the door knows the secret. */
static bool admit(void *user, const struct tsr_hello *hello, int fd, char *text)
{
    struct tsr_rendezvous_server *s = user;
    struct member *m = NULL;
    if (hello->size != s->size)
        (void)snprintf(text, TSR_VERDICT_TEXT, "rank %u has %u ranks in its job, rank 0 has %u",
                       hello->rank, hello->size, s->size);
    else if (hello->rank >= s->size)
        (void)snprintf(text, TSR_VERDICT_TEXT, "rank %u joins; allowed: 0 to %u", hello->rank,
                       s->size - 1);
    else if (s->members[hello->rank])
        (void)snprintf(text, TSR_VERDICT_TEXT, "two processes say that they are rank %u",
                       hello->rank);
    else if (!(m = calloc(1, sizeof *m)))
        (void)snprintf(text, TSR_VERDICT_TEXT, "rank 0 has no memory left");
    if (!m)
        return false;
    m->fd = fd;
    m->rank = hello->rank;
    s->members[m->rank] = m;
    if (s->news != TSR_OK)
        put_news(s, m);
    return true;
}

/* ---- gathering ------------------------------------------------------------------------------- */

static bool is_in(const struct member *m, const char *name)
{
    return m && m->waits && strcmp(m->name, name) == 0;
}

/* When all are there, each gets what all gave. */
static void complete(struct tsr_rendezvous_server *s, const char *last)
{
    char name[TSR_WIRE_KEY + 1], text[TEXT];
    (void)snprintf(name, sizeof name, "%s", last); /* `last` may be a member's, which changes */
    for (uint32_t r = 0; r < s->size; r++)
        if (!is_in(s->members[r], name))
            return;
    uint32_t bytes = s->members[0]->value_bytes;
    char *all = malloc((size_t)bytes * s->size + 1);
    (void)snprintf(text, sizeof text, "rank 0 has no memory left");
    tsr_status status = all ? TSR_OK : TSR_ENOMEM;
    for (uint32_t r = 0; r < s->size && status == TSR_OK; r++) {
        const struct member *m = s->members[r];
        if (m->value_bytes != bytes) {
            (void)snprintf(text, sizeof text, "'%s': rank %u gives %u bytes, rank 0 %u", name, r,
                           m->value_bytes, bytes);
            status = TSR_EDEFECT;
        } else if (bytes) {
            memcpy(all + (size_t)r * bytes, m->value, bytes);
        }
    }
    for (uint32_t r = 0; r < s->size; r++)
        reply(s->members[r], status, status == TSR_OK ? all : text,
              status == TSR_OK ? (size_t)bytes * s->size : strlen(text));
    free(all);
}

static void take_gather(struct tsr_rendezvous_server *s, struct member *m,
                        const struct tsr_wire_frame *frame, const char *key, const char *value)
{
    if (m->waits) { /* for one answer at a time */
        member_end(s, m);
        return;
    }
    m->waits = true;
    m->wait_ms = frame->number;
    m->deadline = tsr__now() + (double)frame->number * 1e-3;
    m->value_bytes = frame->value_bytes;
    memcpy(m->value, value, frame->value_bytes);
    (void)snprintf(m->name, sizeof m->name, "%.*s", (int)frame->key_bytes, key);
    tsr__plain_text(m->name);
    complete(s, m->name);
}

/* ---- bytes in and out ------------------------------------------------------------------------ */

static void take_frame(struct tsr_rendezvous_server *s, struct member *m,
                       const struct tsr_wire_frame *frame, const char *key)
{
    char text[TEXT];
    const char *value = key + frame->key_bytes;
    switch (frame->op) {
    case TSR_WIRE_GATHER:
        take_gather(s, m, frame, key, value);
        break;
    case TSR_WIRE_NEWS:
        (void)snprintf(text, sizeof text, "%.*s", (int)frame->value_bytes, value);
        spread(s, frame->status <= TSR_EPEER ? (tsr_status)frame->status : TSR_EPEER, text);
        break;
    case TSR_WIRE_BYE:
        m->left = true;
        member_close(m);
        break;
    default:
        member_end(s, m);
    }
}

static void member_read(struct tsr_rendezvous_server *s, struct member *m)
{
    char chunk[CHUNK];
    ssize_t n = recv(m->fd, chunk, sizeof chunk, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (n <= 0 || !tsr__wire_append(&m->in, chunk, (size_t)n)) {
        member_end(s, m);
        return;
    }
    struct tsr_wire_frame frame;
    long bytes;
    while (m->fd >= 0 && (bytes = tsr__wire_complete(&m->in, &frame)) != 0) {
        if (bytes < 0) {
            member_end(s, m);
            return;
        }
        take_frame(s, m, &frame, m->in.data + sizeof frame);
        if (m->fd >= 0)
            tsr__wire_drop(&m->in, (size_t)bytes);
    }
}

static void member_write(struct tsr_rendezvous_server *s, struct member *m)
{
    if (m->fd < 0 || m->out.n == 0)
        return;
    ssize_t n = send(m->fd, m->out.data, m->out.n, MSG_NOSIGNAL);
    if (n > 0)
        tsr__wire_drop(&m->out, (size_t)n);
    else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        member_end(s, m);
    if (m->out.n > (size_t)s->size * TSR_RENDEZVOUS_VALUE + UNREAD)
        member_end(s, m);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* "rank 3", "ranks 3, 5 and 7 more": who is not in the gathering. */
static void name_missing(const struct tsr_rendezvous_server *s, const char *name, char *text)
{
    uint32_t n = 0, named = 0;
    size_t at = 0;
    char ranks[TEXT / 2] = "";
    for (uint32_t r = 0; r < s->size; r++) {
        if (is_in(s->members[r], name) || n++ >= NAMED_RANKS)
            continue;
        at += (size_t)snprintf(ranks + at, sizeof ranks - at, "%s%u", named++ ? ", " : "", r);
    }
    if (n > named)
        (void)snprintf(text, TEXT, "ranks %s and %u more", ranks, n - named);
    else
        (void)snprintf(text, TEXT, "rank%s %s", n > 1 ? "s" : "", ranks);
}

static void time_out(struct tsr_rendezvous_server *s, const struct member *m)
{
    char text[TEXT * 2], missing[TEXT], name[sizeof m->name];
    double seconds = (double)m->wait_ms * 1e-3;
    memcpy(name, m->name, sizeof name);
    name_missing(s, name, missing);
    if (name[0])
        (void)snprintf(text, sizeof text, "%s did not come to '%s' within %g s", missing, name,
                       seconds);
    else
        (void)snprintf(text, sizeof text, "%s did not join within %g s", missing, seconds);
    spread(s, TSR_EPEER, text);
    for (uint32_t r = 0; r < s->size; r++)
        if (is_in(s->members[r], name))
            s->members[r]->waits = false; /* the news is the answer */
}

static void check_deadlines(struct tsr_rendezvous_server *s)
{
    double now = tsr__now();
    for (uint32_t r = 0; r < s->size; r++) {
        const struct member *m = s->members[r];
        if (m && m->waits && now >= m->deadline)
            time_out(s, m);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool is_over(const struct tsr_rendezvous_server *s)
{
    if (!atomic_load(&s->stopping))
        return false;
    double patience = atomic_load(&s->patience_s);
    if (s->news != TSR_OK && patience > NEWS_S) /* they have heard it by then */
        patience = NEWS_S;
    for (uint32_t r = 0; r < s->size; r++)
        if (s->members[r] && s->members[r]->fd >= 0)
            return tsr__now() - atomic_load(&s->stopped_at) > patience;
    return true;
}

/* False: nothing has happened. The members come first, then the door. */
static bool poll_all(struct tsr_rendezvous_server *s)
{
    size_t wanted = s->size + tsr__door_polls(s->door, NULL, 0);
    if (wanted > s->polls_cap) {
        struct pollfd *grown = realloc(s->polls, wanted * 2 * sizeof *grown);
        if (!grown)
            return false;
        s->polls = grown;
        s->polls_cap = wanted * 2;
    }
    for (uint32_t r = 0; r < s->size; r++) {
        const struct member *m = s->members[r];
        s->polls[r] = (struct pollfd){.fd = m ? m->fd : -1,
                                      .events = (short)(m && m->out.n ? POLLIN | POLLOUT : POLLIN)};
    }
    (void)tsr__door_polls(s->door, s->polls + s->size, s->polls_cap - s->size);
    if (poll(s->polls, wanted, LOOK_MS) >= 0)
        return true;
    (void)poll(NULL, 0, errno == EINTR ? 0 : LOOK_MS);
    return false;
}

static void *server_main(void *arg)
{
    struct tsr_rendezvous_server *s = arg;
    while (!is_over(s)) {
        if (poll_all(s)) {
            for (uint32_t r = 0; r < s->size; r++)
                if (s->polls[r].revents && s->members[r]->fd >= 0)
                    member_read(s, s->members[r]);
            tsr__door_work(s->door, s->polls + s->size);
        }
        check_deadlines(s);
        for (uint32_t r = 0; r < s->size; r++)
            if (s->members[r])
                member_write(s, s->members[r]);
    }
    return NULL;
}

static void server_free(struct tsr_rendezvous_server *s)
{
    for (uint32_t r = 0; s->members && r < s->size; r++)
        if (s->members[r]) {
            member_close(s->members[r]);
            free(s->members[r]->in.data);
            free(s->members[r]->out.data);
            free(s->members[r]);
        }
    tsr__door_close(s->door);
    free(s->members);
    free(s->polls);
    free(s);
}

tsr_status tsr__server_start(const struct tsr_server_config *config,
                             struct tsr_rendezvous_server **out)
{
    struct tsr_rendezvous_server *s = calloc(1, sizeof *s);
    if (s)
        s->members = calloc(config->size, sizeof *s->members);
    if (!s || !s->members) {
        free(s);
        (void)close(config->listen_fd);
        return tsr_no_memory("the rendezvous");
    }
    s->size = config->size;
    s->secret = *config->secret;
    const struct tsr_door_config door = {.listen_fd = config->listen_fd,
                                         .is_local = config->is_local,
                                         .purpose = TSR_TO_MEET,
                                         .expected = config->size,
                                         .secret = &s->secret,
                                         .admit = admit,
                                         .user = s};
    tsr_status status = tsr__door_open(&door, &s->door);
    if (status != TSR_OK) {
        server_free(s);
        return status;
    }
    int error = pthread_create(&s->thread, NULL, server_main, s);
    if (error) {
        server_free(s);
        return tsr_fail(TSR_ENOMEM, "no thread for the rendezvous: %s", strerror(error));
    }
    *out = s;
    return TSR_OK;
}

void tsr__server_stop(struct tsr_rendezvous_server *s, double seconds)
{
    atomic_store(&s->stopped_at, tsr__now());
    atomic_store(&s->patience_s, seconds);
    atomic_store(&s->stopping, true);
    (void)pthread_join(s->thread, NULL);
    server_free(s);
}
