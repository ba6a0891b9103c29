/* test_pickle.c: the bytes of a pickle. The expected ones are those of Python's pickletools; that
 * Python reads whole snapshots is tested in tests/cli/snapshot.sh.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "experiments/study/snapshot/report_pickle.h"

struct writer {
    FILE *out;
    char *bytes;
    size_t n;
    struct tsr__pickle pickle;
};

static struct tsr__pickle *begin(struct writer *w)
{
    *w = (struct writer){0};
    w->out = open_memstream(&w->bytes, &w->n);
    assert_non_null(w->out);
    tsr__pickle_begin(&w->pickle, w->out);
    return &w->pickle;
}

static void finish(struct writer *w, const unsigned char *expected, size_t n)
{
    tsr__pickle_end(&w->pickle);
    assert_int_equal(fclose(w->out), 0);
    assert_int_equal(w->n, n);
    assert_memory_equal(w->bytes, expected, n);
    free(w->bytes);
}

/* Writes one value with `put` and compares what stands between PROTO and STOP. */
#define EXPECT(put, ...)                                                     \
    do {                                                                     \
        static const unsigned char expected[] = {0x80, 4, __VA_ARGS__, '.'}; \
        struct writer w;                                                     \
        struct tsr__pickle *p = begin(&w);                                   \
        put;                                                                 \
        finish(&w, expected, sizeof expected);                               \
    } while (0)

static void test_int__takes_the_shortest_form(void **state)
{
    (void)state;
    EXPECT(tsr__pickle_int(p, 0), 'K', 0);
    EXPECT(tsr__pickle_int(p, 255), 'K', 255);
    EXPECT(tsr__pickle_int(p, 256), 'M', 0, 1);
    EXPECT(tsr__pickle_int(p, 65535), 'M', 0xff, 0xff);
    EXPECT(tsr__pickle_int(p, 65536), 'J', 0, 0, 1, 0);
    EXPECT(tsr__pickle_int(p, -1), 'J', 0xff, 0xff, 0xff, 0xff);
    EXPECT(tsr__pickle_int(p, INT32_MAX), 'J', 0xff, 0xff, 0xff, 0x7f);
    EXPECT(tsr__pickle_int(p, INT32_MIN), 'J', 0, 0, 0, 0x80);
}

/* The highest bit is the sign: 2^31 needs a fifth byte. */
static void test_int__is_signed_beyond_32_bits(void **state)
{
    (void)state;
    EXPECT(tsr__pickle_int(p, INT64_C(1) << 31), 0x8a, 5, 0, 0, 0, 0x80, 0);
    EXPECT(tsr__pickle_int(p, (INT64_C(1) << 39) - 1), 0x8a, 5, 0xff, 0xff, 0xff, 0xff, 0x7f);
    EXPECT(tsr__pickle_int(p, INT64_C(1) << 39), 0x8a, 6, 0, 0, 0, 0, 0x80, 0);
    EXPECT(tsr__pickle_int(p, -(INT64_C(1) << 39)), 0x8a, 5, 0, 0, 0, 0, 0x80);
    EXPECT(tsr__pickle_int(p, INT64_MAX), 0x8a, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f);
    EXPECT(tsr__pickle_int(p, INT64_MIN), 0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 0x80);
}

static void test_scalars(void **state)
{
    (void)state;
    EXPECT(tsr__pickle_bool(p, true), 0x88);
    EXPECT(tsr__pickle_bool(p, false), 0x89);
    EXPECT(tsr__pickle_real(p, -2.5), 'G', 0xc0, 4, 0, 0, 0, 0, 0, 0);
}

static void test_text__has_its_length_in_front(void **state)
{
    (void)state;
    EXPECT(tsr__pickle_text(p, ""), 0x8c, 0);
    EXPECT(tsr__pickle_text(p, "\xc3\xa9"), 0x8c, 2, 0xc3, 0xa9);
    char text[301], *bytes = NULL;
    size_t n = 0;
    memset(text, 'x', 300);
    text[300] = '\0';
    FILE *out = open_memstream(&bytes, &n);
    struct tsr__pickle pickle;
    tsr__pickle_begin(&pickle, out);
    tsr__pickle_text(&pickle, text);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(n, 2 + 5 + 300);
    assert_memory_equal(bytes + 2, "X\x2c\x01\x00\x00xxx", 8);
    free(bytes);
}

static void test_containers__take_their_members(void **state)
{
    (void)state;
    EXPECT((tsr__pickle_list(p), tsr__pickle_int(p, 1), tsr__pickle_append(p)), ']', 'K', 1, 'a');
    EXPECT((tsr__pickle_dict(p), tsr__pickle_text(p, "a"), tsr__pickle_bool(p, true),
            tsr__pickle_set(p)),
           '}', 0x8c, 1, 'a', 0x88, 's');
    EXPECT((tsr__pickle_int(p, 0), tsr__pickle_int(p, 0), tsr__pickle_pair(p)), 'K', 0, 'K', 0,
           0x86);
}

static void test_remember__counts_and_gives_back(void **state)
{
    (void)state;
    char *bytes = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&bytes, &n);
    struct tsr__pickle pickle;
    tsr__pickle_begin(&pickle, out);
    tsr__pickle_bool(&pickle, true);
    for (uint32_t i = 0; i < 300; i++)
        assert_int_equal(tsr__pickle_remember(&pickle), i);
    tsr__pickle_get(&pickle, 255);
    tsr__pickle_get(&pickle, 256);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(n, 3 + 300 + 2 + 5);
    assert_int_equal((unsigned char)bytes[3], 0x94);
    assert_memory_equal(bytes + 303, "h\xffj\x00\x01\x00\x00", 7);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int__takes_the_shortest_form),
        cmocka_unit_test(test_int__is_signed_beyond_32_bits),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_text__has_its_length_in_front),
        cmocka_unit_test(test_containers__take_their_members),
        cmocka_unit_test(test_remember__counts_and_gives_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
