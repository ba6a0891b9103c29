/* carrier_shm.c: rings in shared memory.
 *
 * For every pair of processes and direction there is a ring of bytes with one writer and one
 * reader: the writer moves the head, the reader the tail. A writer rings the reader's bell; a
 * reader that made room rings the ring's own. The first rank of a host makes the memory (a file
 * without a name, sealed in its size) and hands it to the others over a Unix socket.
 */
#include "exec/world/carriers.h"

#include "exec/base/word.h"
#include "exec/world/shm_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LOOK_S 0.02 /* how often a sleeper looks whether the world has failed */
enum { RING = 1 << 17, LINE = 64 };

struct ring {
    _Alignas(LINE) _Atomic uint64_t head; /* bytes ever written */
    _Alignas(LINE) _Atomic uint64_t tail; /* bytes ever read */
    struct tsr_word room;                 /* changes when there is more */
    _Alignas(LINE) char data[RING];
};
struct bell {
    _Alignas(LINE) struct tsr_word word;
};

struct tsr_shm {
    struct tsr_carrier *carrier;
    uint32_t size, me, n; /* ranks of the job; our index and the number of ranks on this host */
    uint32_t *index;      /* [size]: index on this host */
    uint32_t *ranks;      /* [n] */
    pthread_mutex_t *send_locks;     /* [n] */
    struct tsr_mail_stream *streams; /* [n] */
    struct bell *bells;              /* [n], shared */
    struct ring *rings;              /* [n receivers][n senders], shared */
    size_t bytes;
    _Atomic bool stopping;
    bool has_thread;
    pthread_t thread;
};

static struct ring *ring_of(const struct tsr_shm *shm, uint32_t receiver, uint32_t sender)
{
    return &shm->rings[(size_t)receiver * shm->n + sender];
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool write_ring(struct tsr_shm *shm, uint32_t to, const char *data, uint64_t bytes,
                       double deadline)
{
    struct ring *ring = ring_of(shm, to, shm->me);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    while (bytes) {
        uint32_t room_before = tsr__word_get(&ring->room);
        uint64_t used = head - atomic_load_explicit(&ring->tail, memory_order_acquire);
        uint64_t room = used <= RING ? RING - used : 0; /* more: the other side is broken */
        if (room == 0) {
            if (tsr__aborted(&shm->carrier->abort) || tsr__now() >= deadline)
                return false;
            tsr__word_sleep(&ring->room, room_before, LOOK_S);
            continue;
        }
        uint64_t at = head % RING;
        uint64_t n = tsr_min_u64(tsr_min_u64(room, RING - at), bytes);
        memcpy(ring->data + at, data, n);
        head += n;
        data += n;
        bytes -= n;
        atomic_store_explicit(&ring->head, head, memory_order_release);
        tsr__word_bump(&shm->bells[to].word);
    }
    return true;
}

bool tsr__shm_send(struct tsr_shm *shm, uint32_t to, const struct tsr_mail_header *header,
                   const void *data, double deadline)
{
    uint32_t k = shm->index[to];
    (void)pthread_mutex_lock(&shm->send_locks[k]);
    bool sent = !tsr__aborted(&shm->carrier->abort) &&
                write_ring(shm, k, (const char *)header, sizeof *header, deadline) &&
                write_ring(shm, k, data, header->bytes, deadline);
    (void)pthread_mutex_unlock(&shm->send_locks[k]);
    return sent;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void ring_fails(struct tsr_shm *shm, tsr_status status)
{
    tsr__carrier_fail(shm->carrier, status, tsr_error_text(), true);
    atomic_store(&shm->stopping, true);
}

/* False: nothing is there. */
static bool read_ring(struct tsr_shm *shm, uint32_t from)
{
    struct ring *ring = ring_of(shm, shm->me, from);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint64_t there = atomic_load_explicit(&ring->head, memory_order_acquire) - tail;
    if (there == 0)
        return false;
    while (there) {
        size_t room;
        if (there > RING) {
            ring_fails(shm, tsr_fail(TSR_EPEER, "rank %u has broken its ring in shared memory",
                                     shm->ranks[from]));
            return false;
        }
        void *target = tsr__mail_stream_target(&shm->streams[from], &room);
        uint64_t at = tail % RING;
        size_t n = (size_t)tsr_min_u64(tsr_min_u64(there, RING - at), room);
        memcpy(target, ring->data + at, n);
        tail += n;
        there -= n;
        tsr_status status = tsr__mail_stream_advance(&shm->streams[from], shm->ranks[from], n,
                                                     &shm->carrier->boxes);
        if (status != TSR_OK) {
            ring_fails(shm, status);
            return false;
        }
    }
    atomic_store_explicit(&ring->tail, tail, memory_order_release);
    tsr__word_bump(&ring->room);
    return true;
}

static void *receive_main(void *arg)
{
    struct tsr_shm *shm = arg;
    struct tsr_word *bell = &shm->bells[shm->me].word;
    while (!atomic_load(&shm->stopping)) {
        uint32_t before = tsr__word_get(bell);
        bool any = false;
        for (uint32_t k = 0; k < shm->n; k++)
            if (k != shm->me)
                any |= read_ring(shm, k);
        if (!any)
            tsr__word_sleep(bell, before, LOOK_S);
    }
    return NULL;
}

/* ---- sharing --------------------------------------------------------------------------------- */

static uint64_t hash_file(uint64_t hash, const char *path)
{
    char text[256] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, text, sizeof text - 1);
        (void)n;
        (void)close(fd);
    }
    return tsr_hash_bytes(hash, text, sizeof text);
}

