/* rendezvous_meet.c: a rank's end of our own rendezvous. */
#include "exec/rendezvous/rendezvous_impl.h"

#include "exec/base/word.h"
#include "exec/rendezvous/rendezvous_wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How late the server's answer may be, and how long it stays after a failure. */
#define GRACE_S 1.0
enum { RETRY_MS = 30, NAME = 64 };

struct meeting {
    struct tsr_rendezvous base;
    int fd;
    struct tsr_rendezvous_server *server; /* rank 0 */
    pthread_mutex_t send_lock;
    struct tsr_wire_buffer in;
    tsr_status news; /* OK, or how the job ended */
    char news_text[512];
    char where[320]; /* "host:port" */
};

/* ---- frames in and out ----------------------------------------------------------------------- */

static tsr_status end(struct meeting *m, tsr_status status, const char *text)
{
    if (m->news == TSR_OK) {
        m->news = status == TSR_OK ? TSR_EPEER : status;
        (void)snprintf(m->news_text, sizeof m->news_text, "%s", text);
    }
    return tsr_fail(m->news, "%s", m->news_text);
}

static tsr_status lost_rank_0(struct meeting *m)
{
    char text[128];
    (void)snprintf(text, sizeof text, TSR_RANK_LOST, 0u);
    return end(m, TSR_EPEER, text);
}

static bool send_frame(struct meeting *m, struct tsr_wire_frame frame, const char *key,
                       const void *value)
{
    struct tsr_wire_buffer out = {0};
    bool sent = tsr__wire_put(&out, frame, key, value);
    (void)pthread_mutex_lock(&m->send_lock);
    sent = sent && tsr__socket_send(m->fd, out.data, out.n, tsr__now() + m->base.timeout_s);
    (void)pthread_mutex_unlock(&m->send_lock);
    free(out.data);
    return sent;
}

/* Reads what is there, waiting at most until the deadline for the first of it. *got: a frame, whose
 * bytes stay in m->in until drop_frame(). TSR_OK without one: the deadline passed. */
static tsr_status read_frame(struct meeting *m, double deadline, struct tsr_wire_frame *frame,
                             bool *got)
{
    for (;;) {
        long bytes = tsr__wire_complete(&m->in, frame);
        *got = bytes > 0;
        if (bytes < 0)
            return end(m, TSR_EPEER, "what rank 0 says cannot be understood");
        if (*got)
            return TSR_OK;
        char chunk[16384];
        ssize_t n = recv(m->fd, chunk, sizeof chunk, 0);
        if (n > 0 && !tsr__wire_append(&m->in, chunk, (size_t)n))
            return tsr_no_memory(NULL);
        if (n > 0)
            continue;
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return lost_rank_0(m);
        if (tsr__now() >= deadline)
            return TSR_OK;
        struct pollfd p = {.fd = m->fd, .events = POLLIN};
        (void)poll(&p, 1, tsr__poll_ms(deadline, 1000));
    }
}

static const char *frame_value(const struct meeting *m, const struct tsr_wire_frame *frame)
{
    return m->in.data + sizeof *frame + frame->key_bytes;
}

static void drop_frame(struct meeting *m, const struct tsr_wire_frame *frame)
{
    tsr__wire_drop(&m->in, sizeof *frame + frame->key_bytes + frame->value_bytes);
}

static tsr_status frame_status(struct meeting *m, const struct tsr_wire_frame *frame)
{
    char text[512];
    tsr_status status = frame->status <= TSR_EPEER ? (tsr_status)frame->status : TSR_EPEER;
    if (frame->op == TSR_WIRE_REPLY && status == TSR_OK)
        return TSR_OK;
    (void)snprintf(text, sizeof text, "%.*s", (int)frame->value_bytes, frame_value(m, frame));
    tsr__plain_text(text);
    return frame->op == TSR_WIRE_NEWS ? end(m, status, text) : tsr_fail(status, "%s", text);
}

/* Waits for the answer to a request. On success its frame is still in the buffer. */
static tsr_status await(struct meeting *m, struct tsr_wire_frame *frame)
{
    double deadline = tsr__now() + m->base.timeout_s + GRACE_S;
    for (;;) {
        bool got;
        TSR_TRY(read_frame(m, deadline, frame, &got));
        if (!got)
            return end(m, TSR_EPEER, "rank 0 did not answer in time");
        tsr_status status = frame_status(m, frame);
        if (status != TSR_OK)
            drop_frame(m, frame);
        if (status != TSR_OK || frame->op == TSR_WIRE_REPLY)
            return status;
        drop_frame(m, frame);
    }
}

