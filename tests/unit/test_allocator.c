/* test_allocator.c: the allocator's rules one by one, and random stress against its invariants.
 *
 * That whole runs come out exactly is tested in tests/conformance/test_allocator_replay.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/empty_cache.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)

/* What the callbacks said. */
struct device {
    uint64_t reserved;
    unsigned n_allocs, n_frees, n_maps, n_unmaps, n_releases;
    uint64_t freed[16]; /* bytes of the first releases, in order */
    uint32_t next_segment;
};

static void on_segment(void *user, enum tsr_segment_action action, uint32_t segment,
                       uint64_t address, uint64_t bytes, uint16_t stream)
{
    struct device *d = user;
    (void)stream;
    assert_int_equal(bytes % (2 * MIB), 0);
    assert_int_equal(address % 512, 0);
    switch (action) {
    case TSR_SEG_ALLOC:
        assert_true(segment >= d->next_segment); /* numbers are never used again */
        d->next_segment = segment + 1;
        d->reserved += bytes;
        d->n_allocs++;
        break;
    case TSR_SEG_FREE:
        if (d->n_frees < 16)
            d->freed[d->n_frees] = bytes;
        d->reserved -= bytes;
        d->n_frees++;
        break;
    case TSR_SEG_MAP:
        d->reserved += bytes;
        d->n_maps++;
        break;
    case TSR_SEG_UNMAP:
        d->reserved -= bytes;
        d->n_unmaps++;
        break;
    }
}

static void on_release(void *user)
{
    ((struct device *)user)->n_releases++;
}

static struct tsr_allocator *create(struct tsr_allocator_config config, struct device *device)
{
    struct tsr_allocator *a;
    *device = (struct device){0};
    assert_int_equal(tsr_allocator_create(&config, on_segment, on_release, device, &a), TSR_OK);
    return a;
}

static struct tsr_block take(struct tsr_allocator *a, uint64_t bytes, uint16_t stream)
{
    struct tsr_block block;
    assert_int_equal(tsr_allocator_alloc(a, bytes, stream, &block), TSR_OK);
    return block;
}

/* ---- rules ------------------------------------------------------------------------------- */

static void test_allocator__sizes__rounding_and_segments(void **state)
{
    (void)state;
    struct device d;
    struct tsr_allocator *a = create((struct tsr_allocator_config){0}, &d);
    assert_int_equal(take(a, 1, 0).bytes, 512);
    assert_int_equal(d.reserved, 2 * MIB);
    assert_int_equal(take(a, 513, 0).bytes, 1024);
    assert_int_equal(take(a, MIB + 1, 0).bytes, MIB + 512); /* large pool, cut from 20 MiB */
    assert_int_equal(d.reserved, 22 * MIB);
    /* The rest is not above 1 MiB: the whole block is handed out and counts. */
    assert_int_equal(take(a, 11 * MIB + 512, 0).bytes, 11 * MIB + 512);
    assert_int_equal(take(a, 10 * MIB - 512, 1).bytes, 10 * MIB - 512);
    struct tsr_block whole = take(a, 19 * MIB, 2);
    assert_int_equal(whole.bytes, 20 * MIB);
    assert_int_equal(tsr_allocator_stats(a).requested,
                     1 + 513 + MIB + 1 + 11 * MIB + 512 + 10 * MIB - 512 + 19 * MIB);
    tsr_allocator_destroy(a);
}