static uint64_t hash_link(uint64_t hash, const char *path)
{
    char text[256] = "";
    ssize_t n = readlink(path, text, sizeof text - 1);
    (void)n;
    return tsr_hash_bytes(hash, text, sizeof text);
}

uint64_t tsr__shm_host(void)
{
    char name[256] = "";
    (void)gethostname(name, sizeof name - 1);
    uint64_t hash = tsr_hash_bytes(TSR_HASH_INIT, name, strlen(name));
    hash = hash_file(hash, "/proc/sys/kernel/random/boot_id");
    hash = hash_link(hash, "/proc/self/ns/pid");
    hash = hash_link(hash, "/proc/self/ns/net"); /* that of Unix sockets without a file */
    return tsr_hash_u64(hash, (uint64_t)getuid());
}

static int map(struct tsr_shm *shm, int fd)
{
    void *memory = mmap(NULL, shm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return errno;
    shm->bells = memory;
    shm->rings = (struct ring *)(shm->bells + shm->n);
    return 0;
}

/* All ranks say whether they could; *all: nobody could not. */
static tsr_status agree(struct tsr_rendezvous *rendezvous, uint32_t size, int error, bool *all)
{
    int32_t mine = error, *theirs = calloc(size, sizeof *theirs);
    if (!theirs)
        return tsr_no_memory(NULL);
    tsr_status status =
        tsr_rendezvous_gather(rendezvous, "shared memory", &mine, sizeof mine, theirs);
    *all = status == TSR_OK;
    for (uint32_t r = 0; r < size && *all; r++)
        *all = theirs[r] == 0;
    free(theirs);
    return status;
}

static bool make_tables(struct tsr_shm *shm, const struct tsr_shm_config *config)
{
    for (uint32_t r = 0; r < config->size; r++)
        shm->n += config->is_peer[r] || r == config->rank;
    shm->index = calloc(config->size, sizeof *shm->index);
    shm->ranks = calloc(shm->n, sizeof *shm->ranks);
    shm->send_locks = calloc(shm->n, sizeof *shm->send_locks);
    shm->streams = calloc(shm->n, sizeof *shm->streams);
    if (!shm->index || !shm->ranks || !shm->send_locks || !shm->streams)
        return false;
    for (uint32_t r = 0, k = 0; r < config->size; r++) {
        if (!config->is_peer[r] && r != config->rank)
            continue;
        shm->me = r == config->rank ? k : shm->me;
        (void)pthread_mutex_init(&shm->send_locks[k], NULL);
        shm->index[r] = k;
        shm->ranks[k++] = r;
    }
    shm->bytes = shm->n * (sizeof(struct bell) + shm->n * sizeof(struct ring));
    return true;
}

static tsr_status start(struct tsr_shm *shm, const struct tsr_shm_config *config, char *why,
                        size_t why_bytes, bool *all)
{
    int fd = -1, error = 0;
    struct tsr_shm_giver *giver = NULL;
    if (!make_tables(shm, config))
        return tsr_no_memory(NULL);
    tsr_status status;
    TSR_GOTO(end, tsr__shm_share(config, shm->ranks[0], shm->n, shm->bytes, &fd, &giver, &error));
    if (fd >= 0)
        error = map(shm, fd);
    status = agree(config->rendezvous, config->size, error, all);
end:
    tsr__shm_give_no_more(giver);
    if (error)
        (void)snprintf(why, why_bytes, "%s", strerror(error));
    if (fd >= 0)
        (void)close(fd);
    if (status != TSR_OK || !*all || shm->n == 1)
        return status;
    error = pthread_create(&shm->thread, NULL, receive_main, shm);
    if (error)
        return tsr_fail(TSR_ENOMEM, "no thread that receives: %s", strerror(error));
    shm->has_thread = true;
    return TSR_OK;
}

tsr_status tsr__shm_open(const struct tsr_shm_config *config, char *why, size_t why_bytes,
                         struct tsr_shm **out)
{
    struct tsr_shm *shm = calloc(1, sizeof *shm);
    *out = NULL;
    why[0] = '\0';
    if (!shm)
        return tsr_no_memory(NULL);
    shm->carrier = config->carrier;
    shm->size = config->size;
    bool all = false;
    tsr_status status = start(shm, config, why, why_bytes, &all);
    if (status == TSR_OK && all) {
        *out = shm;
        return TSR_OK;
    }
    char text[512];
    (void)snprintf(text, sizeof text, "%s", tsr_error_text());
    tsr__shm_close(shm);
    return status == TSR_OK ? TSR_OK : tsr_fail(status, "%s", text);
}

void tsr__shm_close(struct tsr_shm *shm)
{
    if (!shm)
        return;
    atomic_store(&shm->stopping, true);
    if (shm->has_thread) {
        tsr__word_bump(&shm->bells[shm->me].word);
        (void)pthread_join(shm->thread, NULL);
    }
    for (uint32_t k = 0; shm->streams && k < shm->n; k++)
        tsr__mail_stream_fini(&shm->streams[k]);
    for (uint32_t k = 0; shm->bells && k < shm->n; k++)
        (void)pthread_mutex_destroy(&shm->send_locks[k]);
    if (shm->bells)
        (void)munmap(shm->bells, shm->bytes);
    free(shm->index);
    free(shm->ranks);
    free(shm->send_locks);
    free(shm->streams);
    free(shm);
}
