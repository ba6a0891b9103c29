/* fibers.c: see fibers.h. Contexts are made once for each OS thread; fibers change by _longjmp(),
 * which makes no system call.
 */
#undef _FORTIFY_SOURCE /* its longjmp() takes other stacks for a mistake */
#include "tests/standin/fibers.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { MAX_THREADS = 1024, WARP = 32, STACK_BYTES = 64 << 10 };
enum barrier { OF_BLOCK, OF_WARP, AT_END };

struct fiber {
    jmp_buf at;
    bool begun;
    enum barrier barrier; /* where it waits */
    uint64_t waits;       /* how often it has waited */
};

/* Of an OS thread. */
struct fibers {
    unsigned threads, running;
    bool backwards, inside;
    unsigned *place;
    void (*body)(const void *params);
    const void *params;
    jmp_buf caller;
    struct fiber fibers[MAX_THREADS];
    unsigned char stacks[MAX_THREADS][STACK_BYTES];
};
static _Thread_local struct fibers *mine;
static pthread_key_t key; /* frees `mine` when the OS thread ends */
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool tsr_fibers_work(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#else
    return true;
#endif
}

bool tsr_fibers_inside(void)
{
    return mine && mine->inside;
}

static void begin_fiber(void);

static void go_to(struct fibers *b, unsigned i)
{
    struct fiber *f = &b->fibers[i];
    b->running = i;
    *b->place = i;
    if (f->begun)
        _longjmp(f->at, 1);
    ucontext_t context;
    f->begun = true;
    getcontext(&context);
    context.uc_stack.ss_sp = b->stacks[i];
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = NULL;
    makecontext(&context, begin_fiber, 0);
    setcontext(&context);
}

/* All that wait together have come to the same barrier. */
static void check(const struct fibers *b, unsigned begin, unsigned end)
{
    const struct fiber *first = &b->fibers[begin];
    for (unsigned i = begin; i < end; i++)
        if (b->fibers[i].barrier != first->barrier || b->fibers[i].waits != first->waits) {
            fprintf(stderr, "shim: threads %u and %u of a block do not meet\n", begin, i);
            abort();
        }
}

/* Who runs next, after the one that runs has come to a barrier. */
static void go_on(struct fibers *b, enum barrier barrier)
{
    unsigned me = b->running, begin = barrier == OF_WARP ? me / WARP * WARP : 0, end = b->threads;
    if (barrier == OF_WARP && end > begin + WARP)
        end = begin + WARP;
    bool last = b->backwards ? me == begin : me + 1 == end;
    if (!last)
        go_to(b, b->backwards ? me - 1 : me + 1);
    check(b, begin, end);
    if (barrier == AT_END)
        _longjmp(b->caller, 1);
    go_to(b, b->backwards ? end - 1 : begin);
}

static void wait_at(enum barrier barrier)
{
    struct fibers *b = mine;
    struct fiber *f = &b->fibers[b->running];
    f->barrier = barrier;
    f->waits++;
    if (_setjmp(f->at) == 0)
        go_on(b, barrier);
}

static void begin_fiber(void)
{
    for (;;) { /* one block after the other */
        mine->body(mine->params);
        wait_at(AT_END);
    }
}

void tsr_fibers_wait_block(void)
{
    wait_at(OF_BLOCK);
}

void tsr_fibers_wait_warp(void)
{
    wait_at(OF_WARP);
}

static void make_key(void)
{
    if (pthread_key_create(&key, free) != 0)
        abort();
}

static struct fibers *make_fibers(void)
{
    struct fibers *b = calloc(1, sizeof *b);
    if (!b || pthread_once(&once, make_key) != 0 || pthread_setspecific(key, b) != 0)
        abort();
    return b;
}

/* Until all have come to their end. */
static void enter(struct fibers *b)
{
    if (_setjmp(b->caller) == 0)
        go_to(b, b->backwards ? b->threads - 1 : 0);
}

void tsr_fibers_run(unsigned threads, bool backwards, unsigned *place,
                    void (*body)(const void *params), const void *params)
{
    struct fibers *b = mine ? mine : make_fibers();
    if (threads == 0 || threads > MAX_THREADS)
        abort();
    b->threads = threads;
    b->backwards = backwards;
    b->place = place;
    b->body = body;
    b->params = params;
    b->inside = true;
    mine = b;
    for (unsigned i = 0; i < threads; i++)
        b->fibers[i].waits = 0;
    enter(b);
    b->inside = false;
}