static void test_allocator__best_fit__smallest_then_lowest_of_its_stream(void **state)
{
    (void)state;
    struct device d;
    struct tsr_allocator *a = create((struct tsr_allocator_config){0}, &d);
    struct tsr_block holes[4];
    static const uint64_t sizes[4] = {40 * KIB, 20 * KIB, 20 * KIB, 60 * KIB};
    for (int i = 0; i < 4; i++) {
        holes[i] = take(a, sizes[i], 0);
        (void)take(a, 512, 0); /* keeps neighbours from merging */
    }
    (void)take(a, 2 * MIB - 144 * KIB, 0); /* large pool: elsewhere */
    for (int i = 3; i >= 0; i--)
        tsr_allocator_free(a, holes[i].handle);
    assert_int_equal(take(a, 20 * KIB, 0).address, holes[1].address);
    assert_int_equal(take(a, 15 * KIB, 0).address, holes[2].address);
    assert_int_equal(take(a, 30 * KIB, 0).address, holes[0].address);
    /* Another stream does not see them. */
    assert_true(take(a, 60 * KIB, 1).segment != holes[3].segment);
    assert_int_equal(take(a, 60 * KIB, 0).address, holes[3].address);
    tsr_allocator_destroy(a);
}

static void test_allocator__roundup_power2__next_of_equal_steps(void **state)
{
    (void)state;
    struct device d;
    struct tsr_allocator *a =
        create((struct tsr_allocator_config){.roundup_power2_divisions = 4}, &d);
    assert_int_equal(take(a, 1200, 0).bytes, 1536); /* not above 4 x 512: as usual */
    assert_int_equal(take(a, 5 * KIB + 1, 0).bytes, 6 * KIB);
    assert_int_equal(take(a, 8 * KIB, 0).bytes, 8 * KIB);
    assert_int_equal(take(a, 1200 * KIB, 0).bytes, 1280 * KIB);
    tsr_allocator_destroy(a);
    /* By size class: 8 below 2 MiB, none from 2 to 4, 2 from 4 on. */
    a = create((struct tsr_allocator_config){.roundup_classes = {8, 1, 2}}, &d);
    assert_int_equal(take(a, 520 * KIB, 0).bytes, 576 * KIB);
    assert_int_equal(take(a, 2 * MIB + 1, 0).bytes, 2 * MIB + 512);
    assert_int_equal(take(a, 5 * MIB, 0).bytes, 6 * MIB);
    assert_int_equal(take(a, 65 * MIB, 0).bytes, 66 * MIB); /* class 6: not named */
    tsr_allocator_destroy(a);
}

static void test_allocator__max_split__oversize_blocks_stay_whole(void **state)
{
    (void)state;
    struct device d;
    struct tsr_allocator *a = create(
        (struct tsr_allocator_config){.max_split_bytes = 32 * MIB, .device_bytes = 200 * MIB}, &d);
    struct tsr_block big = take(a, 100 * MIB, 0);
    tsr_allocator_free(a, big.handle);
    /* A small request may not cut it, one of about its size may have it whole. */
    struct tsr_block small = take(a, 12 * MIB, 0);
    assert_int_not_equal(small.address, big.address);
    struct tsr_block fit = take(a, 81 * MIB, 0);
    assert_int_equal(fit.address, big.address);
    assert_int_equal(fit.bytes, 100 * MIB);
    tsr_allocator_free(a, fit.handle);
    /* 60 MiB is too far below 100 MiB; there is room for a segment of its own. */
    struct tsr_block other = take(a, 60 * MIB, 0);
    assert_int_equal(other.bytes, 60 * MIB);
    /* A wider slack lets the next one have 100 MiB for 60. */
    struct device wide_device;
    struct tsr_allocator *wide =
        create((struct tsr_allocator_config){.max_split_bytes = 32 * MIB,
                                             .max_non_split_rounding_bytes = 41 * MIB},
               &wide_device);
    tsr_allocator_free(wide, take(wide, 100 * MIB, 0).handle);
    assert_int_equal(take(wide, 60 * MIB, 0).bytes, 100 * MIB);
    tsr_allocator_destroy(wide);
    /* Full: the cached oversize block goes, and nothing else; that is no retry. */
    (void)take(a, 75 * MIB, 0);
    assert_int_equal(d.n_frees, 1);
    assert_int_equal(d.freed[0], 100 * MIB);
    assert_int_equal(d.n_releases, 1); /* the device must be idle for that, too */
    assert_int_equal(tsr_allocator_stats(a).n_alloc_retries, 0);
    tsr_allocator_destroy(a);
}

