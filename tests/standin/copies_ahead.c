/* copies_ahead.c: see copies_ahead.h. */
#include "tests/standin/copies_ahead.h"

#include <stdlib.h>
#include <string.h>

#include "exec/cuda/kernels/shim.h"

enum { MAX_THREADS = 1024, BYTES = 16 };

struct copy {
    void *to;
    const void *from;
    unsigned group;
};

/* Of a kernel's thread. */
struct copies {
    size_t n, cap;
    struct copy *waiting; /* oldest first */
    unsigned groups;      /* that it has ended */
};

/* An OS thread runs one block at a time. */
static _Thread_local bool is_late;
static _Thread_local struct copies of[MAX_THREADS];

static void drop_all(void)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        of[i].n = 0;
        of[i].groups = 0;
    }
}

void tsr_copies_begin(bool late)
{
    is_late = late;
    drop_all();
}

void tsr_copies_end(void)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        free(of[i].waiting);
        of[i] = (struct copies){.waiting = NULL};
    }
}

static void add(struct copies *c, const struct copy *copy)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 32;
        c->waiting = realloc(c->waiting, c->cap * sizeof *c->waiting);
        if (!c->waiting)
            abort();
    }
    c->waiting[c->n++] = *copy;
}

void tsr_shim_copy_ahead(void *to, const void *from)
{
    struct copies *c = &of[tsr_shim_place.thread];
    tsr_shim_check_aligned(to, 16);
    tsr_shim_check_aligned(from, 16);
    if (is_late)
        add(c, &(struct copy){to, from, c->groups});
    else
        memcpy(to, from, BYTES);
}

void tsr_shim_copies_mark(void)
{
    of[tsr_shim_place.thread].groups++;
}

/* Groups come in order. */
void tsr_shim_copies_wait(unsigned last)
{
    struct copies *c = &of[tsr_shim_place.thread];
    size_t n = 0;
    for (; n < c->n && c->waiting[n].group + last < c->groups; n++)
        memcpy(c->waiting[n].to, c->waiting[n].from, BYTES);
    c->n -= n;
    if (n > 0)
        memmove(c->waiting, c->waiting + n, c->n * sizeof *c->waiting);
}
