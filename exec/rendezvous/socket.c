/* socket.c: listening, connecting, sending and receiving with deadlines. */
#include "exec/rendezvous/socket.h"

#include "exec/base/word.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef TSR_STATIC
#include <nss.h>
#endif

enum { BACKLOG = 1024, FIRST_PAUSE_MS = 5, LONGEST_PAUSE_MS = 500, REASON = 160 };

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
    int on = 1; /* what a Unix socket does not know fails without harm */
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

/* ---- addresses ------------------------------------------------------------------------------- */

/* NULL with *reason. freeaddrinfo() it. */
static struct addrinfo *resolve(const char *addr, uint16_t port, char *reason)
{
    char service[8];
    (void)snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
#ifdef TSR_STATIC /* what else nsswitch.conf may name would have to be loaded */
    (void)__nss_configure_lookup("hosts", "files dns");
#endif
    int error = getaddrinfo(addr, service, &hints, &list);
    if (error == 0)
        return list;
    (void)snprintf(reason, REASON, "%s", gai_strerror(error));
    return NULL;
}

static void number_of(const struct sockaddr *addr, socklen_t bytes, char *text, size_t room)
{
    if (getnameinfo(addr, bytes, text, (socklen_t)room, NULL, 0, NI_NUMERICHOST) != 0)
        (void)snprintf(text, room, "127.0.0.1");
}

void tsr__socket_address(int fd, char *text, size_t room)
{
    struct sockaddr_storage addr = {0};
    socklen_t bytes = sizeof addr;
    if (getsockname(fd, (void *)&addr, &bytes) != 0 || addr.ss_family == AF_UNIX)
        (void)snprintf(text, room, "127.0.0.1");
    else
        number_of((void *)&addr, bytes, text, room);
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

bool tsr__socket_is_loopback(const char *addr)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, addr, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, addr, &six) == 1)
        return IN6_IS_ADDR_LOOPBACK(&six);
    return strcmp(addr, "localhost") == 0;
}

bool tsr__socket_is_everywhere(const char *addr)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, addr, &four) == 1)
        return four.s_addr == htonl(INADDR_ANY);
    return inet_pton(AF_INET6, addr, &six) == 1 && IN6_IS_ADDR_UNSPECIFIED(&six);
}

bool tsr__socket_resolves_to_loopback(const char *addr, char *text, size_t bytes)
{
    char reason[REASON];
    struct addrinfo *list = resolve(addr, 0, reason);
    bool is = list != NULL;
    for (const struct addrinfo *to = list; to && is; to = to->ai_next) {
        number_of(to->ai_addr, to->ai_addrlen, text, bytes);
        is = tsr__socket_is_loopback(text);
    }
    if (list)
        freeaddrinfo(list);
    return is;
}

/* ---- listening ------------------------------------------------------------------------------- */

