/* bench_allocator.c: what one allocation or free costs, by the number of live blocks, and what a
 * naive list of all blocks (naive_allocator.h) needs for the same requests. Both must give the same
 * addresses.
 *
 * The live blocks are those of a program that replaces a random block by another, all the time: the
 * sets then hold as many free blocks as they ever do.
 */
#include "tests/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/naive_allocator.h"

enum { N_STREAMS = 4 };

/* One step: the block at `slot` is freed (if there is one) and replaced. */
struct request {
    uint32_t slot;
    uint16_t stream;
    uint64_t bytes;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Fills n_live slots, then replaces n times. Sizes over all magnitudes up to 32 MiB. */
static struct request *make_requests(uint32_t n_live, uint32_t n)
{
    struct request *requests = malloc((n_live + n) * sizeof *requests);
    uint64_t random = 88172645463325252u;
    for (uint32_t i = 0; requests && i < n_live + n; i++) {
        uint64_t r = next_random(&random);
        requests[i] = (struct request){
            .slot = i < n_live ? i : (uint32_t)(r >> 8) % n_live,
            .stream = (uint16_t)(next_random(&random) >> 20) % N_STREAMS,
            .bytes = 1 + (next_random(&random) >> (39 + r % 22)),
        };
    }
    return requests;
}

/* Seconds that requests [n_live, n_live + n) take; *hash: of all addresses. Negative: failed. */
static double run_fast(const struct request *requests, uint32_t n_live, uint32_t n, uint64_t *hash)
{
    const struct tsr_allocator_config config = {0};
    struct tsr_block *live = calloc(n_live, sizeof *live);
    struct tsr_allocator *a = NULL;
    double start = 0.0, seconds = -1.0;
    if (!live || tsr_allocator_create(&config, NULL, NULL, NULL, &a) != TSR_OK)
        goto out;
    for (uint32_t i = 0; i < n_live + n; i++) {
        const struct request *r = &requests[i];
        if (i == n_live)
            start = bench_cpu();
        if (i >= n_live)
            tsr_allocator_free(a, live[r->slot].handle);
        if (tsr_allocator_alloc(a, r->bytes, r->stream, &live[r->slot]) != TSR_OK)
            goto out;
        *hash = tsr_hash_u64(*hash, live[r->slot].address);
    }
    seconds = bench_cpu() - start;
out:
    tsr_allocator_destroy(a);
    free(live);
    return seconds;
}

static double run_naive(const struct request *requests, uint32_t n_live, uint32_t n, uint64_t *hash)
{
    const struct tsr_allocator_config config = {0};
    struct naive_block **live = calloc(n_live, sizeof *live);
    struct naive naive;
    double start = 0.0;
    if (!live)
        return -1.0;
    naive_init(&naive, &config, NULL, NULL);
    for (uint32_t i = 0; i < n_live + n; i++) {
        const struct request *r = &requests[i];
        if (i == n_live)
            start = bench_cpu();
        if (i >= n_live)
            naive_free(&naive, live[r->slot]);
        live[r->slot] = naive_alloc(&naive, r->bytes, r->stream);
        *hash = tsr_hash_u64(*hash, live[r->slot]->address);
    }
    double seconds = bench_cpu() - start;
    naive_fini(&naive);
    free(live);
    return seconds;
}

static int compare(uint32_t n_live, uint32_t n, const double *ns)
{
    struct request *requests = make_requests(n_live, n);
    uint64_t fast_hash = TSR_HASH_INIT, naive_hash = TSR_HASH_INIT;
    double fast = requests ? run_fast(requests, n_live, n, &fast_hash) : -1.0;
    double naive = fast >= 0.0 ? run_naive(requests, n_live, n, &naive_hash) : -1.0;
    free(requests);
    if (fast < 0.0 || naive < 0.0) {
        fprintf(stderr, "bench: the allocator failed with %u live blocks\n", n_live);
        return 1;
    }
    if (fast_hash != naive_hash) {
        fprintf(stderr, "bench: allocator and naive list differ with %u live blocks\n", n_live);
        return 1;
    }
    printf("  %6u live blocks: naive list %10.0f ns, %6.1f times (same %u addresses)\n", n_live,
           1e9 * naive / (2.0 * n), (naive / (2.0 * n)) / (1e-9 * *ns), n_live + n);
    return 0;
}

enum { N_SIZES = 4, N_ROUNDS = 7 };
static const uint32_t sizes[N_SIZES] = {100, 1000, 10000, 100000};

/* ns per allocation or free, for each size; the best of some rounds, so that what else runs on the
 * machine counts little. */
static int measure(double ns[N_SIZES])
{
    const uint32_t n = 400000;
    for (int k = 0; k < N_ROUNDS * N_SIZES; k++) {
        int i = k % N_SIZES;
        struct request *requests = make_requests(sizes[i], n);
        uint64_t hash = TSR_HASH_INIT;
        double seconds = requests ? run_fast(requests, sizes[i], n, &hash) : -1.0;
        free(requests);
        if (seconds < 0.0)
            return 1;
        double each = 1e9 * seconds / (2.0 * n);
        if (k < N_SIZES || each < ns[i])
            ns[i] = each;
    }
    return 0;
}

int bench_allocator(void)
{
    static const uint32_t naive_requests[N_SIZES] = {20000, 10000, 2000}; /* 100000: minutes */
    double ns[N_SIZES];
    int failed = 0;
    if (measure(ns) != 0)
        return 1;
    printf("allocator, CPU time per allocation or free:\n");
    for (int i = 0; i < N_SIZES; i++) {
        printf("  %6u live blocks: %5.0f ns", sizes[i], ns[i]);
        if (i > 0)
            printf(", %.2f times that of %u (logarithmic: %.2f)", ns[i] / ns[0], sizes[0],
                   log(sizes[i]) / log(sizes[0]));
        printf("\n");
    }
    for (int i = 0; i < N_SIZES; i++)
        if (naive_requests[i])
            failed |= compare(sizes[i], naive_requests[i], &ns[i]);
    return failed;
}
