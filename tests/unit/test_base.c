/* test_base.c: error text, dtypes, checked arithmetic, hashing, arrays and arenas. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/program/base.h"

static void test_base__error_text__keeps_the_last_and_may_quote_it(void **state)
{
    (void)state;
    assert_int_equal(tsr_fail(TSR_EVALUE, "size %d", 3), TSR_EVALUE);
    assert_string_equal(tsr_error_text(), "size 3");
    assert_int_equal(tsr_fail(TSR_ECONFIG, "file.yaml: %s", tsr_error_text()), TSR_ECONFIG);
    assert_string_equal(tsr_error_text(), "file.yaml: size 3");
}

static void test_base__error_text__is_cut_at_one_kib(void **state)
{
    (void)state;
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)tsr_fail(TSR_EIO, "%s", text);
    assert_int_equal(strlen(tsr_error_text()), 1023);
}

static void *fail_elsewhere(void *arg)
{
    (void)tsr_fail(TSR_EIO, "other thread");
    return arg;
}

static void test_base__error_text__belongs_to_its_thread(void **state)
{
    (void)state;
    pthread_t thread;
    (void)tsr_fail(TSR_EIO, "mine");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(tsr_error_text(), "mine");
}

static tsr_status try_it(tsr_status status)
{
    TSR_TRY(status);
    return TSR_EIO;
}

static void test_base__status__try_returns_only_failures(void **state)
{
    (void)state;
    assert_int_equal(try_it(TSR_OK), TSR_EIO);
    assert_int_equal(try_it(TSR_EINDEX), TSR_EINDEX);
    assert_string_equal(tsr_status_class(TSR_EVALUE), "ValueError");
    assert_string_equal(tsr_status_class(TSR_ENOTIMPL), "NotImplementedError");
    assert_string_equal(tsr_status_class(TSR_ENOMEM), "Error");
}

static void test_base__dtypes__names_sizes_and_aliases(void **state)
{
    (void)state;
    static const unsigned bytes[TSR_N_DTYPES] = {0, 4, 2, 2, 8, 8, 1, 1};
    for (int d = 0; d < TSR_N_DTYPES; d++) {
        assert_int_equal(tsr_dtype_bytes((tsr_dtype)d), bytes[d]);
        if (d != TSR_DTYPE_NONE)
            assert_int_equal(tsr_dtype_parse(tsr_dtype_name((tsr_dtype)d)), d);
    }
    assert_int_equal(tsr_dtype_parse("bfloat16"), TSR_BF16);
    assert_int_equal(tsr_dtype_parse("fp32"), TSR_F32);
    assert_int_equal(tsr_dtype_parse("float32"), TSR_F32);
    assert_int_equal(tsr_dtype_parse("fp8"), TSR_F8);
    assert_int_equal(tsr_dtype_parse("fp4"), TSR_DTYPE_NONE);
    assert_int_equal(tsr_dtype_parse("none"), TSR_DTYPE_NONE);
    assert_int_equal(tsr_dtype_parse(NULL), TSR_DTYPE_NONE);
    assert_true(tsr_dtype_is_float(TSR_F16));
    assert_false(tsr_dtype_is_float(TSR_I64));
    assert_int_equal(tsr_dtype_bytes((tsr_dtype)99), 0);
}

static void test_base__arithmetic__refuses_overflow(void **state)
{
    (void)state;
    uint64_t out = 7;
    assert_false(tsr_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    assert_false(tsr_add_u64(UINT64_MAX, 1, &out));
    assert_int_equal(out, 7);
    assert_true(tsr_mul_u64(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &out));
    assert_true(out == UINT64_C(0xffffffff00000000));
    assert_true(tsr_mul_u64(UINT64_MAX, 0, &out));
    assert_int_equal(out, 0);
    assert_true(tsr_add_u64(UINT64_MAX - 1, 1, &out));
    assert_true(out == UINT64_MAX);
    assert_int_equal(tsr_ceil_div(7, 3), 3);
    assert_int_equal(tsr_ceil_div(7, 0), 0);
    assert_true(tsr_ceil_div(UINT64_MAX, 2) == UINT64_C(1) << 63);
    assert_int_equal(tsr_round_up(513, 512), 1024);
    assert_int_equal(tsr_round_up(512, 512), 512);
}

static void test_base__hash__is_fnv_1a(void **state)
{
    (void)state;
    /* Published test vectors of 64-bit FNV-1a. */
    assert_true(tsr_hash_bytes(TSR_HASH_INIT, "", 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(tsr_hash_bytes(TSR_HASH_INIT, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(tsr_hash_bytes(TSR_HASH_INIT, "foobar", 6) == UINT64_C(0x85944171f73967e8));
    uint64_t ab = tsr_hash_u64(tsr_hash_u64(TSR_HASH_INIT, 1), 2);
    uint64_t ba = tsr_hash_u64(tsr_hash_u64(TSR_HASH_INIT, 2), 1);
    assert_true(ab != ba);
}

static void test_base__arena__zeroed_aligned_and_disjoint(void **state)
{
    (void)state;
    struct tsr_arena arena;
    tsr_arena_init(&arena);
    enum { N = 4000 };
    static unsigned char *items[N];
    static size_t sizes[N];
    unsigned random = 1;
    for (size_t i = 0; i < N; i++) {
        random = random * 1103515245u + 12345u;
        /* Mostly small, now and then larger than a block. */
        sizes[i] = i % 500 == 7 ? 300000 + i : (random >> 16) % 200;
        items[i] = tsr_arena_alloc(&arena, sizes[i]);
        assert_non_null(items[i]);
        assert_int_equal((uintptr_t)items[i] % 16, 0);
        for (size_t b = 0; b < sizes[i]; b++)
            assert_int_equal(items[i][b], 0);
        memset(items[i], (int)(i & 0xff), sizes[i]);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t b = 0; b < sizes[i]; b++)
            assert_int_equal(items[i][b], i & 0xff);
    assert_null(tsr_arena_alloc(&arena, SIZE_MAX - 3));
    tsr_arena_fini(&arena);
    assert_null(arena.head);
}

static void test_base__arena__text(void **state)
{
    (void)state;
    struct tsr_arena arena;
    tsr_arena_init(&arena);
    const char *copy = tsr_arena_strdup(&arena, "layers.0");
    const char *text = tsr_arena_printf(&arena, "%s.%d", copy, 17);
    assert_string_equal(text, "layers.0.17");
    assert_string_equal(copy, "layers.0");
    tsr_arena_fini(&arena);
}

static void test_base__push__grows_and_keeps(void **state)
{
    (void)state;
    uint32_t *items = NULL;
    size_t n = 0, cap = 0;
    for (uint32_t i = 0; i < 1000; i++)
        assert_true(TSR_PUSH(items, n, cap, i * 3));
    assert_int_equal(n, 1000);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(items[i], i * 3);
    assert_false(tsr_grow(&items, SIZE_MAX / 2, &cap, sizeof *items));
    assert_int_equal(items[999], 2997);
    free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base__error_text__keeps_the_last_and_may_quote_it),
        cmocka_unit_test(test_base__error_text__is_cut_at_one_kib),
        cmocka_unit_test(test_base__error_text__belongs_to_its_thread),
        cmocka_unit_test(test_base__status__try_returns_only_failures),
        cmocka_unit_test(test_base__dtypes__names_sizes_and_aliases),
        cmocka_unit_test(test_base__arithmetic__refuses_overflow),
        cmocka_unit_test(test_base__hash__is_fnv_1a),
        cmocka_unit_test(test_base__arena__zeroed_aligned_and_disjoint),
        cmocka_unit_test(test_base__arena__text),
        cmocka_unit_test(test_base__push__grows_and_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
