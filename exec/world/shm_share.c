/* shm_share.c: one process of a host makes memory and hands its descriptor to the others.
 *
 * A Unix socket with a random name, which only ranks of the job are told, gives it away; the kernel
 * says whose process asks, and only those of this user get it. Who gets it looks at it before use:
 * a file that could become shorter would kill whoever reads behind its end (SIGBUS), so it must be
 * sealed, and as long as was agreed.
 */
#include "exec/world/shm_share.h"

#include "exec/base/word.h"
#include "exec/rendezvous/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__linux__) && defined(SYS_memfd_create)
/* Numbers of Linux that its headers hide from C11. */
enum { CLOEXEC_AND_SEALING = 3, ADD_SEALS = 1033, GET_SEALS = 1034 };
enum { SEALS = 1 | 2 | 4 }; /* no more seals, no shrinking, no growing */
#define HAS_SEALS 1
#endif
enum { NAME = 64, RANDOM = 16, LOOK_MS = 20, MOST_FDS = 2 };

/* What the first rank of a host tells the job. */
struct place {
    int64_t failed; /* errno; 0: none */
    char name[NAME];
};

struct tsr_shm_giver {
    int listen_fd, fd;
    _Atomic bool stopping;
    pthread_t thread;
};

/* ---- the memory ------------------------------------------------------------------------------ */

int tsr__shm_create(size_t bytes)
{
#ifdef HAS_SEALS
    int fd = (int)syscall(SYS_memfd_create, "tessera", CLOEXEC_AND_SEALING);
    if (fd < 0 || (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, ADD_SEALS, SEALS) == 0))
        return fd;
    int error = errno;
    (void)close(fd);
    errno = error;
#else
    (void)bytes;
    errno = ENOSYS;
#endif
    return -1;
}

bool tsr__shm_is_sound(int fd, size_t bytes)
{
#ifdef HAS_SEALS
    struct stat info;
    int seals = fcntl(fd, GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &info) == 0 &&
           S_ISREG(info.st_mode) && info.st_size == (off_t)bytes;
#else
    (void)fd;
    (void)bytes;
    return false;
#endif
}

/* ---- giving ---------------------------------------------------------------------------------- */

bool tsr__shm_send_fd(int socket, int fd)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {0};
    char byte = 0;
    struct iovec v = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

/* Nobody is waited for: who asks and is of this user gets it at once. */
static void *give_main(void *arg)
{
    struct tsr_shm_giver *giver = arg;
    while (!atomic_load(&giver->stopping)) {
        struct pollfd p = {.fd = giver->listen_fd, .events = POLLIN};
        if (poll(&p, 1, LOOK_MS) <= 0)
            continue;
        int socket = tsr__socket_accept(giver->listen_fd);
        if (socket < 0) {
            (void)poll(NULL, 0, 1);
            continue;
        }
        if (tsr__socket_is_mine(socket))
            (void)tsr__shm_send_fd(socket, giver->fd);
        (void)close(socket);
    }
    return NULL;
}

/* *error: errno, if the memory cannot be given away. */
static struct tsr_shm_giver *start_giving(int fd, char name[NAME], int *error)
{
    unsigned char random[RANDOM];
    struct tsr_shm_giver *giver = calloc(1, sizeof *giver);
    *error = ENOMEM;
    if (!giver)
        return NULL;
    giver->fd = fd;
    if (!tsr__random_bytes(random, sizeof random)) {
        *error = EIO;
        free(giver);
        return NULL;
    }
    size_t n = (size_t)snprintf(name, NAME, "tessera/memory/");
    for (int i = 0; i < RANDOM; i++)
        n += (size_t)snprintf(name + n, NAME - n, "%02x", random[i]);
    errno = EIO;
    if (tsr__socket_listen_local(name, &giver->listen_fd) != TSR_OK)
        *error = errno;
    else if ((*error = pthread_create(&giver->thread, NULL, give_main, giver)) == 0)
        return giver;
    else
        (void)close(giver->listen_fd);
    free(giver);
    return NULL;
}

void tsr__shm_give_no_more(struct tsr_shm_giver *giver)
{
    if (!giver)
        return;
    atomic_store(&giver->stopping, true);
    (void)pthread_join(giver->thread, NULL);
    (void)close(giver->listen_fd);
    free(giver);
}

/* ---- getting --------------------------------------------------------------------------------- */

/* The only descriptor of a message; -1 when there are none, or several, which are closed. */
static int only_descriptor(struct msghdr *message)
{
    int fds[MOST_FDS], n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof fds[0]);
        n = n < MOST_FDS ? n : MOST_FDS;
        memcpy(fds, CMSG_DATA(c), (size_t)n * sizeof fds[0]);
    }
    if (n == 1)
        return fds[0];
    while (n-- > 0)
        (void)close(fds[n]);
    return -1;
}

int tsr__shm_receive_fd(int socket, double deadline)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))];
    char byte;
    struct iovec v = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct pollfd p = {.fd = socket, .events = POLLIN};
    int fd = -1;
    if (poll(&p, 1, tsr__poll_ms(deadline, INT16_MAX)) == 1 &&
        recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1)
        fd = only_descriptor(&message);
    errno = EPROTO; /* what is wrong with it, if there is none */
    return fd;
}

/* -1 with errno. */
static int get(const char *name, size_t bytes, double timeout_s)
{
    double deadline = tsr__now() + timeout_s;
    int socket = -1, fd = -1;
    errno = ECONNREFUSED;
    if (tsr__socket_connect_local(name, deadline, &socket) != TSR_OK)
        return -1;
    if (tsr__socket_is_mine(socket))
        fd = tsr__shm_receive_fd(socket, deadline);
    else
        errno = EPERM;
    int error = errno;
    (void)close(socket);
    if (fd >= 0 && !tsr__shm_is_sound(fd, bytes)) {
        (void)close(fd);
        fd = -1;
        error = EBADFD;
    }
    errno = error;
    return fd;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

tsr_status tsr__shm_share(const struct tsr_shm_config *config, uint32_t first, uint32_t n,
                          size_t bytes, int *fd, struct tsr_shm_giver **giver, int *error)
{
    struct place mine = {0}, *all = calloc(config->size, sizeof *all);
    bool gives = n > 1 && first == config->rank;
    *error = 0;
    if (!all)
        return tsr_no_memory(NULL);
    if (gives) {
        *fd = tsr__shm_create(bytes);
        *error = *fd < 0 ? errno : 0;
        if (*fd >= 0)
            *giver = start_giving(*fd, mine.name, error);
        mine.failed = *error = *giver ? 0 : *error;
    }
    tsr_status status =
        tsr_rendezvous_gather(config->rendezvous, "memory", &mine, sizeof mine, all);
    if (status == TSR_OK && n > 1 && !gives) {
        all[first].name[NAME - 1] = '\0';
        *error = (int)all[first].failed;
        if (*error == 0 && (*fd = get(all[first].name, bytes, config->timeout_s)) < 0)
            *error = errno;
    }
    free(all);
    return status;
}