static void test_allocator__retry__releases_large_pool_first_then_small(void **state)
{
    (void)state;
    struct device d;
    struct tsr_allocator *a = create((struct tsr_allocator_config){.device_bytes = 100 * MIB}, &d);
    struct tsr_block small = take(a, 1000, 0), late = take(a, 30 * MIB, 0),
                     early = take(a, 20 * MIB, 1), kept = take(a, 3 * MIB, 2);
    tsr_allocator_set_stream_order(a, 0, 9);
    tsr_allocator_free(a, small.handle);
    tsr_allocator_free(a, late.handle);
    tsr_allocator_free(a, early.handle);
    (void)take(a, 70 * MIB, 0);
    assert_int_equal(d.n_releases, 1);
    assert_int_equal(tsr_allocator_stats(a).n_alloc_retries, 1);
    assert_int_equal(d.n_frees, 3);
    assert_int_equal(d.freed[0], 20 * MIB); /* stream 1 comes before stream 0 now */
    assert_int_equal(d.freed[1], 30 * MIB);
    assert_int_equal(d.freed[2], 2 * MIB);
    assert_int_equal(tsr_allocator_stats(a).reserved, 90 * MIB);
    tsr_allocator_free(a, kept.handle);
    tsr_allocator_destroy(a);
}

static void test_allocator__device__takes_the_range_that_was_released_first(void **state)
{
    (void)state;
    struct device d;
    struct tsr_allocator *a = create((struct tsr_allocator_config){0}, &d);
    struct tsr_block blocks[3];
    for (uint16_t i = 0; i < 3; i++)
        blocks[i] = take(a, 12 * MIB, i);
    tsr_allocator_free(a, blocks[1].handle);
    empty_cache(a);
    tsr_allocator_free(a, blocks[0].handle);
    empty_cache(a);
    assert_int_equal(take(a, 14 * MIB, 0).address, 36 * MIB);
    assert_int_equal(take(a, 12 * MIB, 0).address, 12 * MIB);
    assert_int_equal(take(a, 12 * MIB, 0).address, 0);
    tsr_allocator_destroy(a);
}

static void test_allocator__expandable__grows_at_the_end_and_unmaps_whole_units(void **state)
{
    (void)state;
    struct device d;
    struct tsr_allocator *a = create(
        (struct tsr_allocator_config){.expandable_segments = true, .device_bytes = 400 * MIB}, &d);
    struct tsr_block first = take(a, 15 * MIB, 0);
    assert_int_equal(d.reserved, 20 * MIB);
    struct tsr_block second = take(a, 50 * MIB, 0); /* 5 MiB are there, 45 more are mapped as 60 */
    assert_int_equal(second.address, first.address + 15 * MIB);
    assert_int_equal(d.reserved, 80 * MIB);
    struct tsr_block third = take(a, 10 * MIB, 0);
    assert_int_equal(third.address, first.address + 65 * MIB);
    /* [15, 65) MiB are free: units [20, 60) go back, the edges stay. */
    tsr_allocator_free(a, second.handle);
    empty_cache(a);
    assert_int_equal(d.reserved, 40 * MIB);
    assert_int_equal(d.n_unmaps, 1);
    /* The hole is mapped again, from the free block before it. */
    struct tsr_block again = take(a, 30 * MIB, 0);
    assert_int_equal(again.address, first.address + 15 * MIB);
    assert_int_equal(d.reserved, 80 * MIB);
    tsr_allocator_free(a, first.handle);
    tsr_allocator_free(a, again.handle);
    tsr_allocator_free(a, third.handle);
    empty_cache(a);
    assert_int_equal(d.reserved, 0);
    tsr_allocator_destroy(a);
}

