/* rendezvous_server.c: the thread of rank 0 that knows all ranks: their connections, and what their
 * requests do. No client can hold it up: sockets do not block, and who does not introduce himself
 * in time is turned away.
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

enum { TEXT = 512 };

struct tsr_client {
    int fd; /* -1: closed */
    bool joined, left;
    uint32_t rank;
    struct tsr_wire_buffer in, out;
    double deadline; /* of the hello, then of the request that waits */
    uint8_t waits;   /* TSR_WIRE_GET, TSR_WIRE_BARRIER; else 0 */
    int64_t wait_ms;
    char key[TSR_WIRE_KEY + 1];
};

struct tsr_store_entry {
    char *key;
    void *value; /* NULL: not set */
    uint32_t bytes;
    int64_t number;
};

struct tsr_rendezvous_server {
    pthread_t thread;
    _Atomic bool stopping;
    _Atomic double stopped_at, patience_s;
    int listen_fd;
    uint32_t size, n_joined;
    char token[TSR_RENDEZVOUS_TOKEN];
    size_t n_clients, clients_cap, n_entries, entries_cap;
    struct tsr_client **clients;
    struct tsr_store_entry *entries;
    struct pollfd *polls; /* [n_clients + 1] */
    size_t polls_cap;
    tsr_status news; /* the end of the job, as told to all; OK: none */
    char news_text[TEXT];
};

/* Does what the bytes that have arrived ask for. */
static void tsr__server_take(struct tsr_rendezvous_server *s, struct tsr_client *c);
/* Ends what has waited too long. */
static void tsr__server_check_deadlines(struct tsr_rendezvous_server *s);

#define HELLO_S 5.0 /* to introduce oneself */
#define NEWS_S  1.0 /* to hear the news and leave, when rank 0 has nothing else to do */
enum { LOOK_MS = 20, STRANGERS = 64 };

/* ---- clients --------------------------------------------------------------------------------- */

/* Closes the connection; the rank stays known. */
static void tsr__client_close(struct tsr_client *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
    c->waits = 0;
    c->out.n = 0;
}

static void put(struct tsr_client *c, struct tsr_wire_frame frame, const void *value)
{
    if (c->fd >= 0 && !tsr__wire_put(&c->out, frame, "", value))
        tsr__client_close(c);
}

static void tsr__client_reply(struct tsr_client *c, tsr_status status, int64_t number,
                              const void *value, uint32_t bytes)
{
    c->waits = 0;
    put(c,
        (struct tsr_wire_frame){.op = TSR_WIRE_REPLY,
                                .status = (uint8_t)status,
                                .value_bytes = bytes,
                                .number = number},
        value);
}

static void tsr__client_reply_text(struct tsr_client *c, tsr_status status, const char *text)
{
    tsr__client_reply(c, status, 0, text, (uint32_t)strlen(text));
}

static void tsr__server_put_news(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    put(c,
        (struct tsr_wire_frame){.op = TSR_WIRE_NEWS,
                                .status = (uint8_t)s->news,
                                .value_bytes = (uint32_t)strlen(s->news_text)},
        s->news_text);
}

/* The end of the job, to all ranks. Only the first counts; who joins later hears it, too. */
static void tsr__server_spread(struct tsr_rendezvous_server *s, tsr_status status, const char *text)
{
    if (s->news != TSR_OK)
        return;
    s->news = status == TSR_OK ? TSR_EPEER : status;
    (void)snprintf(s->news_text, sizeof s->news_text, "%s", text);
    for (size_t i = 0; i < s->n_clients; i++)
        if (s->clients[i]->joined)
            tsr__server_put_news(s, s->clients[i]);
}

/* The connection is at its end, for whatever reason: of a rank that has not said goodbye, a loss.
 */
static void tsr__client_end(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    char text[TEXT];
    tsr__client_close(c);
    if (!c->joined || c->left)
        return;
    (void)snprintf(text, sizeof text, TSR_RANK_LOST, c->rank);
    tsr__server_spread(s, TSR_EPEER, text);
}

