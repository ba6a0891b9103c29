/* rendezvous.c: a rank's end of the rendezvous. */
#include "exec/rendezvous/rendezvous.h"

#include "exec/base/word.h"
#include "exec/rendezvous/rendezvous_wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How late the server's answer may be, and how long it stays after a failure. */
#define GRACE_S 1.0
enum { RETRY_MS = 30 };

struct tsr_rendezvous {
    int fd;
    uint32_t rank;
    double timeout_s;
    struct tsr_rendezvous_server *server; /* rank 0 */
    pthread_mutex_t send_lock;
    struct tsr_wire_buffer in;
    tsr_status news; /* OK, or how the job ended */
    char news_text[512];
    char where[320]; /* "host:port" */
    char local[INET6_ADDRSTRLEN + 16];
};

/* ---- frames in and out ----------------------------------------------------------------------- */

static tsr_status end(struct tsr_rendezvous *r, tsr_status status, const char *text)
{
    if (r->news == TSR_OK) {
        r->news = status == TSR_OK ? TSR_EPEER : status;
        (void)snprintf(r->news_text, sizeof r->news_text, "%s", text);
    }
    return tsr_fail(r->news, "%s", r->news_text);
}

static tsr_status lost_rank_0(struct tsr_rendezvous *r)
{
    char text[128];
    (void)snprintf(text, sizeof text, TSR_RANK_LOST, 0u);
    return end(r, TSR_EPEER, text);
}

static bool send_frame(struct tsr_rendezvous *r, struct tsr_wire_frame frame, const char *key,
                       const void *value)
{
    struct tsr_wire_buffer out = {0};
    bool sent = tsr__wire_put(&out, frame, key, value);
    (void)pthread_mutex_lock(&r->send_lock);
    sent = sent && tsr__socket_send(r->fd, out.data, out.n, tsr__now() + r->timeout_s);
    (void)pthread_mutex_unlock(&r->send_lock);
    free(out.data);
    return sent;
}

/* Reads what is there, waiting at most until the deadline for the first of it. *got: a frame, whose
 * bytes stay in r->in until drop_frame(). TSR_OK without one: the deadline passed. */
static tsr_status read_frame(struct tsr_rendezvous *r, double deadline,
                             struct tsr_wire_frame *frame, bool *got)
{
    for (;;) {
        long bytes = tsr__wire_complete(&r->in, frame);
        *got = bytes > 0;
        if (bytes < 0)
            return end(r, TSR_EPEER, "what rank 0 says cannot be understood");
        if (*got)
            return TSR_OK;
        char chunk[16384];
        ssize_t n = recv(r->fd, chunk, sizeof chunk, 0);
        if (n > 0 && !tsr__wire_append(&r->in, chunk, (size_t)n))
            return tsr_no_memory(NULL);
        if (n > 0)
            continue;
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return lost_rank_0(r);
        if (tsr__now() >= deadline)
            return TSR_OK;
        struct pollfd p = {.fd = r->fd, .events = POLLIN};
        (void)poll(&p, 1, tsr__poll_ms(deadline, 1000));
    }
}

static const char *frame_value(const struct tsr_rendezvous *r, const struct tsr_wire_frame *frame)
{
    return r->in.data + sizeof *frame + frame->key_bytes;
}

static void drop_frame(struct tsr_rendezvous *r, const struct tsr_wire_frame *frame)
{
    tsr__wire_drop(&r->in, sizeof *frame + frame->key_bytes + frame->value_bytes);
}

static tsr_status frame_status(struct tsr_rendezvous *r, const struct tsr_wire_frame *frame)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%.*s", (int)frame->value_bytes, frame_value(r, frame));
    tsr_status status = frame->status <= TSR_EPEER ? (tsr_status)frame->status : TSR_EPEER;
    if (frame->op == TSR_WIRE_NEWS)
        return end(r, status, text);
    return status == TSR_OK ? TSR_OK : tsr_fail(status, "%s", text);
}

/* Waits for the answer to a request. On success its frame is still in the buffer. */
static tsr_status await(struct tsr_rendezvous *r, struct tsr_wire_frame *frame)
{
    double deadline = tsr__now() + r->timeout_s + GRACE_S;
    for (;;) {
        bool got;
        TSR_TRY(read_frame(r, deadline, frame, &got));
        if (!got)
            return end(r, TSR_EPEER, "rank 0 did not answer in time");
        tsr_status status = frame_status(r, frame);
        if (status != TSR_OK)
            drop_frame(r, frame);
        if (status != TSR_OK || frame->op == TSR_WIRE_REPLY)
            return status;
        drop_frame(r, frame);
    }
}

