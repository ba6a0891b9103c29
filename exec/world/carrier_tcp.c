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

#define NEWS_S 0.5 /* for the rendezvous to say why a connection ended */
#define TELL_S 1.0 /* to tell a peer that the job is over */
enum { LOOK_MS = 20, READS = 64, RETRY_MS = 30 };

struct peer {
    int fd; /* -1: none */
    pthread_mutex_t send_lock;
    struct tsr_mail_stream stream;
};

struct tsr_tcp {
    struct tsr_carrier *carrier;
    const struct tsr_tcp_config *config; /* while it is opened */
    uint32_t rank, size, n_locks;
    bool watches; /* and carries no mail */
    struct tsr_door *door;
    struct peer *peers;
    struct pollfd *polls;
    size_t n_polls;
    _Atomic bool finishing, stopping;
    bool has_thread;
    pthread_t thread;
};

/* Where a rank listens. */
struct place {
    char addr[256];
    uint32_t port;
};

/* A connection ends also when its process gives up or leaves in order. Both are told by another
 * way: that news gets a moment to arrive. (Where connections only watch, it came on this one.) */
static void lost(struct tsr_tcp *tcp, uint32_t rank)
{
    char text[128];
    double until = tsr__now() + (tcp->watches ? 0 : NEWS_S);
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
        if (!tcp->watches && tsr__aborted(&tcp->carrier->abort))
            return false;
        ssize_t n = sendmsg(tcp->peers[to].fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            if (!tcp->watches) /* or its own thread says it */
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
    char nothing = 0;
    void *bytes = &nothing; /* a vector's base is not const, though it is only read */
    if (header->bytes)
        memcpy(&bytes, &data, sizeof bytes);
    struct iovec v[2] = {{&copy, sizeof copy}, {bytes, (size_t)header->bytes}};
    (void)pthread_mutex_lock(&tcp->peers[to].send_lock);
    bool sent = send_vectors(tcp, to, v, deadline);
    (void)pthread_mutex_unlock(&tcp->peers[to].send_lock);
    return sent;
}

void tsr__tcp_tell(struct tsr_tcp *tcp, tsr_status status, const char *text)
{
    const struct tsr_mail_header news = {.magic = TSR_NEWS_MAGIC,
                                         .from = tcp->rank,
                                         .index = (uint32_t)status,
                                         .bytes = strlen(text)};
    double deadline = tsr__now() + TELL_S;
    for (uint32_t r = 0; r < tcp->size; r++)
        if (tcp->peers[r].fd >= 0)
            (void)tsr__tcp_send(tcp, r, &news, text, deadline);
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

/* To where a rank listens. Who hangs up without a word is too busy with others: try again. */
static tsr_status connect_to(struct tsr_tcp *tcp, uint32_t to, const struct place *place,
                             double deadline)
{
    const struct tsr_tcp_config *config = tcp->config;
    const struct tsr_guest_ticket ticket = {config->to, tcp->rank, tcp->size, to,
                                            tsr_rendezvous_secret(config->rendezvous)};
    int *fd = &tcp->peers[to].fd;
    for (;;) {
        tsr_status status = tsr__socket_connect(place->addr, (uint16_t)place->port, deadline, fd);
        if (status != TSR_OK)
            return tsr_fail(status, "rank %u cannot reach rank %u at %s:%u within %g s: %s",
                            tcp->rank, to, place->addr, place->port, config->timeout_s,
                            tsr_error_text());
        enum tsr_welcome welcome = tsr__handshake(*fd, &ticket, deadline);
        if (welcome == TSR_WELCOME)
            return TSR_OK;
        (void)close(*fd);
        *fd = -1;
        if (welcome == TSR_WELCOME_REFUSED)
            return tsr_fail(TSR_EPEER, "rank %u at %s:%u: %s", to, place->addr, place->port,
                            tsr_error_text());
        if (tsr__now() >= deadline)
            return tsr_fail(TSR_EPEER, "what listens at %s:%u is not rank %u, or is stuck",
                            place->addr, place->port, to);
        TSR_TRY(tsr_rendezvous_watch(config->rendezvous, 0));
        (void)poll(NULL, 0, tsr__poll_ms(deadline, RETRY_MS));
    }
}

static bool is_expected(const struct tsr_tcp *tcp, uint32_t rank)
{
    return rank > tcp->rank && rank < tcp->size && tcp->config->is_peer[rank];
}

static bool admit(void *user, const struct tsr_hello *hello, int fd, char *text)
{
    struct tsr_tcp *tcp = user;
    bool fits =
        hello->size == tcp->size && is_expected(tcp, hello->rank) && tcp->peers[hello->rank].fd < 0;
    if (fits)
        tcp->peers[hello->rank].fd = fd;
    else
        (void)snprintf(text, TSR_VERDICT_TEXT, "rank %u of %u connects, whom nobody expects",
                       hello->rank, hello->size);
    return fits;
}

/* Room for the strangers, too, of whom there may be more each time. */
static bool poll_door(struct tsr_tcp *tcp, double deadline)
{
    size_t wanted = tsr__door_polls(tcp->door, tcp->polls, tcp->n_polls);
    if (wanted > tcp->n_polls) {
        struct pollfd *grown = realloc(tcp->polls, wanted * sizeof *grown);
        if (!grown)
            return false;
        tcp->polls = grown;
        tcp->n_polls = tsr__door_polls(tcp->door, grown, wanted);
    }
    if (poll(tcp->polls, wanted, tsr__poll_ms(deadline, LOOK_MS)) >= 0)
        tsr__door_work(tcp->door, tcp->polls);
    return true;
}

static tsr_status accept_all(struct tsr_tcp *tcp, double deadline)
{
    for (uint32_t r = tcp->rank + 1; r < tcp->size; r++)
        while (is_expected(tcp, r) && tcp->peers[r].fd < 0) {
            if (tsr__now() >= deadline)
                return tsr_fail(TSR_EPEER, "rank %u did not connect to rank %u within %g s", r,
                                tcp->rank, tcp->config->timeout_s);
            TSR_TRY(tsr_rendezvous_watch(tcp->config->rendezvous, 0));
            if (!poll_door(tcp, deadline))
                return tsr_no_memory("connections");
        }
    return TSR_OK;
}

/* A door of this rank; *place says where. */
static tsr_status listen_for_peers(struct tsr_tcp *tcp, struct place *place)
{
    const struct tsr_tcp_config *config = tcp->config;
    const char *at =
        config->bind[0] ? config->bind : tsr_rendezvous_local_address(config->rendezvous);
    const char *reached =
        tsr__socket_is_everywhere(at) ? tsr_rendezvous_local_address(config->rendezvous) : at;
    struct tsr_door_config door = {.purpose = config->to,
                                   .rank = tcp->rank,
                                   .expected = tcp->size,
                                   .secret = tsr_rendezvous_secret(config->rendezvous),
                                   .admit = admit,
                                   .user = tcp};
    TSR_TRY(tsr__socket_listen(at, 0, &door.listen_fd));
    (void)snprintf(place->addr, sizeof place->addr, "%s", reached);
    place->port = tsr__socket_port(door.listen_fd);
    return tsr__door_open(&door, &tcp->door);
}

static tsr_status connect_all(struct tsr_tcp *tcp, struct place *places)
{
    const struct tsr_tcp_config *config = tcp->config;
    double deadline = tsr__now() + config->timeout_s;
    struct place mine = {.addr = ""};
    TSR_TRY(listen_for_peers(tcp, &mine));
    TSR_TRY(tsr_rendezvous_gather(config->rendezvous,
                                  config->to == TSR_TO_WATCH ? "places to watch" : "places", &mine,
                                  sizeof mine, places));
    for (uint32_t r = 0; r < tcp->rank; r++) { /* rank 0 waits for all, and so on: no circle */
        places[r].addr[sizeof places[r].addr - 1] = '\0';
        tsr__plain_text(places[r].addr);
        if (config->is_peer[r])
            TSR_TRY(connect_to(tcp, r, &places[r], deadline));
    }
    return accept_all(tcp, deadline);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static tsr_status start(struct tsr_tcp *tcp)
{
    tcp->peers = calloc(tcp->size, sizeof *tcp->peers);
    tcp->polls = calloc(tcp->size, sizeof *tcp->polls);
    tcp->n_polls = tcp->size;
    if (!tcp->peers || !tcp->polls)
        return tsr_no_memory("connections");
    for (; tcp->n_locks < tcp->size; tcp->n_locks++) {
        tcp->peers[tcp->n_locks].fd = -1;
        (void)pthread_mutex_init(&tcp->peers[tcp->n_locks].send_lock, NULL);
    }
    struct place *places = calloc(tcp->size, sizeof *places);
    tsr_status status = places ? connect_all(tcp, places) : tsr_no_memory("connections");
    free(places);
    tsr__door_close(tcp->door); /* nobody else is expected */
    tcp->door = NULL;
    if (status != TSR_OK)
        return status;
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
    tcp->config = config;
    tcp->watches = config->to == TSR_TO_WATCH;
    tsr_status status = start(tcp);
    tcp->config = NULL;
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
    free(tcp->peers);
    free(tcp->polls);
    free(tcp);
}
