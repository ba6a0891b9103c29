/* rendezvous_wire.c: frames and sockets. */
#include "exec/rendezvous/rendezvous_wire.h"

#include "exec/base/word.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 1024, FIRST_PAUSE_MS = 5, LONGEST_PAUSE_MS = 500, REASON = 160 };

/* ---- frames ---------------------------------------------------------------------------------- */

bool tsr__wire_append(struct tsr_wire_buffer *buffer, const void *data, size_t bytes)
{
    if (buffer->cap - buffer->n < bytes) {
        size_t cap = (buffer->n + bytes) * 2;
        char *grown = realloc(buffer->data, cap);
        if (!grown)
            return false;
        buffer->data = grown;
        buffer->cap = cap;
    }
    if (bytes)
        memcpy(buffer->data + buffer->n, data, bytes);
    buffer->n += bytes;
    return true;
}

void tsr__wire_drop(struct tsr_wire_buffer *buffer, size_t bytes)
{
    buffer->n -= bytes;
    if (buffer->n)
        memmove(buffer->data, buffer->data + bytes, buffer->n);
}

bool tsr__wire_put(struct tsr_wire_buffer *buffer, struct tsr_wire_frame frame, const char *key,
                   const void *value)
{
    frame.magic = TSR_WIRE_MAGIC;
    frame.key_bytes = (uint16_t)strlen(key);
    return tsr__wire_append(buffer, &frame, sizeof frame) &&
           tsr__wire_append(buffer, key, frame.key_bytes) &&
           tsr__wire_append(buffer, value, frame.value_bytes);
}

long tsr__wire_complete(const struct tsr_wire_buffer *buffer, struct tsr_wire_frame *frame)
{
    if (buffer->n < sizeof *frame)
        return 0;
    memcpy(frame, buffer->data, sizeof *frame);
    if (frame->magic != TSR_WIRE_MAGIC || frame->key_bytes > TSR_WIRE_KEY ||
        frame->value_bytes > TSR_RENDEZVOUS_VALUE)
        return -1;
    size_t bytes = sizeof *frame + frame->key_bytes + frame->value_bytes;
    return buffer->n < bytes ? 0 : (long)bytes;
}

/* ---- sockets --------------------------------------------------------------------------------- */

int tsr__poll_ms(double deadline, int most)
{
    double left = (deadline - tsr__now()) * 1e3;
    return left <= 0 ? 0 : left >= most ? most : (int)left + 1;
}

static bool set_flags(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
           fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

bool tsr__socket_setup(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE /* a host that is gone does not say so */
    int idle_s = 5, interval_s = 2, tries = 5;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
#endif
    return set_flags(fd);
}

/* -1 with errno. An IPv6 socket takes IPv4, too. */
static int listen_on(int family, uint16_t port)
{
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd < 0)
        return -1;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    const struct sockaddr *addr = family == AF_INET6 ? (void *)&six : (void *)&four;
    socklen_t bytes = family == AF_INET6 ? sizeof six : sizeof four;
    int on = 1, off = 0;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (set_flags(fd) && bind(fd, addr, bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

tsr_status tsr__socket_listen(uint16_t port, int *fd)
{
    *fd = listen_on(AF_INET6, port);
    if (*fd < 0 && errno != EADDRINUSE)
        *fd = listen_on(AF_INET, port);
    if (*fd >= 0)
        return TSR_OK;
    if (errno == EADDRINUSE)
        return tsr_fail(TSR_ECONFIG, "port %u is in use on this host; TSR_PORT sets another", port);
    return tsr_fail(errno == EACCES ? TSR_ECONFIG : TSR_EIO, "cannot listen on port %u: %s", port,
                    strerror(errno));
}

int tsr__socket_accept(int fd)
{
    int client = accept(fd, NULL, NULL);
    if (client >= 0 && !tsr__socket_setup(client)) {
        (void)close(client);
        return -1;
    }
    return client;
}

uint16_t tsr__socket_port(int fd)
{
    struct sockaddr_storage addr = {0};
    socklen_t bytes = sizeof addr;
    if (getsockname(fd, (void *)&addr, &bytes) != 0)
        return 0;
    return ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                            : ((struct sockaddr_in *)&addr)->sin_port);
}

/* Trying a port of the own host that nobody listens on, TCP may connect a socket to itself. */
static bool is_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t bytes = sizeof here, others = sizeof there;
    return getsockname(fd, (void *)&here, &bytes) == 0 &&
           getpeername(fd, (void *)&there, &others) == 0 && bytes == others &&
           memcmp(&here, &there, bytes) == 0;
}

/* -1 with errno. */
static int connect_one(const struct addrinfo *to, double deadline)
{
    int fd = socket(to->ai_family, SOCK_STREAM, 0), error = 0;
    socklen_t bytes = sizeof error;
    if (fd < 0)
        return -1;
    if (!tsr__socket_setup(fd)) {
        error = errno;
    } else if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
        error = errno;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (error == EINPROGRESS && poll(&p, 1, tsr__poll_ms(deadline, 5000)) != 1)
            error = ETIMEDOUT;
        else if (error == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
            error = errno;
    }
    if (error == 0 && is_itself(fd))
        error = ECONNREFUSED;
    if (error == 0)
        return fd;
    (void)close(fd);
    errno = error;
    return -1;
}

/* Tries every address of a name once. */
static int connect_any(const char *addr, uint16_t port, double deadline, char *reason)
{
    char service[8];
    (void)snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int error = getaddrinfo(addr, service, &hints, &list), fd = -1;
    if (error) {
        (void)snprintf(reason, REASON, "%s", gai_strerror(error));
        return -1;
    }
    for (const struct addrinfo *to = list; to && fd < 0; to = to->ai_next) {
        fd = connect_one(to, deadline);
        if (fd < 0)
            (void)snprintf(reason, REASON, "%s", strerror(errno));
    }
    freeaddrinfo(list);
    return fd;
}

tsr_status tsr__socket_connect(const char *addr, uint16_t port, double deadline, int *fd)
{
    char reason[REASON] = "no address";
    int pause_ms = FIRST_PAUSE_MS;
    for (;;) {
        *fd = connect_any(addr, port, deadline, reason);
        if (*fd >= 0)
            return TSR_OK;
        int ms = tsr__poll_ms(deadline, pause_ms);
        if (ms == 0)
            return tsr_fail(TSR_EPEER, "%s", reason);
        (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
        pause_ms = pause_ms * 2 < LONGEST_PAUSE_MS ? pause_ms * 2 : LONGEST_PAUSE_MS;
    }
}

/* Waits for the socket; false at the deadline. */
static bool ready(int fd, short events, double deadline)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n;
    do
        n = poll(&p, 1, tsr__poll_ms(deadline, 1000));
    while ((n == 0 || (n < 0 && errno == EINTR)) && tsr__now() < deadline);
    return n > 0;
}

static bool may_retry(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

bool tsr__socket_send(int fd, const void *data, size_t bytes, double deadline)
{
    const char *at = data;
    while (bytes) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (!may_retry(n) || !ready(fd, POLLOUT, deadline)) {
            return false;
        }
    }
    return true;
}

bool tsr__socket_receive(int fd, void *data, size_t bytes, double deadline)
{
    char *at = data;
    while (bytes) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (!may_retry(n) || !ready(fd, POLLIN, deadline)) {
            return false;
        }
    }
    return true;
}
