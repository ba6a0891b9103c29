/* shim.c: see shim.h. */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { MAX_THREADS = 1024, WARP = 32, STACK_BYTES = 64 << 10 };

_Thread_local struct tsr_shim_place tsr_shim_place;
_Thread_local void *tsr_shim_shared;

/* The fibers of a block. */
struct block {
    unsigned threads, running;
    unsigned n_ended;
    bool ended[MAX_THREADS];
    double values[MAX_THREADS]; /* of shuffles */
    ucontext_t fibers[MAX_THREADS], scheduler;
    unsigned char *stacks;
    void (*body)(const void *params);
    const void *params;
};
static _Thread_local struct block *current;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HAVE_FIBERS = false };
#else
enum { HAVE_FIBERS = true };
#endif

void tsr_shim_sync(void)
{
    struct block *b = current;
    if (!b)
        return; /* a thread alone */
    swapcontext(&b->fibers[b->running], &b->scheduler);
}

/* Two rounds: all have written, then all have read. */
double tsr_shim_shuffle(double x, int lanes)
{
    struct block *b = current;
    if (!b)
        return x;
    unsigned me = b->running, other = me / WARP * WARP + ((me % WARP) ^ (unsigned)lanes);
    b->values[me] = x;
    tsr_shim_sync();
    double y = other < b->threads ? b->values[other] : x;
    tsr_shim_sync();
    return y;
}

static void fiber_main(void)
{
    struct block *b = current;
    b->body(b->params);
    b->ended[b->running] = true;
    b->n_ended++;
    swapcontext(&b->fibers[b->running], &b->scheduler);
}

static void make_fiber(struct block *b, unsigned i)
{
    getcontext(&b->fibers[i]);
    b->fibers[i].uc_stack.ss_sp = b->stacks + (size_t)i * STACK_BYTES;
    b->fibers[i].uc_stack.ss_size = STACK_BYTES;
    b->fibers[i].uc_link = NULL;
    makecontext(&b->fibers[i], fiber_main, 0);
    b->ended[i] = false;
}

/* Round after round: every fiber runs to its next tsr_sync(), or to its end. */
static void run_together(struct block *b)
{
    b->n_ended = 0;
    for (unsigned i = 0; i < b->threads; i++)
        make_fiber(b, i);
    current = b;
    while (b->n_ended < b->threads) {
        unsigned before = b->n_ended;
        for (unsigned i = 0; i < b->threads; i++) {
            if (b->ended[i])
                continue;
            b->running = i;
            tsr_shim_place.thread = i;
            swapcontext(&b->scheduler, &b->fibers[i]);
        }
        if (before != b->n_ended && b->n_ended < b->threads) {
            fprintf(stderr, "shim: threads of a block ended while others wait\n");
            abort();
        }
    }
    current = NULL;
}

static void run_apart(const struct tsr_shim_kernel *kernel, unsigned threads, const void *params)
{
    for (unsigned i = 0; i < threads; i++) {
        tsr_shim_place.thread = i;
        kernel->body(params);
    }
}

/* A permutation of [0, n): i times an odd-step stride that has no divisor in common with n. */
static uint64_t stride_of(uint64_t n, uint64_t seed)
{
    uint64_t stride = n > 2 && seed ? seed % (n - 1) + 1 : 1;
    for (;; stride++) {
        uint64_t a = n, b = stride;
        while (b) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            return stride;
    }
}

void tsr_shim_run(const struct tsr_shim_kernel *kernel, unsigned blocks_x, unsigned blocks_y,
                  unsigned threads, size_t shared, const void *params, uint64_t seed)
{
    bool together = kernel->cooperates && HAVE_FIBERS;
    struct block *b = NULL;
    uint64_t n = (uint64_t)blocks_x * blocks_y, stride = stride_of(n, seed);
    if (kernel->cooperates && !HAVE_FIBERS)
        threads = 1;
    if (together) {
        b = malloc(sizeof *b);
        unsigned char *stacks = malloc((size_t)threads * STACK_BYTES);
        if (!b || !stacks || threads > MAX_THREADS)
            abort();
        b->stacks = stacks;
        b->threads = threads;
        b->body = kernel->body;
        b->params = params;
    }
    tsr_shim_shared = shared ? malloc(shared) : NULL;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t block = i * stride % n;
        tsr_shim_place = (struct tsr_shim_place){.threads = threads,
                                                 .block_x = block % blocks_x,
                                                 .blocks_x = blocks_x,
                                                 .block_y = block / blocks_x};
        if (together)
            run_together(b);
        else
            run_apart(kernel, threads, params);
    }
    free(tsr_shim_shared);
    tsr_shim_shared = NULL;
    if (b)
        free(b->stacks);
    free(b);
}
