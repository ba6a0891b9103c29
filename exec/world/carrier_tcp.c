/* carrier_tcp.c: mail over TCP. */
#include "exec/world/carriers.h"

#include "exec/base/word.h"
#include "exec/rendezvous/rendezvous_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define HELLO_S 2.0 /* for a stranger to say who he is */
#define NEWS_S  0.5 /* for the rendezvous to say why a connection ended */
enum { LOOK_MS = 20, READS = 64 };

struct peer {
    int fd; /* -1: none */
    pthread_mutex_t send_lock;
    struct tsr_mail_stream stream;
};

struct tsr_tcp {
    struct tsr_carrier *carrier;
    uint32_t rank, size, n_locks;
    int listen_fd;
    struct peer *peers;
    struct pollfd *polls;
    _Atomic bool finishing, stopping;
    bool has_thread;
    pthread_t thread;
};

/* Where a rank listens. */
struct place {
    char addr[64];
    uint32_t port;
};

/* A connection ends also when its process gives up or leaves in order. Both are told through the
 * rendezvous, by another way: that news gets a moment to arrive. */
static void lost(struct tsr_tcp *tcp, uint32_t rank)
{
    char text[128];
    double until = tsr__now() + NEWS_S;
    while (tsr__now() < until && !tsr__aborted(&tcp->carrier->abort) &&
           !atomic_load(&tcp->finishing))
        (void)poll(NULL, 0, 1);
    if (atomic_load(&tcp->finishing))
        return;
    (void)snprintf(text, sizeof text, TSR_RANK_LOST, rank);
    tsr__carrier_fail(tcp->carrier, TSR_EPEER, text, true);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends what the two vectors hold; false: not before the deadline, or the world has failed. */
static bool send_vectors(struct tsr_tcp *tcp, uint32_t to, struct iovec *v, double deadline)
{
    struct msghdr message = {.msg_iov = v, .msg_iovlen = 2};
    while (v[0].iov_len + v[1].iov_len > 0) {
        if (tsr__aborted(&tcp->carrier->abort))
            return false;
        ssize_t n = sendmsg(tcp->peers[to].fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            lost(tcp, to);
            return false;
        }
        if (n < 0) {
            struct pollfd p = {.fd = tcp->peers[to].fd, .events = POLLOUT};
            if (poll(&p, 1, tsr__poll_ms(deadline, LOOK_MS)) == 0 && tsr__now() >= deadline)
                return false;
            continue;
        }
        for (int i = 0; i < 2; i++) {
            size_t part = (size_t)n < v[i].iov_len ? (size_t)n : v[i].iov_len;
            v[i].iov_base = (char *)v[i].iov_base + part;
            v[i].iov_len -= part;
            n -= (ssize_t)part;
        }
    }
    return true;
}

bool tsr__tcp_send(struct tsr_tcp *tcp, uint32_t to, const struct tsr_mail_header *header,
                   const void *data, double deadline)
{
    struct tsr_mail_header copy = *header;
    static char nothing;
    void *bytes = &nothing; /* a vector's base is not const, though it is only read */
    if (header->bytes)
        memcpy(&bytes, &data, sizeof bytes);
    struct iovec v[2] = {{&copy, sizeof copy}, {bytes, (size_t)header->bytes}};
    (void)pthread_mutex_lock(&tcp->peers[to].send_lock);
    bool sent = send_vectors(tcp, to, v, deadline);
    (void)pthread_mutex_unlock(&tcp->peers[to].send_lock);
    return sent;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void receive(struct tsr_tcp *tcp, uint32_t from)
{
    struct peer *peer = &tcp->peers[from];
    for (int i = 0; i < READS; i++) {
        size_t room;
        void *target = tsr__mail_stream_target(&peer->stream, &room);
        ssize_t n = recv(peer->fd, target, room, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return;
        tsr_status status =
            n > 0 ? tsr__mail_stream_advance(&peer->stream, from, (size_t)n, &tcp->carrier->boxes)
                  : TSR_OK;
        if (n > 0 && status == TSR_OK)
            continue;
        if (n > 0)
            tsr__carrier_fail(tcp->carrier, status, tsr_error_text(), true);
        else
            lost(tcp, from);
        tcp->polls[from].fd = -1;
        return;
    }
}

static void *receive_main(void *arg)
{
    struct tsr_tcp *tcp = arg;
    for (uint32_t r = 0; r < tcp->size; r++)
        tcp->polls[r] = (struct pollfd){.fd = tcp->peers[r].fd, .events = POLLIN};
    while (!atomic_load(&tcp->stopping)) {
        if (poll(tcp->polls, tcp->size, LOOK_MS) <= 0)
            continue;
        for (uint32_t r = 0; r < tcp->size; r++)
            if (tcp->polls[r].fd >= 0 && tcp->polls[r].revents)
                receive(tcp, r);
    }
    return NULL;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void place_key(char *key, size_t bytes, uint32_t rank)
{
    (void)snprintf(key, bytes, "tcp/%u", rank);
}

static struct tsr_wire_hello hello_of(const struct tsr_tcp_config *config)
{
    struct tsr_wire_hello hello = {.magic = TSR_MAIL_MAGIC,
                                   .version = TSR_WIRE_VERSION,
                                   .rank = config->rank,
                                   .size = config->size};
    (void)snprintf(hello.token, sizeof hello.token, "%s", config->token);
    return hello;
}

static tsr_status connect_to(struct tsr_tcp *tcp, const struct tsr_tcp_config *config, uint32_t to,
                             double deadline)
{
    char key[32];
    struct place place;
    place_key(key, sizeof key, to);
    TSR_TRY(tsr_rendezvous_get(config->rendezvous, key, &place, sizeof place));
    place.addr[sizeof place.addr - 1] = '\0';
    tsr_status status =
        tsr__socket_connect(place.addr, (uint16_t)place.port, deadline, &tcp->peers[to].fd);
    if (status != TSR_OK)
        return tsr_fail(status, "rank %u cannot reach rank %u at %s:%u within %g s: %s", tcp->rank,
                        to, place.addr, place.port, config->timeout_s, tsr_error_text());
    struct tsr_wire_hello hello = hello_of(config);
    if (tsr__socket_send(tcp->peers[to].fd, &hello, sizeof hello, deadline))
        return TSR_OK;
    return tsr_fail(TSR_EPEER, TSR_RANK_LOST, to);
}

/* Takes one connection; who is none of the expected ranks is hung up on. */
static bool accept_one(struct tsr_tcp *tcp, const struct tsr_tcp_config *config)
{
    int fd = tsr__socket_accept(tcp->listen_fd);
    if (fd < 0)
        return false;
    struct tsr_wire_hello hello, mine = hello_of(config);
    bool fits = tsr__socket_receive(fd, &hello, sizeof hello, tsr__now() + HELLO_S) &&
                hello.magic == mine.magic && hello.version == mine.version &&
                hello.size == mine.size &&
                memcmp(hello.token, mine.token, sizeof mine.token) == 0 && hello.rank < tcp->size &&
                config->is_peer[hello.rank] && tcp->peers[hello.rank].fd < 0;
    if (fits)
        tcp->peers[hello.rank].fd = fd;
    else
        (void)close(fd);
    return fits;
}

static tsr_status accept_all(struct tsr_tcp *tcp, const struct tsr_tcp_config *config,
                             double deadline)
{
    for (uint32_t r = tcp->rank + 1; r < tcp->size; r++)
        while (config->is_peer[r] && tcp->peers[r].fd < 0) {
            struct pollfd p = {.fd = tcp->listen_fd, .events = POLLIN};
            if (accept_one(tcp, config))
                continue;
            if (tsr__now() >= deadline)
                return tsr_fail(TSR_EPEER, "rank %u did not connect to rank %u within %g s", r,
                                tcp->rank, config->timeout_s);
            TSR_TRY(tsr_rendezvous_watch(config->rendezvous, 0));
            (void)poll(&p, 1, tsr__poll_ms(deadline, LOOK_MS));
        }
    return TSR_OK;
}

static tsr_status connect_all(struct tsr_tcp *tcp, const struct tsr_tcp_config *config)
{
    double deadline = tsr__now() + config->timeout_s;
    char key[32];
    struct place place = {.addr = ""};
    TSR_TRY(tsr__socket_listen(0, &tcp->listen_fd));
    (void)snprintf(place.addr, sizeof place.addr, "%.63s",
                   tsr_rendezvous_local_address(config->rendezvous));
    place.port = tsr__socket_port(tcp->listen_fd);
    place_key(key, sizeof key, tcp->rank);
    TSR_TRY(tsr_rendezvous_set(config->rendezvous, key, &place, sizeof place));
    for (uint32_t r = 0; r < tcp->rank;
         r++) /* the backlog takes them: nobody waits for an accept */
        if (config->is_peer[r])
            TSR_TRY(connect_to(tcp, config, r, deadline));
    return accept_all(tcp, config, deadline);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static tsr_status start(struct tsr_tcp *tcp, const struct tsr_tcp_config *config)
{
    tcp->peers = calloc(tcp->size, sizeof *tcp->peers);
    tcp->polls = calloc(tcp->size, sizeof *tcp->polls);
    if (!tcp->peers || !tcp->polls)
        return tsr_no_memory("connections");
    for (; tcp->n_locks < tcp->size; tcp->n_locks++) {
        tcp->peers[tcp->n_locks].fd = -1;
        (void)pthread_mutex_init(&tcp->peers[tcp->n_locks].send_lock, NULL);
    }
    TSR_TRY(connect_all(tcp, config));
    int error = pthread_create(&tcp->thread, NULL, receive_main, tcp);
    if (error)
        return tsr_fail(TSR_ENOMEM, "no thread that receives: %s", strerror(error));
    tcp->has_thread = true;
    return TSR_OK;
}

tsr_status tsr__tcp_open(const struct tsr_tcp_config *config, struct tsr_tcp **out)
{
    struct tsr_tcp *tcp = calloc(1, sizeof *tcp);
    *out = NULL;
    if (!tcp)
        return tsr_no_memory("connections");
    tcp->carrier = config->carrier;
    tcp->rank = config->rank;
    tcp->size = config->size;
    tcp->listen_fd = -1;
    tsr_status status = start(tcp, config);
    if (status == TSR_OK) {
        *out = tcp;
        return TSR_OK;
    }
    char text[512];
    (void)snprintf(text, sizeof text, "%s", tsr_error_text());
    tsr__tcp_close(tcp);
    return tsr_fail(status, "%s", text);
}

void tsr__tcp_finish(struct tsr_tcp *tcp)
{
    atomic_store(&tcp->finishing, true);
}

void tsr__tcp_close(struct tsr_tcp *tcp)
{
    if (!tcp)
        return;
    atomic_store(&tcp->stopping, true);
    if (tcp->has_thread)
        (void)pthread_join(tcp->thread, NULL);
    for (uint32_t r = 0; r < tcp->n_locks; r++) {
        if (tcp->peers[r].fd >= 0)
            (void)close(tcp->peers[r].fd);
        tsr__mail_stream_fini(&tcp->peers[r].stream);
        (void)pthread_mutex_destroy(&tcp->peers[r].send_lock);
    }
    if (tcp->listen_fd >= 0)
        (void)close(tcp->listen_fd);
    free(tcp->peers);
    free(tcp->polls);
    free(tcp);
}
