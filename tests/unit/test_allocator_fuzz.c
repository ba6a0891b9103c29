/* test_allocator_fuzz.c: random requests, streams and options: engine/allocator/allocator.c and a
 * naive list (naive_allocator.h) must give the same addresses, block sizes, segments, refusals and
 * statistics at every step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/empty_cache.h"
#include "tests/naive_allocator.h"

enum { MAX_LIVE = 250, N_STEPS = 1500, N_CONFIGS = 400, N_STREAMS = 4 };

/* All that was said about segments, as one number and a count. */
struct log {
    uint64_t hash, n;
};

static void on_segment(void *user, enum tsr_segment_action action, uint32_t segment,
                       uint64_t address, uint64_t bytes, uint16_t stream)
{
    struct log *log = user;
    (void)segment;
    log->hash = tsr_hash_u64(log->hash, (uint64_t)action);
    log->hash = tsr_hash_u64(log->hash, address);
    log->hash = tsr_hash_u64(log->hash, bytes);
    log->hash = tsr_hash_u64(log->hash, stream);
    log->n++;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t below(uint64_t *random, uint64_t n)
{
    return (next_random(random) >> 11) % n;
}

static uint64_t random_bytes(uint64_t *random)
{
    static const uint64_t usual[] = {1,
                                     512,
                                     4096,
                                     NAIVE_MIB,
                                     NAIVE_MIB + 1,
                                     3 * NAIVE_MIB,
                                     10 * NAIVE_MIB - 1,
                                     10 * NAIVE_MIB,
                                     19 * NAIVE_MIB,
                                     24 * NAIVE_MIB};
    switch (below(random, 4)) {
    case 0:
        return usual[below(random, sizeof usual / sizeof usual[0])];
    case 1:
        return 1 + below(random, 40 * NAIVE_MIB);
    default:
        return 1 + below(random, UINT64_C(2) << below(random, 24));
    }
}

static struct tsr_allocator_config random_config(uint64_t *random)
{
    struct tsr_allocator_config c = {.expandable_segments = below(random, 3) == 0};
    if (below(random, 5))
        c.device_bytes = (60 + below(random, 500)) * NAIVE_MIB;
    if (below(random, 4) == 0)
        c.large_segment_bytes = (11 + below(random, 40)) * NAIVE_MIB;
    uint64_t large = c.large_segment_bytes ? c.large_segment_bytes : 20 * NAIVE_MIB;
    if (below(random, 3) == 0)
        c.max_split_bytes = large + below(random, 30) * NAIVE_MIB;
    if (below(random, 3) == 0)
        c.max_non_split_rounding_bytes = large + below(random, 20) * NAIVE_MIB;
    if (below(random, 3) == 0)
        c.roundup_power2_divisions = 1u << below(random, 6);
    if (below(random, 4) == 0)
        for (int i = 0; i < TSR_ALLOC_N_ROUNDUP_CLASSES; i++)
            c.roundup_classes[i] = 1u << below(random, 5);
    if (below(random, 3) == 0)
        c.gc_threshold = 0.2 + 0.1 * (double)below(random, 8);
    return c;
}

struct pair {
    struct tsr_allocator *fast;
    struct naive naive;
    struct log fast_log, naive_log;
    struct {
        struct tsr_block block;
        struct naive_block *naive;
    } live[MAX_LIVE];
    size_t n_live;
};

static void compare(const struct pair *p, bool split)
{
    struct tsr_allocator_stats a = tsr_allocator_stats(p->fast), b = p->naive.stats;
    assert_int_equal(p->fast_log.n, p->naive_log.n);
    assert_int_equal(p->fast_log.hash, p->naive_log.hash);
    assert_int_equal(a.allocated, b.allocated);
    assert_int_equal(a.requested, b.requested);
    assert_int_equal(a.reserved, b.reserved);
    assert_int_equal(a.peak_allocated, b.peak_allocated);
    assert_int_equal(a.peak_requested, b.peak_requested);
    assert_int_equal(a.peak_reserved, b.peak_reserved);
    assert_int_equal(a.n_alloc_retries, b.n_alloc_retries);
    assert_int_equal(a.n_ooms, b.n_ooms);
    if (split)
        assert_int_equal(a.inactive_split, naive_inactive_split(&p->naive));
}

static void take(struct pair *p, uint64_t bytes, uint16_t stream)
{
    struct tsr_block block;
    tsr_status status = tsr_allocator_alloc(p->fast, bytes, stream, &block);
    struct naive_block *naive = naive_alloc(&p->naive, bytes, stream);
    assert_int_equal(status, naive ? TSR_OK : TSR_EOOM);
    if (!naive)
        return;
    assert_int_equal(block.address, naive->address);
    assert_int_equal(block.bytes, naive->bytes);
    p->live[p->n_live].block = block;
    p->live[p->n_live++].naive = naive;
}

static void give(struct pair *p, size_t i)
{
    tsr_allocator_free(p->fast, p->live[i].block.handle);
    naive_free(&p->naive, p->live[i].naive);
    p->live[i] = p->live[--p->n_live];
}

static void step(struct pair *p, size_t aim, uint64_t *random)
{
    if (below(random, 300) == 0) {
        empty_cache(p->fast);
        naive_release_all(&p->naive);
    } else if (p->n_live > 0 && (p->n_live >= aim || below(random, 100) < 42)) {
        give(p, below(random, p->n_live));
    } else {
        take(p, random_bytes(random), (uint16_t)below(random, N_STREAMS));
    }
}

static struct tsr_allocator_stats run(const struct tsr_allocator_config *config, uint64_t *random)
{
    static struct pair p;
    p = (struct pair){.fast_log = {TSR_HASH_INIT, 0}, .naive_log = {TSR_HASH_INIT, 0}};
    assert_int_equal(tsr_allocator_create(config, on_segment, NULL, &p.fast_log, &p.fast), TSR_OK);
    naive_init(&p.naive, config, on_segment, &p.naive_log);
    for (int i = 0; i < N_STEPS; i++) {
        size_t aim = i / 300 % 2 ? MAX_LIVE / 8 : MAX_LIVE; /* fill and drain in turns */
        step(&p, aim, random);
        compare(&p, i % 8 == 0);
    }
    struct tsr_allocator_stats stats = tsr_allocator_stats(p.fast);
    while (p.n_live)
        give(&p, p.n_live - 1);
    compare(&p, true);
    tsr_allocator_destroy(p.fast);
    naive_fini(&p.naive);
    return stats;
}

static void test_fuzz__same_as_a_naive_list__random_options(void **state)
{
    (void)state;
    uint64_t random = 88172645463325252u, retries = 0, ooms = 0;
    for (int i = 0; i < N_CONFIGS; i++) {
        struct tsr_allocator_config config = random_config(&random);
        struct tsr_allocator_stats stats = run(&config, &random);
        retries += stats.n_alloc_retries;
        ooms += stats.n_ooms;
    }
    print_message("%d steps with %d sets of options, %llu retries, %llu refusals\n",
                  N_STEPS * N_CONFIGS, N_CONFIGS, (unsigned long long)retries,
                  (unsigned long long)ooms);
    assert_true(retries > 100 && ooms > 10); /* the rare paths were taken */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fuzz__same_as_a_naive_list__random_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