static void test_allocator__garbage__old_blocks_go_before_a_new_segment(void **state)
{
    (void)state;
    struct device d;
    struct tsr_allocator *a =
        create((struct tsr_allocator_config){.gc_threshold = 0.5, .device_bytes = 100 * MIB}, &d);
    struct tsr_block old = take(a, 30 * MIB, 0), young = take(a, 26 * MIB, 1);
    (void)take(a, 3 * MIB, 2);
    tsr_allocator_free(a, old.handle);
    for (int i = 0; i < 10; i++) /* look-ups in the large pool age what is free */
        tsr_allocator_free(a, take(a, 3 * MIB, 2).handle);
    tsr_allocator_free(a, young.handle);
    (void)take(a, 22 * MIB, 3);
    /* 76 MiB are held, 26 above the threshold: the older of the two free blocks is enough. */
    assert_int_equal(d.n_frees, 1);
    assert_int_equal(d.freed[0], 30 * MIB);
    assert_int_equal(d.n_releases, 1); /* the device must be idle for that, too */
    assert_int_equal(tsr_allocator_stats(a).n_alloc_retries, 0);
    tsr_allocator_destroy(a);
}

static void test_allocator__oom__says_what_was_asked_and_what_is_there(void **state)
{
    (void)state;
    for (int expandable = 0; expandable < 2; expandable++) {
        struct device d;
        struct tsr_allocator *a =
            create((struct tsr_allocator_config){.device_bytes = 64 * MIB,
                                                 .expandable_segments = expandable},
                   &d);
        struct tsr_block block, held = take(a, 30 * MIB, 0);
        assert_int_equal(tsr_allocator_alloc(a, 50 * MIB, 0, &block), TSR_EOOM);
        assert_null(block.handle);
        assert_non_null(strstr(tsr_error_text(), "52428800 bytes")); /* the request */
        assert_non_null(strstr(tsr_error_text(), "67108864 bytes")); /* the device */
        assert_non_null(strstr(tsr_error_text(), "31457280 bytes")); /* allocated */
        assert_int_equal(tsr_allocator_stats(a).n_ooms, 1);
        assert_int_equal(tsr_allocator_stats(a).n_alloc_retries, 1);
        assert_int_equal(tsr_allocator_alloc(a, UINT64_MAX, 0, &block), TSR_EOOM);
        assert_int_equal(tsr_allocator_alloc(a, UINT64_MAX / 8, 0, &block), TSR_EOOM);
        /* It can go on. */
        tsr_allocator_free(a, take(a, 20 * MIB, 0).handle);
        tsr_allocator_free(a, held.handle);
        empty_cache(a);
        assert_int_equal(tsr_allocator_stats(a).reserved, 0);
        tsr_allocator_destroy(a);
    }
}

static void test_allocator__config__refuses_what_makes_no_sense(void **state)
{
    (void)state;
    struct tsr_allocator *a;
    struct tsr_allocator_config gc = {.gc_threshold = 1.5};
    assert_int_equal(tsr_allocator_create(&gc, NULL, NULL, NULL, &a), TSR_ECONFIG);
    assert_null(a);
    static const struct tsr_allocator_config refused[] = {
        {.max_split_bytes = MIB},
        {.max_split_bytes = 30 * MIB, .large_segment_bytes = 40 * MIB},
        {.large_segment_bytes = 10 * MIB},
        {.large_segment_bytes = UINT64_MAX},
        {.max_non_split_rounding_bytes = 19 * MIB},
        {.max_non_split_rounding_bytes = UINT64_MAX},
        {.roundup_power2_divisions = 3},
        {.roundup_classes = {2, 4, 6}},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(tsr_allocator_create(&refused[i], NULL, NULL, NULL, &a), TSR_ECONFIG);
        assert_non_null(strstr(tsr_error_text(), "allowed: "));
    }
    tsr_allocator_destroy(NULL);
}

/* ---- random stress ----------------------------------------------------------------------- */

enum { MAX_LIVE = 600, N_STEPS = 20000 };

