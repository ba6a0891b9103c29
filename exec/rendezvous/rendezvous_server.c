/* rendezvous_server.c: the connections of the rendezvous. No client can hold it up: sockets do not
 * block, and who does not introduce himself in time is turned away.
 */
#include "exec/rendezvous/rendezvous_server.h"
#include "exec/base/word.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELLO_S 5.0 /* to introduce oneself */
#define NEWS_S  1.0 /* to hear the news and leave, when rank 0 has nothing else to do */
enum { LOOK_MS = 20, STRANGERS = 64, TEXT = TSR_SERVER_TEXT };

/* ---- clients --------------------------------------------------------------------------------- */

void tsr__client_close(struct tsr_client *c)
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

void tsr__client_reply(struct tsr_client *c, tsr_status status, int64_t number, const void *value,
                       uint32_t bytes)
{
    c->waits = 0;
    put(c,
        (struct tsr_wire_frame){.op = TSR_WIRE_REPLY,
                                .status = (uint8_t)status,
                                .value_bytes = bytes,
                                .number = number},
        value);
}

void tsr__client_reply_text(struct tsr_client *c, tsr_status status, const char *text)
{
    tsr__client_reply(c, status, 0, text, (uint32_t)strlen(text));
}

void tsr__server_put_news(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    put(c,
        (struct tsr_wire_frame){.op = TSR_WIRE_NEWS,
                                .status = (uint8_t)s->news,
                                .value_bytes = (uint32_t)strlen(s->news_text)},
        s->news_text);
}

void tsr__server_spread(struct tsr_rendezvous_server *s, tsr_status status, const char *text)
{
    if (s->news != TSR_OK)
        return;
    s->news = status == TSR_OK ? TSR_EPEER : status;
    (void)snprintf(s->news_text, sizeof s->news_text, "%s", text);
    for (size_t i = 0; i < s->n_clients; i++)
        if (s->clients[i]->joined)
            tsr__server_put_news(s, s->clients[i]);
}

void tsr__client_end(struct tsr_rendezvous_server *s, struct tsr_client *c)
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