static tsr_status request(struct tsr_rendezvous *r, struct tsr_wire_frame *frame, const char *key,
                          const void *value)
{
    if (r->news != TSR_OK)
        return tsr_fail(r->news, "%s", r->news_text);
    if (strlen(key) > TSR_WIRE_KEY || frame->value_bytes > TSR_RENDEZVOUS_VALUE)
        return tsr_fail(TSR_EVALUE, "'%.40s': a key has at most %d bytes, its value %d", key,
                        TSR_WIRE_KEY, TSR_RENDEZVOUS_VALUE);
    if (!send_frame(r, *frame, key, value))
        return lost_rank_0(r);
    return await(r, frame);
}

/* ---- the store ------------------------------------------------------------------------------- */

static int64_t milliseconds(const struct tsr_rendezvous *r)
{
    return (int64_t)(r->timeout_s * 1e3);
}

tsr_status tsr_rendezvous_set(struct tsr_rendezvous *r, const char *key, const void *value,
                              size_t bytes)
{
    if (bytes > TSR_RENDEZVOUS_VALUE)
        return tsr_fail(TSR_EVALUE, "value of '%.40s': %zu bytes; at most %d", key, bytes,
                        TSR_RENDEZVOUS_VALUE);
    struct tsr_wire_frame frame = {.op = TSR_WIRE_SET, .value_bytes = (uint32_t)bytes};
    TSR_TRY(request(r, &frame, key, value));
    drop_frame(r, &frame);
    return TSR_OK;
}

tsr_status tsr_rendezvous_get(struct tsr_rendezvous *r, const char *key, void *value, size_t bytes)
{
    struct tsr_wire_frame frame = {.op = TSR_WIRE_GET, .number = milliseconds(r)};
    TSR_TRY(request(r, &frame, key, NULL));
    bool fits = frame.value_bytes == bytes;
    if (fits && bytes)
        memcpy(value, frame_value(r, &frame), bytes);
    drop_frame(r, &frame);
    if (fits)
        return TSR_OK;
    return tsr_fail(TSR_EIO, "'%s' has %u bytes at the rendezvous, not %zu", key, frame.value_bytes,
                    bytes);
}

tsr_status tsr_rendezvous_add(struct tsr_rendezvous *r, const char *key, int64_t delta,
                              int64_t *value)
{
    struct tsr_wire_frame frame = {.op = TSR_WIRE_ADD, .number = delta};
    TSR_TRY(request(r, &frame, key, NULL));
    *value = frame.number;
    drop_frame(r, &frame);
    return TSR_OK;
}

tsr_status tsr_rendezvous_barrier(struct tsr_rendezvous *r, const char *name)
{
    struct tsr_wire_frame frame = {.op = TSR_WIRE_BARRIER, .number = milliseconds(r)};
    TSR_TRY(request(r, &frame, name, NULL));
    drop_frame(r, &frame);
    return TSR_OK;
}

void tsr_rendezvous_tell(struct tsr_rendezvous *r, tsr_status status, const char *text)
{
    (void)send_frame(r,
                     (struct tsr_wire_frame){.op = TSR_WIRE_NEWS,
                                             .status = (uint8_t)status,
                                             .value_bytes = (uint32_t)strlen(text)},
                     "", text);
}

tsr_status tsr_rendezvous_watch(struct tsr_rendezvous *r, double seconds)
{
    if (r->news != TSR_OK)
        return tsr_fail(r->news, "%s", r->news_text);
    struct tsr_wire_frame frame;
    bool got;
    TSR_TRY(read_frame(r, tsr__now() + seconds, &frame, &got));
    if (!got)
        return TSR_OK;
    tsr_status status = frame.op == TSR_WIRE_NEWS ? frame_status(r, &frame) : TSR_OK;
    drop_frame(r, &frame);
    return status;
}

