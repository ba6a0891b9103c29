/* init.c: counter-based initial values, made by several threads. */
#include "exec/files/init.h"

#include <pthread.h>
#include <unistd.h>

#include "exec/base/numeric.h"
#include "exec/kernels/elements/initial.h"

/* Fours [begin, k.n) of a box: what one thread makes. A value depends on its place only. */
struct share {
    struct tsr_initial k;
    uint64_t begin;
};

static void *fill_share(void *user)
{
    const struct share *s = user;
    tsr_initial_make(&s->k, s->begin);
    return NULL;
}

enum { MOST_THREADS = 16, FEWEST_FOURS = 1 << 14 }; /* of a thread: some milliseconds */

/* The first share is the caller's, and those for which there is no thread. */
static void fill_shares(struct share *shares, unsigned n)
{
    pthread_t threads[MOST_THREADS];
    bool is_running[MOST_THREADS] = {false};
    for (unsigned i = 1; i < n; i++)
        is_running[i] = pthread_create(&threads[i], NULL, fill_share, &shares[i]) == 0;
    for (unsigned i = 0; i < n; i++)
        if (!is_running[i])
            fill_share(&shares[i]);
    for (unsigned i = 1; i < n; i++)
        if (is_running[i])
            pthread_join(threads[i], NULL);
}

unsigned tsr_init_threads(uint32_t n_ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t each = cores > 0 && n_ranks > 0 ? (uint64_t)cores / n_ranks : 1;
    return (unsigned)tsr_max_u64(1, tsr_min_u64(each, MOST_THREADS));
}

tsr_status tsr_init_piece(uint64_t seed, const struct tsr_piece *piece, unsigned n_threads,
                          void *out)
{
    struct share shares[MOST_THREADS];
    struct tsr_initial k;
    TSR_TRY(tsr_initial_of(seed, piece, out, &k));
    uint64_t most = tsr_min_u64(n_threads, MOST_THREADS), total = k.n;
    unsigned n = (unsigned)tsr_max_u64(1, tsr_min_u64(most, total / FEWEST_FOURS));
    uint64_t each = tsr_ceil_div(total, n);
    for (unsigned i = 0; i < n; i++) {
        k.n = tsr_min_u64((i + 1) * each, total);
        shares[i] = (struct share){.k = k, .begin = tsr_min_u64(i * each, total)};
    }
    fill_shares(shares, n);
    return TSR_OK;
}