/* -1 with errno. */
static int listen_at(const struct sockaddr *addr, socklen_t bytes)
{
    int fd = socket(addr->sa_family, SOCK_STREAM, 0), on = 1;
    if (fd < 0)
        return -1;
    if (addr->sa_family != AF_UNIX)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (set_flags(fd) && bind(fd, addr, bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

tsr_status tsr__socket_listen(const char *addr, uint16_t port, int *fd)
{
    char reason[REASON];
    struct addrinfo *list = resolve(addr, port, reason);
    *fd = -1;
    if (!list)
        return tsr_fail(TSR_ECONFIG, "cannot listen at %s: %s", addr, reason);
    int error = 0;
    for (const struct addrinfo *to = list; to && *fd < 0; to = to->ai_next) {
        *fd = listen_at(to->ai_addr, to->ai_addrlen);
        if (*fd < 0 && error != EADDRINUSE) /* the reason that helps most */
            error = errno;
    }
    freeaddrinfo(list);
    if (*fd >= 0)
        return TSR_OK;
    if (error == EADDRINUSE)
        return tsr_fail(TSR_ECONFIG, "port %u is in use on this host; TSR_PORT sets another", port);
    if (error == EADDRNOTAVAIL)
        return tsr_fail(TSR_ECONFIG,
                        "%s is no address of this host; TSR_ADDR is rank 0's for all ranks, "
                        "TSR_BIND where a rank listens (0.0.0.0: everywhere)",
                        addr);
    return tsr_fail(error == EACCES ? TSR_ECONFIG : TSR_EIO, "cannot listen at %s, port %u: %s",
                    addr, port, strerror(error));
}

int tsr__socket_accept(int fd)
{
    int client = accept(fd, NULL, NULL);
    if (client >= 0 && !tsr__socket_setup(client)) {
        (void)close(client);
        errno = EAGAIN;
        return -1;
    }
    return client;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* Trying a port of the own host that nobody listens on, TCP may connect a socket to itself. */
static bool is_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t bytes = sizeof here, others = sizeof there;
    return getsockname(fd, (void *)&here, &bytes) == 0 &&
           getpeername(fd, (void *)&there, &others) == 0 && here.ss_family != AF_UNIX &&
           bytes == others && memcmp(&here, &there, bytes) == 0;
}

/* -1 with errno. */
static int connect_one(const struct sockaddr *to, socklen_t to_bytes, double deadline)
{
    int fd = socket(to->sa_family, SOCK_STREAM, 0), error = 0;
    socklen_t bytes = sizeof error;
    if (fd < 0)
        return -1;
    if (!tsr__socket_setup(fd)) {
        error = errno;
    } else if (connect(fd, to, to_bytes) != 0) {
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
    struct addrinfo *list = resolve(addr, port, reason);
    int fd = -1;
    for (const struct addrinfo *to = list; to && fd < 0; to = to->ai_next) {
        fd = connect_one(to->ai_addr, to->ai_addrlen, deadline);
        if (fd < 0)
            (void)snprintf(reason, REASON, "%s", strerror(errno));
    }
    if (list)
        freeaddrinfo(list);
    return fd;
}

/* Waits before the next try; false: the deadline is over. */
static bool pause_for(int *ms, double deadline)
{
    int now = tsr__poll_ms(deadline, *ms);
    *ms = *ms * 2 < LONGEST_PAUSE_MS ? *ms * 2 : LONGEST_PAUSE_MS;
    if (now > 0)
        (void)nanosleep(&(struct timespec){.tv_nsec = now * 1000000L}, NULL);
    return now > 0;
}

tsr_status tsr__socket_connect(const char *addr, uint16_t port, double deadline, int *fd)
{
    char reason[REASON] = "no address";
    int pause_ms = FIRST_PAUSE_MS;
    do
        *fd = connect_any(addr, port, deadline, reason);
    while (*fd < 0 && pause_for(&pause_ms, deadline));
    return *fd >= 0 ? TSR_OK : tsr_fail(TSR_EPEER, "%s", reason);
}

/* ---- Unix sockets ---------------------------------------------------------------------------- */

/* A name that begins with a zero byte is in no file system. */
static socklen_t local_name(const char *name, struct sockaddr_un *addr)
{
    *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    (void)snprintf(addr->sun_path + 1, sizeof addr->sun_path - 1, "%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(addr->sun_path + 1));
}

tsr_status tsr__socket_listen_local(const char *name, int *fd)
{
    struct sockaddr_un addr;
    socklen_t bytes = local_name(name, &addr);
    *fd = listen_at((void *)&addr, bytes);
    return *fd >= 0 ? TSR_OK : tsr_fail(TSR_EIO, "%s", strerror(errno));
}

tsr_status tsr__socket_connect_local(const char *name, double deadline, int *fd)
{
    struct sockaddr_un addr;
    socklen_t bytes = local_name(name, &addr);
    int pause_ms = FIRST_PAUSE_MS;
    do
        *fd = connect_one((void *)&addr, bytes, deadline);
    while (*fd < 0 && pause_for(&pause_ms, deadline));
    return *fd >= 0 ? TSR_OK : tsr_fail(TSR_EPEER, "%s", strerror(errno));
}

bool tsr__socket_is_mine(int fd)
{
#ifdef SO_PEERCRED
    struct { /* struct ucred, which C11 headers hide */
        int32_t pid;
        uint32_t uid, gid;
    } peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && bytes == sizeof peer &&
           peer.uid == (uint32_t)getuid();
#else
    (void)fd;
    return false;
#endif
}

/* ---- bytes ----------------------------------------------------------------------------------- */

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

size_t tsr__socket_receive_some(int fd, void *data, size_t bytes, double deadline)
{
    size_t there = 0;
    while (there < bytes) {
        ssize_t n = recv(fd, (char *)data + there, bytes - there, 0);
        if (n > 0)
            there += (size_t)n;
        else if (!may_retry(n) || !ready(fd, POLLIN, deadline))
            break;
    }
    return there;
}

bool tsr__socket_receive(int fd, void *data, size_t bytes, double deadline)
{
    return tsr__socket_receive_some(fd, data, bytes, deadline) == bytes;
}
