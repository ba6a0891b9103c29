/* test_bucket.c: the bucket assignment rule alone. Rule R207. */
#include "engine/ddp/bucket.h"
#include "tests/engine/layout_testing.h"

static void check_plan(const struct tsr_bucket_plan *p, size_t n_buckets, const size_t *first,
                       const size_t *items, const uint64_t *limits)
{
    assert_int_equal(p->n_buckets, n_buckets);
    for (size_t b = 0; b <= n_buckets; b++)
        assert_int_equal(p->first[b], first[b]);
    for (size_t i = 0; i < first[n_buckets]; i++)
        assert_int_equal(p->items[i], items[i]);
    for (size_t b = 0; b < n_buckets; b++)
        assert_int_equal(p->limits[b], limits[b]);
}

/* R207: a bucket closes with the item that reaches its limit, be it by one byte or exactly. */
static void bucket_closes_at_its_limit(void **state)
{
    (void)state;
    static const struct tsr_bucket_item items[] = {{60, TSR_F32}, {40, TSR_F32},  {99, TSR_F32},
                                                   {1, TSR_F32},  {500, TSR_F32}, {5, TSR_F32}};
    static const uint64_t limits[] = {100};
    struct tsr_bucket_plan p;
    assert_int_equal(tsr_bucket_assign(items, 6, limits, 1, &p), TSR_OK);
    check_plan(&p, 4, (size_t[]){0, 2, 4, 5, 6}, (size_t[]){0, 1, 2, 3, 4, 5},
               (uint64_t[]){100, 100, 100, 100});
    tsr_bucket_plan_fini(&p);
}

/* Each dtype has buckets, and first limits, of its own; sorting goes by the smallest item. */
static void dtypes_do_not_share(void **state)
{
    (void)state;
    static const struct tsr_bucket_item items[] = {{10, TSR_BF16}, {10, TSR_F32}, {10, TSR_F32},
                                                   {30, TSR_BF16}, {10, TSR_F32}, {9, TSR_F32}};
    static const uint64_t limits[] = {20, 10};
    struct tsr_bucket_plan p;
    assert_int_equal(tsr_bucket_assign(items, 6, limits, 2, &p), TSR_OK);
    check_plan(&p, 4, (size_t[]){0, 2, 4, 5, 6}, (size_t[]){1, 2, 0, 3, 4, 5},
               (uint64_t[]){20, 20, 10, 10});
    assert_int_equal(tsr_bucket_sort(&p), TSR_OK);
    check_plan(&p, 4, (size_t[]){0, 2, 4, 5, 6}, (size_t[]){0, 3, 1, 2, 4, 5},
               (uint64_t[]){20, 20, 10, 10});
    tsr_bucket_plan_fini(&p);
}

static void every_item_is_in_one_bucket(void **state)
{
    (void)state;
    enum { N = 60 };
    test_seed("buckets");
    for (int round = 0; round < 500; round++) {
        struct tsr_bucket_item items[N];
        uint64_t limits[2] = {test_random(300), 1 + test_random(600)};
        unsigned seen[N] = {0};
        size_t n = (size_t)test_random(N);
        struct tsr_bucket_plan p;
        for (size_t i = 0; i < n; i++)
            items[i] = (struct tsr_bucket_item){test_random(200),
                                                (tsr_dtype)(1 + test_random(TSR_N_DTYPES - 1))};
        assert_int_equal(tsr_bucket_assign(items, n, limits, 2, &p), TSR_OK);
        assert_int_equal(tsr_bucket_sort(&p), TSR_OK);
        for (size_t b = 0; b < p.n_buckets; b++) {
            uint64_t before = 0;
            for (size_t i = p.first[b]; i < p.first[b + 1]; i++) {
                seen[p.items[i]]++;
                assert_int_equal(items[p.items[i]].dtype, items[p.items[p.first[b]]].dtype);
                assert_true(i == p.first[b] || p.items[i] > p.items[i - 1]);
                assert_true(i == p.first[b] || before < p.limits[b]);
                before += items[p.items[i]].bytes;
            }
            assert_true(b == 0 || p.items[p.first[b]] > p.items[p.first[b - 1]]);
        }
        for (size_t i = 0; i < n; i++)
            assert_int_equal(seen[i], 1);
        tsr_bucket_plan_fini(&p);
    }
}

static void malformed_input_is_refused(void **state)
{
    (void)state;
    static const struct tsr_bucket_item huge[] = {{UINT64_MAX, TSR_F32}, {1, TSR_F32}};
    static const struct tsr_bucket_item untyped[] = {{4, TSR_DTYPE_NONE}};
    static const uint64_t limits[] = {UINT64_MAX};
    struct tsr_bucket_plan p;
    assert_int_equal(tsr_bucket_assign(untyped, 1, limits, 0, &p), TSR_EVALUE);
    assert_int_equal(tsr_bucket_assign(untyped, 1, limits, 1, &p), TSR_EVALUE);
    assert_non_null(strstr(tsr_error_text(), "tensor 0"));
    assert_int_equal(tsr_bucket_assign(NULL, 0, limits, 1, &p), TSR_OK);
    assert_int_equal(p.n_buckets, 0);
    assert_int_equal(tsr_bucket_sort(&p), TSR_OK);
    tsr_bucket_plan_fini(&p);
    /* the first one reaches any limit, so the second begins a bucket */
    assert_int_equal(tsr_bucket_assign(huge, 2, limits, 1, &p), TSR_OK);
    assert_int_equal(p.n_buckets, 2);
    tsr_bucket_plan_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bucket_closes_at_its_limit),
                                       cmocka_unit_test(dtypes_do_not_share),
                                       cmocka_unit_test(every_item_is_in_one_bucket),
                                       cmocka_unit_test(malformed_input_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