/* ---- what ranks do with it ------------------------------------------------------------------- */

static tsr_status meet_gather(struct tsr_rendezvous *r, const char *name, const void *in,
                              size_t bytes, void *out)
{
    struct meeting *m = (struct meeting *)r;
    struct tsr_wire_frame frame = {.op = TSR_WIRE_GATHER,
                                   .value_bytes = (uint32_t)bytes,
                                   .number = (int64_t)(r->timeout_s * 1e3)};
    if (m->news != TSR_OK)
        return tsr_fail(m->news, "%s", m->news_text);
    if (!send_frame(m, frame, name, in))
        return lost_rank_0(m);
    TSR_TRY(await(m, &frame));
    bool fits = frame.value_bytes == bytes * r->size;
    if (fits && bytes)
        memcpy(out, frame_value(m, &frame), frame.value_bytes);
    drop_frame(m, &frame);
    return fits ? TSR_OK : end(m, TSR_EPEER, "what rank 0 says cannot be understood");
}

static void meet_tell(struct tsr_rendezvous *r, tsr_status status, const char *text)
{
    struct meeting *m = (struct meeting *)r;
    size_t bytes = strlen(text);
    (void)send_frame(m,
                     (struct tsr_wire_frame){
                         .op = TSR_WIRE_NEWS,
                         .status = (uint8_t)status,
                         .value_bytes = (uint32_t)tsr_min_u64(bytes, sizeof m->news_text - 1)},
                     "", text);
}

static tsr_status meet_watch(struct tsr_rendezvous *r, double seconds)
{
    struct meeting *m = (struct meeting *)r;
    struct tsr_wire_frame frame;
    bool got;
    if (m->news != TSR_OK)
        return tsr_fail(m->news, "%s", m->news_text);
    TSR_TRY(read_frame(m, tsr__now() + seconds, &frame, &got));
    if (!got)
        return TSR_OK;
    tsr_status status = frame.op == TSR_WIRE_NEWS ? frame_status(m, &frame) : TSR_OK;
    drop_frame(m, &frame);
    return status;
}

static void meet_close(struct tsr_rendezvous *r)
{
    struct meeting *m = (struct meeting *)r;
    if (m->fd >= 0) {
        (void)send_frame(m, (struct tsr_wire_frame){.op = TSR_WIRE_BYE}, "", NULL);
        (void)close(m->fd);
    }
    if (m->server)
        tsr__server_stop(m->server, m->news == TSR_OK ? r->timeout_s : GRACE_S);
    (void)pthread_mutex_destroy(&m->send_lock);
    free(m->in.data);
    free(m);
}

static const struct tsr_rendezvous_ops meet_ops = {
    .gather = meet_gather, .tell = meet_tell, .watch = meet_watch, .close = meet_close};

/* ---- joining --------------------------------------------------------------------------------- */

/* Without a secret ranks meet where the kernel says whose processes they are. */
static bool is_local(const struct tsr_rendezvous_config *config)
{
    return config->token[0] == '\0';
}

static void local_name(char name[NAME], const struct tsr_rendezvous_config *config)
{
    (void)snprintf(name, NAME, "tessera/%u/%u", (unsigned)getuid(), config->port);
}

static tsr_status connect_once(struct meeting *m, const struct tsr_rendezvous_config *config,
                               double deadline)
{
    char name[NAME];
    local_name(name, config);
    bool local = is_local(config);
    tsr_status status = local ? tsr__socket_connect_local(name, deadline, &m->fd)
                              : tsr__socket_connect(config->addr, config->port, deadline, &m->fd);
    if (status != TSR_OK)
        return tsr_fail(status, "rank %u cannot reach rank 0 at %s within %g s: %s%s", config->rank,
                        m->where, config->timeout_s, tsr_error_text(),
                        tsr__socket_is_loopback(config->addr)
                            ? " (TSR_TOKEN must be set on all ranks, or on none)"
                            : "");
    if (!local || tsr__socket_is_mine(m->fd))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "what listens at %s is another user's process; TSR_PORT sets another port",
                    m->where);
}

