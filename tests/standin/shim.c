/* shim.c: see shim.h. */
#include "tests/standin/shim.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/standin/copies_ahead.h"
#include "tests/standin/fibers.h"

enum { MAX_THREADS = 1024, WARP = 32 };

_Thread_local struct tsr_shim_place tsr_shim_place;
_Thread_local void *tsr_shim_shared;
_Thread_local unsigned tsr_shim_shared_size;
static _Thread_local const char *running = "none";

void tsr_shim_sync(void)
{
    if (tsr_fibers_inside()) /* else a thread alone */
        tsr_fibers_wait_block();
}

void tsr_shim_sync_warp(void)
{
    if (tsr_fibers_inside())
        tsr_fibers_wait_warp();
}

/* Two rounds: all have written, then all have read. */
double tsr_shim_shuffle(double x, int lanes)
{
    static _Thread_local double values[MAX_THREADS];
    if (!tsr_fibers_inside())
        return x;
    unsigned me = tsr_shim_place.thread, other = me / WARP * WARP + ((me % WARP) ^ (unsigned)lanes);
    values[me] = x;
    tsr_fibers_wait_warp();
    double y = other < tsr_shim_place.threads ? values[other] : x;
    tsr_fibers_wait_warp();
    return y;
}

void tsr_shim_misaligned(const void *p, size_t n)
{
    fprintf(stderr, "stand-in: kernel %s: misaligned address: %zu bytes at %p\n", running, n, p);
    abort();
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

/* Shared memory has no contents that a kernel may count on. */
static void *make_shared(size_t bytes)
{
    unsigned char *shared = bytes ? malloc(bytes) : NULL;
    if (bytes && !shared)
        abort();
    for (size_t i = 0; i < bytes; i++)
        shared[i] = 0xff;
    return shared;
}

void tsr_shim_run(const struct tsr_shim_kernel *kernel, unsigned blocks_x, unsigned blocks_y,
                  unsigned threads, size_t shared, const void *params, uint64_t seed)
{
    bool together = kernel->cooperates && tsr_fibers_work();
    uint64_t n = (uint64_t)blocks_x * blocks_y, stride = stride_of(n, seed);
    if (kernel->cooperates && !together)
        threads = 1;
    running = kernel->name;
    tsr_shim_shared = make_shared(shared);
    tsr_shim_shared_size = (unsigned)shared;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t block = i * stride % n;
        tsr_shim_place = (struct tsr_shim_place){.threads = threads,
                                                 .block_x = block % blocks_x,
                                                 .blocks_x = blocks_x,
                                                 .block_y = block / blocks_x};
        tsr_copies_begin(seed % 2 == 0);
        if (together)
            tsr_fibers_run(threads, seed & 1, &tsr_shim_place.thread, kernel->body, params);
        else
            run_apart(kernel, threads, params);
    }
    tsr_copies_end();
    free(tsr_shim_shared);
    tsr_shim_shared = NULL;
}