static void accept_clients(struct tsr_rendezvous_server *s)
{
    for (;;) {
        int fd = tsr__socket_accept(s->listen_fd);
        if (fd < 0)
            return;
        size_t strangers = 0;
        for (size_t i = 0; i < s->n_clients; i++)
            strangers += !s->clients[i]->joined && s->clients[i]->fd >= 0;
        struct tsr_client *c = strangers < s->size + STRANGERS ? calloc(1, sizeof *c) : NULL;
        if (!c || !TSR_PUSH(s->clients, s->n_clients, s->clients_cap, c)) {
            free(c);
            (void)close(fd);
            continue;
        }
        c->fd = fd;
        c->deadline = tsr__now() + HELLO_S;
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void client_read(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    char chunk[16384];
    for (int i = 0; i < 64 && c->fd >= 0; i++) {
        ssize_t n = recv(c->fd, chunk, sizeof chunk, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return;
        if (n <= 0 || !tsr__wire_append(&c->in, chunk, (size_t)n)) {
            tsr__client_end(s, c);
            return;
        }
        tsr__server_take(s, c);
    }
}

static void client_write(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    if (c->fd < 0 || c->out.n == 0)
        return;
    ssize_t n = send(c->fd, c->out.data, c->out.n, MSG_NOSIGNAL);
    if (n > 0)
        tsr__wire_drop(&c->out, (size_t)n);
    else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        tsr__client_end(s, c);
    if (c->out.n == 0 && !c->joined && c->left) /* was turned away */
        tsr__client_close(c);
}

/* Forgets strangers who have gone. Ranks stay known. */
static void forget(struct tsr_rendezvous_server *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_clients; i++) {
        struct tsr_client *c = s->clients[i];
        if (c->joined || c->fd >= 0) {
            s->clients[n++] = c;
            continue;
        }
        free(c->in.data);
        free(c->out.data);
        free(c);
    }
    s->n_clients = n;
}

static bool is_over(const struct tsr_rendezvous_server *s)
{
    if (!atomic_load(&s->stopping))
        return false;
    double patience = atomic_load(&s->patience_s);
    if (s->news != TSR_OK && patience > NEWS_S) /* they have heard it by then */
        patience = NEWS_S;
    for (size_t i = 0; i < s->n_clients; i++)
        if (s->clients[i]->joined && s->clients[i]->fd >= 0)
            return tsr__now() - atomic_load(&s->stopped_at) > patience;
    return true;
}

static bool poll_all(struct tsr_rendezvous_server *s)
{
    if (s->n_clients + 1 > s->polls_cap) {
        size_t cap = (s->n_clients + 1) * 2;
        struct pollfd *grown = realloc(s->polls, cap * sizeof *grown);
        if (!grown)
            return false;
        s->polls = grown;
        s->polls_cap = cap;
    }
    s->polls[0] = (struct pollfd){.fd = s->listen_fd, .events = POLLIN};
    for (size_t i = 0; i < s->n_clients; i++) {
        const struct tsr_client *c = s->clients[i];
        s->polls[i + 1] =
            (struct pollfd){.fd = c->fd, .events = (short)(c->out.n ? POLLIN | POLLOUT : POLLIN)};
    }
    return poll(s->polls, s->n_clients + 1, LOOK_MS) > 0;
}

static void *server_main(void *arg)
{
    struct tsr_rendezvous_server *s = arg;
    while (!is_over(s)) {
        size_t n = s->n_clients;
        bool any = poll_all(s);
        for (size_t i = 0; any && i < n; i++)
            if (s->polls[i + 1].revents && s->clients[i]->fd >= 0)
                client_read(s, s->clients[i]);
        if (any && s->polls[0].revents)
            accept_clients(s);
        tsr__server_check_deadlines(s);
        for (size_t i = 0; i < s->n_clients; i++)
            client_write(s, s->clients[i]);
        forget(s);
    }
    return NULL;
}

static void server_free(struct tsr_rendezvous_server *s)
{
    for (size_t i = 0; i < s->n_clients; i++) {
        tsr__client_close(s->clients[i]);
        free(s->clients[i]->in.data);
        free(s->clients[i]->out.data);
        free(s->clients[i]);
    }
    for (size_t i = 0; i < s->n_entries; i++) {
        free(s->entries[i].key);
        free(s->entries[i].value);
    }
    free(s->clients);
    free(s->entries);
    free(s->polls);
    (void)close(s->listen_fd);
    free(s);
}

tsr_status tsr__server_start(int listen_fd, uint32_t size, const char *token,
                             struct tsr_rendezvous_server **out)
{
    struct tsr_rendezvous_server *s = calloc(1, sizeof *s);
    if (!s) {
        (void)close(listen_fd);
        return tsr_no_memory("the rendezvous");
    }
    s->listen_fd = listen_fd;
    s->size = size;
    (void)snprintf(s->token, sizeof s->token, "%s", token);
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

enum { NAMED_RANKS = 8 };

/* ---- hello ----------------------------------------------------------------------------------- */

static bool is_taken(const struct tsr_rendezvous_server *s, uint32_t rank)
{
    for (size_t i = 0; i < s->n_clients; i++)
        if (s->clients[i]->joined && s->clients[i]->rank == rank)
            return true;
    return false;
}

/* True, or a text for the one who is turned away. */
static bool may_join(const struct tsr_rendezvous_server *s, const struct tsr_wire_hello *hello,
                     char *text)
{
    if (hello->version != TSR_WIRE_VERSION)
        (void)snprintf(text, TEXT, "rank 0 speaks version %d of the rendezvous, this program %u",
                       TSR_WIRE_VERSION, hello->version);
    else if (memcmp(hello->token, s->token, sizeof s->token) != 0)
        (void)snprintf(text, TEXT, "rank 0 is of another job: its TSR_TOKEN is not this one's");
    else if (hello->size != s->size)
        (void)snprintf(text, TEXT, "rank %u has %u ranks in its job, rank 0 has %u", hello->rank,
                       hello->size, s->size);
    else if (hello->rank >= s->size)
        (void)snprintf(text, TEXT, "rank %u joins; allowed: 0 to %u", hello->rank, s->size - 1);
    else if (is_taken(s, hello->rank))
        (void)snprintf(text, TEXT, "two processes say that they are rank %u", hello->rank);
    else
        return true;
    return false;
}

/* False: the connection was closed, or more bytes are needed. */
static bool take_hello(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    struct tsr_wire_hello hello;
    char text[TEXT] = "";
    uint32_t magic = 0;
    if (c->in.n >= sizeof magic)
        memcpy(&magic, c->in.data, sizeof magic);
    if (c->in.n >= sizeof magic && magic != TSR_WIRE_MAGIC)
        tsr__client_close(c);
    if (c->fd < 0 || c->in.n < sizeof hello)
        return false;
    memcpy(&hello, c->in.data, sizeof hello);
    tsr__wire_drop(&c->in, sizeof hello);
    if (!may_join(s, &hello, text)) {
        tsr__client_reply_text(c, TSR_ECONFIG, text);
        c->left = true; /* closed when this is on its way, or when it has taken too long */
        return false;
    }
    c->joined = true;
    c->rank = hello.rank;
    s->n_joined++;
    tsr__client_reply_text(c, TSR_OK, "");
    if (s->news != TSR_OK)
        tsr__server_put_news(s, c);
    return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct tsr_store_entry *entry_of(struct tsr_rendezvous_server *s, const char *key)
{
    for (size_t i = 0; i < s->n_entries; i++)
        if (strcmp(s->entries[i].key, key) == 0)
            return &s->entries[i];
    struct tsr_store_entry e = {.key = malloc(strlen(key) + 1)};
    if (!e.key)
        return NULL;
    (void)strcpy(e.key, key);
    if (TSR_PUSH(s->entries, s->n_entries, s->entries_cap, e))
        return &s->entries[s->n_entries - 1];
    free(e.key);
    return NULL;
}

static void set(struct tsr_rendezvous_server *s, struct tsr_client *c, struct tsr_store_entry *e,
                const void *value, uint32_t bytes)
{
    void *copy = malloc(bytes + 1u);
    if (!copy) {
        tsr__client_reply_text(c, TSR_ENOMEM, "rank 0 has no memory left");
        return;
    }
    memcpy(copy, value, bytes);
    free(e->value);
    e->value = copy;
    e->bytes = bytes;
    tsr__client_reply_text(c, TSR_OK, "");
    for (size_t i = 0; i < s->n_clients; i++) {
        struct tsr_client *other = s->clients[i];
        if (other->waits == TSR_WIRE_GET && strcmp(other->key, e->key) == 0)
            tsr__client_reply(other, TSR_OK, 0, e->value, e->bytes);
    }
}

static void start_waiting(struct tsr_client *c, const struct tsr_wire_frame *frame, const char *key)
{
    c->waits = frame->op;
    c->wait_ms = frame->number;
    c->deadline = tsr__now() + (double)frame->number * 1e-3;
    (void)snprintf(c->key, sizeof c->key, "%s", key);
}

static bool is_in_barrier(const struct tsr_client *c, const char *name)
{
    return c->waits == TSR_WIRE_BARRIER && strcmp(c->key, name) == 0;
}

static void open_barrier(struct tsr_rendezvous_server *s, const char *name)
{
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_clients; i++)
        n += is_in_barrier(s->clients[i], name);
    for (size_t i = 0; n == s->size && i < s->n_clients; i++)
        if (is_in_barrier(s->clients[i], name))
            tsr__client_reply_text(s->clients[i], TSR_OK, "");
}

static void take_frame(struct tsr_rendezvous_server *s, struct tsr_client *c,
                       const struct tsr_wire_frame *frame, const char *key, const char *value)
{
    struct tsr_store_entry *e = NULL;
    if (frame->op == TSR_WIRE_SET || frame->op == TSR_WIRE_GET || frame->op == TSR_WIRE_ADD) {
        e = entry_of(s, key);
        if (!e) {
            tsr__client_reply_text(c, TSR_ENOMEM, "rank 0 has no memory left");
            return;
        }
    }
    switch (frame->op) {
    case TSR_WIRE_SET:
        set(s, c, e, value, frame->value_bytes);
        break;
    case TSR_WIRE_ADD:
        e->number = (int64_t)((uint64_t)e->number + (uint64_t)frame->number);
        tsr__client_reply(c, TSR_OK, e->number, NULL, 0);
        break;
    case TSR_WIRE_GET:
        if (e->value)
            tsr__client_reply(c, TSR_OK, 0, e->value, e->bytes);
        else
            start_waiting(c, frame, key);
        break;
    case TSR_WIRE_BARRIER:
        start_waiting(c, frame, key);
        open_barrier(s, c->key);
        break;
    case TSR_WIRE_NEWS: {
        char text[TEXT];
        (void)snprintf(text, sizeof text, "%.*s", (int)frame->value_bytes, value);
        tsr__server_spread(s, frame->status <= TSR_EPEER ? (tsr_status)frame->status : TSR_EPEER,
                           text);
        break;
    }
    case TSR_WIRE_BYE:
        c->left = true;
        tsr__client_close(c);
        break;
    default:
        tsr__client_end(s, c);
    }
}

static void tsr__server_take(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    if (!c->joined && !take_hello(s, c))
        return;
    struct tsr_wire_frame frame;
    long bytes;
    while (c->fd >= 0 && (bytes = tsr__wire_complete(&c->in, &frame)) != 0) {
        char key[TSR_WIRE_KEY + 1];
        if (bytes < 0) {
            tsr__client_end(s, c);
            return;
        }
        const char *at = c->in.data + sizeof frame;
        memcpy(key, at, frame.key_bytes);
        key[frame.key_bytes] = '\0';
        take_frame(s, c, &frame, key, at + frame.key_bytes);
        tsr__wire_drop(&c->in, (size_t)bytes);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

/* "rank 3", "ranks 3, 5 and 7 more": who is not in the barrier. */
static void name_missing(const struct tsr_rendezvous_server *s, const char *barrier, char *text)
{
    uint32_t n = 0, named = 0;
    size_t at = 0;
    char ranks[TEXT / 2] = "";
    for (uint32_t r = 0; r < s->size; r++) {
        bool is_there = false;
        for (size_t i = 0; i < s->n_clients && !is_there; i++)
            is_there = s->clients[i]->joined && s->clients[i]->rank == r &&
                       is_in_barrier(s->clients[i], barrier);
        if (is_there || n++ >= NAMED_RANKS)
            continue;
        at += (size_t)snprintf(ranks + at, sizeof ranks - at, "%s%u", named++ ? ", " : "", r);
    }
    if (n > named)
        (void)snprintf(text, TEXT, "ranks %s and %u more", ranks, n - named);
    else
        (void)snprintf(text, TEXT, "rank%s %s", n > 1 ? "s" : "", ranks);
}

static void time_out(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    char text[TEXT * 2], missing[TEXT];
    double seconds = (double)c->wait_ms * 1e-3;
    if (c->waits == TSR_WIRE_GET) {
        (void)snprintf(text, sizeof text, "nobody set '%s' within %g s", c->key, seconds);
        tsr__client_reply_text(c, TSR_EPEER, text);
        return;
    }
    char name[sizeof c->key];
    memcpy(name, c->key, sizeof name);
    name_missing(s, name, missing);
    if (name[0])
        (void)snprintf(text, sizeof text, "%s did not come to the barrier '%s' within %g s",
                       missing, name, seconds);
    else
        (void)snprintf(text, sizeof text, "%s did not join within %g s", missing, seconds);
    tsr__server_spread(s, TSR_EPEER, text);
    for (size_t i = 0; i < s->n_clients; i++)
        if (is_in_barrier(s->clients[i], name))
            s->clients[i]->waits = 0; /* the news is the answer */
}

static void tsr__server_check_deadlines(struct tsr_rendezvous_server *s)
{
    double now = tsr__now();
    for (size_t i = 0; i < s->n_clients; i++) {
        struct tsr_client *c = s->clients[i];
        if (c->fd < 0 || now < c->deadline)
            continue;
        if (!c->joined)
            tsr__client_close(c);
        else if (c->waits)
            time_out(s, c);
    }
}