static tsr_status join(struct meeting *m, const struct tsr_rendezvous_config *config)
{
    const struct tsr_guest_ticket ticket = {TSR_TO_MEET, config->rank, config->size, 0,
                                            &m->base.secret};
    double deadline = tsr__now() + config->timeout_s;
    for (;;) {
        TSR_TRY(connect_once(m, config, deadline));
        enum tsr_welcome welcome = tsr__handshake(m->fd, &ticket, deadline);
        if (welcome == TSR_WELCOME)
            return TSR_OK;
        (void)close(m->fd);
        m->fd = -1;
        if (welcome == TSR_WELCOME_REFUSED)
            return TSR_ECONFIG; /* the handshake has said why */
        if (welcome == TSR_WELCOME_NOISE || tsr__now() >= deadline)
            return tsr_fail(TSR_EPEER,
                            "what listens at %s (rank 0's address) hung up, or is no rendezvous "
                            "of this program",
                            m->where);
        (void)poll(NULL, 0, tsr__poll_ms(deadline, RETRY_MS));
    }
}

static tsr_status listen_where_told(const struct tsr_rendezvous_config *config, int *fd)
{
    char name[NAME], number[TSR_RENDEZVOUS_ADDRESS];
    if (is_local(config)) {
        local_name(name, config);
        tsr_status status = tsr__socket_listen_local(name, fd);
        return status == TSR_OK
                   ? status
                   : tsr_fail(TSR_ECONFIG,
                              "port %u is in use on this host (%s); TSR_PORT sets another",
                              config->port, tsr_error_text());
    }
    const char *at = config->bind[0] ? config->bind : config->addr;
    if (!config->bind[0] && !tsr__socket_is_loopback(at) &&
        tsr__socket_resolves_to_loopback(at, number, sizeof number))
        return tsr_fail(TSR_ECONFIG,
                        "rank 0's address %s is %s on this host, which no other host reaches; "
                        "TSR_BIND sets where it listens (0.0.0.0: everywhere)",
                        at, number);
    return tsr__socket_listen(at, config->port, fd);
}

static tsr_status start_server(struct meeting *m, const struct tsr_rendezvous_config *config)
{
    int fd = config->listen_fd;
    if (fd < 0)
        TSR_TRY(listen_where_told(config, &fd));
    else if (!tsr__socket_setup(fd))
        return tsr_fail(TSR_ECONFIG, "TSR_LISTEN_FD=%d is no socket of this process", fd);
    const struct tsr_server_config server = {fd, is_local(config), config->size, &m->base.secret};
    return tsr__server_start(&server, &m->server);
}

tsr_status tsr__meet_open(const struct tsr_rendezvous_config *config, struct tsr_rendezvous **out)
{
    if (strlen(config->token) >= TSR_RENDEZVOUS_TOKEN)
        return tsr_fail(TSR_ECONFIG, "TSR_TOKEN has %zu bytes; at most %d", strlen(config->token),
                        TSR_RENDEZVOUS_TOKEN - 1);
    if (config->token[0] == '\0' && config->listen_fd >= 0)
        return tsr_fail(TSR_ECONFIG, "TSR_LISTEN_FD=%d is set, but TSR_TOKEN is not",
                        config->listen_fd);
    struct meeting *m = calloc(1, sizeof *m);
    if (!m)
        return tsr_no_memory("the rendezvous");
    m->base = (struct tsr_rendezvous){.ops = &meet_ops,
                                      .rank = config->rank,
                                      .size = config->size,
                                      .timeout_s = config->timeout_s,
                                      .secret = tsr__secret_of(config->token)};
    m->fd = -1;
    m->in.most = config->size * TSR_RENDEZVOUS_VALUE;
    (void)snprintf(m->where, sizeof m->where, "%s:%u", config->addr, config->port);
    (void)pthread_mutex_init(&m->send_lock, NULL);
    tsr_status status;
    char text[1024];
    TSR_GOTO(failed, config->rank == 0 ? start_server(m, config) : TSR_OK);
    TSR_GOTO(failed, join(m, config));
    tsr__socket_address(m->fd, m->base.local, sizeof m->base.local);
    *out = &m->base;
    return TSR_OK;
failed:
    (void)snprintf(text, sizeof text, "%s", tsr_error_text());
    m->news = status;
    meet_close(&m->base);
    return tsr_fail(status, "%s", text);
}
