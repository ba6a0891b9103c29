/* Device memory as a range of addresses that nothing backs: taking it counts, nothing else. The
 * limit is TESSERA_STANDIN_BYTES. Also the answers to what the host reads back. */
#include "standin.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GRAIN = 2 << 20 };                    /* cudaMalloc's own alignment of large pieces */
static const size_t SPAN = (size_t)64 << 40; /* 64 TiB: no trace comes near */

typedef struct {
    char *start;
    size_t bytes; /* as asked for */
    int live;
} piece;

typedef struct answer {
    struct answer *next;
    size_t bytes;
    char value[];
} answer;

/* State of the process, as CUDA's own library has it: it stands in for that one. */
static struct {
    pthread_mutex_t lock;
    char *base, *next;
    size_t limit, used;
    piece *pieces;
    size_t count, room;
    size_t *commits; /* bytes of each physical handle, by number; released: 0 */
    size_t commit_count;
    answer *first, **last;
    size_t waiting, unanswered;
    uintptr_t handles;
    struct {
        const void *address;
        size_t bytes;
        char value[1 << 20];
    } copied;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &g.first, .handles = 0x7000};

static size_t grains(size_t bytes)
{
    return ((bytes ? bytes : 1) + GRAIN - 1) / GRAIN * GRAIN;
}

/* Under the lock. */
static void begin(void)
{
    if (g.base)
        return;
    g.base = mmap((void *)0x100000000000ull, SPAN, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g.base == MAP_FAILED)
        abort(); /* no address space: nothing can be traced */
    g.next = g.base;
    const char *limit = getenv("TESSERA_STANDIN_BYTES");
    g.limit = limit ? strtoull(limit, NULL, 10) : (size_t)80 << 30;
}

static void *grow(void *list, size_t count, size_t size)
{
    void *more = realloc(list, count * size);
    if (!more)
        abort();
    return more;
}

void *standin_take(size_t bytes)
{
    pthread_mutex_lock(&g.lock);
    begin();
    char *start = NULL;
    if (bytes <= g.limit - g.used) {
        for (size_t i = 0; i < g.count && !start; i++)
            if (!g.pieces[i].live && grains(g.pieces[i].bytes) == grains(bytes)) {
                g.pieces[i] = (piece){g.pieces[i].start, bytes, 1};
                start = g.pieces[i].start;
            }
        if (!start) {
            if (g.count == g.room) {
                g.room = g.room ? 2 * g.room : 256;
                g.pieces = grow(g.pieces, g.room, sizeof *g.pieces);
            }
            start = g.next;
            g.next += grains(bytes);
            g.pieces[g.count++] = (piece){start, bytes, 1};
        }
        g.used += bytes;
    }
    pthread_mutex_unlock(&g.lock);
    return start;
}

int standin_give(void *address)
{
    int found = 0;
    pthread_mutex_lock(&g.lock);
    for (size_t i = 0; i < g.count && !found; i++)
        if (g.pieces[i].start == address && g.pieces[i].live) {
            g.pieces[i].live = 0;
            g.used -= g.pieces[i].bytes;
            found = 1;
        }
    pthread_mutex_unlock(&g.lock);
    return found;
}

void standin_room(size_t *free_bytes, size_t *total_bytes)
{
    pthread_mutex_lock(&g.lock);
    begin();
    *free_bytes = g.limit - g.used;
    *total_bytes = g.limit;
    pthread_mutex_unlock(&g.lock);
}

int standin_is_device(const void *address)
{
    const char *p = address;
    return g.base && p >= g.base && p < g.base + SPAN;
}

void *standin_reserve(size_t bytes)
{
    pthread_mutex_lock(&g.lock);
    begin();
    char *start = g.next;
    g.next += grains(bytes);
    pthread_mutex_unlock(&g.lock);
    return start;
}

uint64_t standin_commit(size_t bytes)
{
    uint64_t handle = 0;
    pthread_mutex_lock(&g.lock);
    begin();
    if (bytes <= g.limit - g.used) {
        g.used += bytes;
        g.commits = grow(g.commits, g.commit_count + 1, sizeof *g.commits);
        g.commits[g.commit_count++] = bytes;
        handle = g.commit_count;
    }
    pthread_mutex_unlock(&g.lock);
    return handle;
}

void standin_release(uint64_t handle)
{
    pthread_mutex_lock(&g.lock);
    if (handle > 0 && handle <= g.commit_count) {
        g.used -= g.commits[handle - 1];
        g.commits[handle - 1] = 0;
    }
    pthread_mutex_unlock(&g.lock);
}

void *standin_symbol(void)
{
    pthread_mutex_lock(&g.lock);
    begin();
    pthread_mutex_unlock(&g.lock);
    return g.base + SPAN - (1 << 20);
}

void *standin_handle(void)
{
    return (void *)__atomic_add_fetch(&g.handles, 16, __ATOMIC_RELAXED);
}

void tessera_standin_answer(const void *value, size_t bytes)
{
    answer *a = malloc(sizeof *a + bytes);
    if (!a)
        abort();
    a->next = NULL;
    a->bytes = bytes;
    memcpy(a->value, value, bytes);
    pthread_mutex_lock(&g.lock);
    *g.last = a;
    g.last = &a->next;
    g.waiting++;
    pthread_mutex_unlock(&g.lock);
}

size_t tessera_standin_unanswered(void)
{
    return g.unanswered;
}

size_t tessera_standin_waiting(void)
{
    return g.waiting;
}

/* Integers are little-endian, so a shorter or longer read of an answer keeps its value. */
void standin_read(void *to, size_t bytes)
{
    memset(to, 0, bytes);
    pthread_mutex_lock(&g.lock);
    answer *a = g.first;
    if (a) {
        memcpy(to, a->value, a->bytes < bytes ? a->bytes : bytes);
        g.first = a->next;
        if (!g.first)
            g.last = &g.first;
        g.waiting--;
        free(a);
    } else {
        g.unanswered++;
    }
    pthread_mutex_unlock(&g.lock);
}

void standin_written(const void *address, const void *from, size_t bytes)
{
    pthread_mutex_lock(&g.lock);
    g.copied.address = bytes <= sizeof g.copied.value ? address : NULL;
    g.copied.bytes = bytes;
    if (g.copied.address)
        memcpy(g.copied.value, from, bytes);
    pthread_mutex_unlock(&g.lock);
}

size_t tessera_standin_copied(const void *address, void *to, size_t room)
{
    pthread_mutex_lock(&g.lock);
    size_t bytes =
        address && g.copied.address == address && g.copied.bytes <= room ? g.copied.bytes : 0;
    memcpy(to, g.copied.value, bytes);
    pthread_mutex_unlock(&g.lock);
    return bytes;
}