const char *tsr_rendezvous_local_address(const struct tsr_rendezvous *r)
{
    return r->local;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void find_local_address(struct tsr_rendezvous *r)
{
    struct sockaddr_storage addr = {0};
    socklen_t bytes = sizeof addr;
    if (getsockname(r->fd, (void *)&addr, &bytes) != 0 ||
        getnameinfo((void *)&addr, bytes, r->local, sizeof r->local, NULL, 0, NI_NUMERICHOST) != 0)
        (void)snprintf(r->local, sizeof r->local, "127.0.0.1");
}

static tsr_status say_hello(struct tsr_rendezvous *r, const struct tsr_rendezvous_config *config)
{
    struct tsr_wire_hello hello = {.magic = TSR_WIRE_MAGIC,
                                   .version = TSR_WIRE_VERSION,
                                   .rank = config->rank,
                                   .size = config->size};
    (void)snprintf(hello.token, sizeof hello.token, "%s", config->token);
    struct tsr_wire_frame frame;
    TSR_TRY(tsr__socket_send(r->fd, &hello, sizeof hello, tsr__now() + r->timeout_s)
                ? await(r, &frame)
                : lost_rank_0(r));
    drop_frame(r, &frame);
    return TSR_OK;
}

/* Who hangs up without a word may be too busy with others, or be about to end: try again. */
static tsr_status join(struct tsr_rendezvous *r, const struct tsr_rendezvous_config *config,
                       double deadline)
{
    for (;;) {
        tsr_status status = tsr__socket_connect(config->addr, config->port, deadline, &r->fd);
        if (status != TSR_OK)
            return tsr_fail(status, "rank %u cannot reach rank 0 at %s within %g s: %s",
                            config->rank, r->where, config->timeout_s, tsr_error_text());
        status = say_hello(r, config);
        if (status != TSR_EPEER)
            return status;
        if (r->in.n > 0 || tsr__now() >= deadline)
            return tsr_fail(TSR_EPEER,
                            "what listens at %s (rank 0's address) hung up, or is no rendezvous "
                            "of this program",
                            r->where);
        (void)close(r->fd);
        r->fd = -1;
        r->news = TSR_OK;
        (void)poll(NULL, 0, tsr__poll_ms(deadline, RETRY_MS));
    }
}

static tsr_status enter(struct tsr_rendezvous *r, const struct tsr_rendezvous_config *config,
                        double deadline)
{
    TSR_TRY(join(r, config, deadline));
    find_local_address(r);
    return tsr_rendezvous_barrier(r, "");
}

static tsr_status start_server(struct tsr_rendezvous *r, const struct tsr_rendezvous_config *config)
{
    int fd = config->listen_fd;
    if (fd < 0)
        TSR_TRY(tsr__socket_listen(config->port, &fd));
    else if (!tsr__socket_setup(fd))
        return tsr_fail(TSR_ECONFIG, "TSR_LISTEN_FD=%d is no socket of this process", fd);
    return tsr__server_start(fd, config->size, config->token, &r->server);
}

tsr_status tsr_rendezvous_open(const struct tsr_rendezvous_config *config,
                               struct tsr_rendezvous **out)
{
    *out = NULL;
    if (strlen(config->token) >= TSR_RENDEZVOUS_TOKEN)
        return tsr_fail(TSR_ECONFIG, "TSR_TOKEN has %zu bytes; at most %d", strlen(config->token),
                        TSR_RENDEZVOUS_TOKEN - 1);
    struct tsr_rendezvous *r = calloc(1, sizeof *r);
    if (!r)
        return tsr_no_memory("the rendezvous");
    r->fd = -1;
    r->rank = config->rank;
    r->timeout_s = config->timeout_s;
    (void)snprintf(r->where, sizeof r->where, "%s:%u", config->addr, config->port);
    (void)pthread_mutex_init(&r->send_lock, NULL);
    double deadline = tsr__now() + config->timeout_s;
    tsr_status status;
    char text[1024];
    TSR_GOTO(failed, config->rank == 0 ? start_server(r, config) : TSR_OK);
    TSR_GOTO(failed, enter(r, config, deadline));
    *out = r;
    return TSR_OK;
failed:
    (void)snprintf(text, sizeof text, "%s", tsr_error_text());
    r->news = status;
    tsr_rendezvous_close(r);
    return tsr_fail(status, "%s", text);
}

void tsr_rendezvous_close(struct tsr_rendezvous *r)
{
    if (!r)
        return;
    if (r->fd >= 0) {
        (void)send_frame(r, (struct tsr_wire_frame){.op = TSR_WIRE_BYE}, "", NULL);
        (void)close(r->fd);
    }
    if (r->server)
        tsr__server_stop(r->server, r->news == TSR_OK ? r->timeout_s : GRACE_S);
    (void)pthread_mutex_destroy(&r->send_lock);
    free(r->in.data);
    free(r);
}