struct live {
    struct tsr_block block;
    uint64_t requested;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t random_bytes(uint64_t *random)
{
    /* Sizes over all magnitudes; often the same few, as in a model. */
    uint64_t r = next_random(random);
    if (r % 3 == 0)
        return (1 + (r >> 8) % 6) * 3 * MIB;
    return 1 + (next_random(random) >> (40 + r % 20));
}

static int by_address(const void *a, const void *b)
{
    const struct live *x = a, *y = b;
    return (x->block.address > y->block.address) - (x->block.address < y->block.address);
}

/* No overlap, and the sums are those of the live blocks. */
static void check_live(const struct tsr_allocator *a, const struct live *live, size_t n)
{
    static struct live sorted[MAX_LIVE];
    uint64_t allocated = 0, requested = 0;
    memcpy(sorted, live, n * sizeof *live);
    qsort(sorted, n, sizeof *sorted, by_address);
    for (size_t i = 0; i < n; i++) {
        allocated += sorted[i].block.bytes;
        requested += sorted[i].requested;
        assert_true(sorted[i].block.bytes >= sorted[i].requested);
        if (i > 0)
            assert_true(sorted[i - 1].block.address + sorted[i - 1].block.bytes <=
                        sorted[i].block.address);
    }
    struct tsr_allocator_stats stats = tsr_allocator_stats(a);
    assert_int_equal(stats.allocated, allocated);
    assert_int_equal(stats.requested, requested);
    assert_true(stats.peak_allocated >= allocated && stats.peak_reserved >= stats.reserved);
}

/* The sets are sorted, neighbours tile their segment, and what could merge has merged. */
static uint64_t check_set(const struct tsr_alloc_set *set)
{
    uint64_t bytes = 0;
    const struct tsr_alloc_block *last = NULL;
    for (struct tsr_alloc_block *b = tsr_alloc_set_first(set); b; b = tsr_alloc_set_after(set, b)) {
        assert_false(b->in_use);
        if (last && last->stream_key == b->stream_key && !b->unmapped)
            assert_true(last->bytes < b->bytes ||
                        (last->bytes == b->bytes && last->address < b->address));
        if (b->prev) {
            assert_int_equal(b->prev->address + b->prev->bytes, b->address);
            assert_true(b->prev->next == b);
            assert_true(b->prev->in_use || b->prev->unmapped != b->unmapped);
        } else {
            assert_int_equal(b->address, b->segment->address);
        }
        if (b->next)
            assert_true(b->next->in_use || b->next->unmapped != b->unmapped);
        else
            assert_int_equal(b->address + b->bytes, b->segment->address + b->segment->bytes);
        bytes += b->unmapped ? 0 : b->bytes;
        last = b;
    }
    return bytes;
}

static void check_all(const struct tsr_allocator *a, const struct device *d,
                      const struct live *live, size_t n)
{
    check_live(a, live, n);
    uint64_t free_bytes = check_set(&a->small.blocks) + check_set(&a->large.blocks);
    (void)check_set(&a->small.unmapped);
    (void)check_set(&a->large.unmapped);
    assert_int_equal(a->stats.reserved, d->reserved);
    assert_int_equal(a->stats.reserved, a->stats.allocated + free_bytes);
    assert_true(a->stats.inactive_split <= free_bytes);
    if (a->config.device_bytes)
        assert_true(d->reserved <= a->config.device_bytes);
}

static void stress(struct tsr_allocator_config config, uint64_t seed)
{
    static struct live live[MAX_LIVE];
    struct device d;
    struct tsr_allocator *a = create(config, &d);
    size_t n = 0;
    for (int step = 0; step < N_STEPS; step++) {
        uint64_t r = next_random(&seed);
        size_t aim = step / 2000 % 2 ? MAX_LIVE / 8 : MAX_LIVE; /* fill and drain in turns */
        if (n < aim && (r % 100 < 55 || n == 0)) {
            uint64_t bytes = random_bytes(&seed);
            struct tsr_block block;
            tsr_status status = tsr_allocator_alloc(a, bytes, (uint16_t)(r >> 32) % 3, &block);
            assert_true(status == TSR_OK || status == TSR_EOOM);
            if (status == TSR_OK)
                live[n++] = (struct live){block, bytes};
        } else if (n > 0) {
            size_t victim = (r >> 16) % n;
            tsr_allocator_free(a, live[victim].block.handle);
            live[victim] = live[--n];
        }
        if (step % 997 == 0)
            empty_cache(a);
        if (step % 50 == 0)
            check_all(a, &d, live, n);
    }
    while (n > 0)
        tsr_allocator_free(a, live[--n].block.handle);
    check_all(a, &d, live, 0);
    assert_int_equal(a->stats.inactive_split, 0); /* every segment is one free block again */
    empty_cache(a);
    assert_int_equal(tsr_allocator_stats(a).reserved, 0);
    tsr_allocator_destroy(a);
}

static void test_allocator__stress__invariants_hold(void **state)
{
    (void)state;
    static const struct tsr_allocator_config configs[] = {
        {0},
        {.device_bytes = 900 * MIB},
        {.expandable_segments = true},
        {.expandable_segments = true, .device_bytes = 900 * MIB},
        {.max_split_bytes = 20 * MIB, .device_bytes = 900 * MIB},
        {.gc_threshold = 0.6, .device_bytes = 900 * MIB},
        {.roundup_power2_divisions = 8, .large_segment_bytes = 64 * MIB},
    };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++)
        for (uint64_t seed = 1; seed <= 3; seed++)
            stress(configs[i], seed * 7919);
}

/* ---- speed ------------------------------------------------------------------------------- */

static uint64_t sum_of_depths(const struct tsr_alloc_block *block, unsigned depth, uint64_t *n)
{
    if (!block)
        return 0;
    ++*n;
    return depth + sum_of_depths(block->left, depth + 1, n) +
           sum_of_depths(block->right, depth + 1, n);
}

/* Mean depth of a block in a set of about `n` blocks, all of one size or all of different ones. */
static double mean_depth(unsigned n, bool same_size)
{
    static struct tsr_block blocks[1 << 15];
    struct device d;
    struct tsr_allocator *a = create((struct tsr_allocator_config){0}, &d);
    assert_true(n <= sizeof blocks / sizeof blocks[0]);
    for (unsigned i = 0; i < n; i++)
        blocks[i] = take(a, same_size ? 512 : 512 * (uint64_t)(1 + i % 2048), 0);
    for (unsigned i = 0; i < n; i += 2) /* every other one: nothing merges */
        tsr_allocator_free(a, blocks[i].handle);
    uint64_t count = 0, sum = sum_of_depths(a->small.blocks.root, 1, &count);
    assert_true(count >= n / 3);
    tsr_allocator_destroy(a);
    return (double)sum / (double)count;
}

static void test_allocator__sets__depth_grows_as_the_logarithm(void **state)
{
    (void)state;
    for (int same_size = 0; same_size < 2; same_size++) {
        unsigned bits = 8;
        for (unsigned n = 1 << bits; bits <= 15; n *= 2, bits++)
            /* A random search tree has 1.39 log2; a list would have n / 4. */
            assert_true(mean_depth(n, same_size) < 2.0 * bits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocator__sizes__rounding_and_segments),
        cmocka_unit_test(test_allocator__best_fit__smallest_then_lowest_of_its_stream),
        cmocka_unit_test(test_allocator__roundup_power2__next_of_equal_steps),
        cmocka_unit_test(test_allocator__max_split__oversize_blocks_stay_whole),
        cmocka_unit_test(test_allocator__retry__releases_large_pool_first_then_small),
        cmocka_unit_test(test_allocator__device__takes_the_range_that_was_released_first),
        cmocka_unit_test(test_allocator__expandable__grows_at_the_end_and_unmaps_whole_units),
        cmocka_unit_test(test_allocator__garbage__old_blocks_go_before_a_new_segment),
        cmocka_unit_test(test_allocator__oom__says_what_was_asked_and_what_is_there),
        cmocka_unit_test(test_allocator__config__refuses_what_makes_no_sense),
        cmocka_unit_test(test_allocator__stress__invariants_hold),
        cmocka_unit_test(test_allocator__sets__depth_grows_as_the_logarithm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
