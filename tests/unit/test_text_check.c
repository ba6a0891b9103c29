/* The look at a text before it is parsed: UTF-8 against its definition, every sequence of three
 * bytes included; control characters; lines; levels and values of JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sim/base/json_load.h"
#include "tests/thorough.h"

/* UTF-8 by Table 3-7 of the Unicode standard: what follows each first byte. */
static size_t well_formed(const unsigned char *b, size_t n)
{
    static const struct {
        unsigned char first[2], second[2], n;
    } rows[] = {{{0x00, 0x7f}, {0, 0}, 1},       {{0xc2, 0xdf}, {0x80, 0xbf}, 2},
                {{0xe0, 0xe0}, {0xa0, 0xbf}, 3}, {{0xe1, 0xec}, {0x80, 0xbf}, 3},
                {{0xed, 0xed}, {0x80, 0x9f}, 3}, {{0xee, 0xef}, {0x80, 0xbf}, 3},
                {{0xf0, 0xf0}, {0x90, 0xbf}, 4}, {{0xf1, 0xf3}, {0x80, 0xbf}, 4},
                {{0xf4, 0xf4}, {0x80, 0x8f}, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (b[0] < rows[i].first[0] || b[0] > rows[i].first[1] || rows[i].n > n)
            continue;
        bool fits = rows[i].n == 1 || (b[1] >= rows[i].second[0] && b[1] <= rows[i].second[1]);
        for (size_t k = 2; k < rows[i].n; k++)
            fits = fits && b[k] >= 0x80 && b[k] <= 0xbf;
        return fits ? rows[i].n : 0;
    }
    return 0;
}

static bool is_text(const unsigned char *b, size_t n)
{
    if (n >= 2 && (b[0] ^ b[1]) == 1 && b[0] >= 0xfe)
        return false; /* UTF-16 */
    for (size_t i = 0, step; i < n; i += step) {
        step = well_formed(b + i, n - i);
        bool c0 = step == 1 && b[i] < 0x20 && !strchr("\t\n\r", b[i] ? b[i] : 'x');
        bool c1 = step == 2 && b[i] == 0xc2 && b[i + 1] < 0xa0;
        if (!step || c0 || c1 || b[i] == 0x7f)
            return false;
    }
    return true;
}

static void check(const unsigned char *b, size_t n)
{
    struct tsr_text_flaw flaw;
    if (tsr_text_find_flaw((const char *)b, n, &flaw) == is_text(b, n))
        fail_msg("%zu bytes: %02x %02x %02x %02x", n, b[0], b[1], b[2], b[3]);
}

static void three_bytes(void **state)
{
    const uint32_t step =
        (uint32_t)tests_stride(7); /* an odd step visits every value of each byte */
    (void)state;
    for (uint32_t i = 0; i < 1u << 24; i += step) {
        unsigned char b[4] = {(unsigned char)(i >> 16), (unsigned char)(i >> 8), (unsigned char)i};
        check(b, 3);
        if ((i & 0xff) == 0)
            check(b, 2);
        if ((i & 0xffff) == 0)
            check(b, 1);
    }
}

static void four_bytes(void **state)
{
    static const unsigned char edges[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0xbf, 0xc0, 0xff};
    (void)state;
    for (unsigned first = 0xe0; first <= 0xff; first++)
        for (size_t i = 0; i < 8 * 8 * 8; i++) {
            unsigned char b[4] = {(unsigned char)first, edges[i / 64], edges[i / 8 % 8],
                                  edges[i % 8]};
            check(b, 4);
        }
}

static void lines(void **state)
{
    struct tsr_text_flaw flaw;
    (void)state;
    assert_true(tsr_text_find_flaw("a\nb\r\nc\x1b", 7, &flaw));
    assert_int_equal(flaw.line, 3);
    assert_non_null(strstr(flaw.text, "U+001B"));
    assert_false(tsr_text_find_flaw("", 0, &flaw));
    assert_false(tsr_text_find_flaw("\xef\xbb\xbf", 3, &flaw));
    assert_int_equal(tsr_text_check("x.csv", false, "\n\xff", 2), TSR_ECONFIG);
    assert_string_equal(tsr_error_text(),
                        "x.csv:2: byte 0xff is not UTF-8; allowed: text in UTF-8");
    assert_int_equal(tsr_text_check("--set a=\xff", true, "\xff", 1), TSR_ECONFIG);
    assert_string_equal(tsr_error_text(),
                        "--set a=\xff: byte 0xff is not UTF-8; allowed: text in UTF-8");
}

static size_t nested(char *out, size_t depth, const char *middle)
{
    memset(out, '[', depth);
    size_t n = depth + (size_t)sprintf(out + depth, "%s", middle);
    memset(out + n, ']', depth);
    return n + depth;
}

static void json(void **state)
{
    char text[512];
    struct tsr_text_flaw flaw;
    json_error_t error;
    (void)state;
    assert_false(
        tsr_json_find_flaw(text, nested(text, TSR_TEXT_DEPTH, "\"[[\\\"[[\""), 100, &flaw));
    assert_true(tsr_json_find_flaw(text, nested(text, TSR_TEXT_DEPTH + 1, "1"), 100, &flaw));
    assert_string_equal(flaw.text, "nested deeper than 64 levels");
    /* an array, and its items */
    assert_false(tsr_json_find_flaw("[1,2,\n3]", 8, 4, &flaw));
    assert_true(tsr_json_find_flaw("[1,2,\n3,4]", 10, 4, &flaw));
    assert_string_equal(flaw.text, "more than 4 values");
    assert_int_equal(flaw.line, 2);
    assert_false(tsr_json_find_flaw("\"\\", 2, 4, &flaw)); /* the parser's to refuse */

    assert_null(tsr_json_loadb("{\"a\":1,\n\"a\":2}", 14, 100, &error));
    assert_int_equal(error.line, 2);
    assert_null(tsr_json_loadb("[\xff]", 3, 100, &error));
    assert_string_equal(error.text, "byte 0xff is not UTF-8; allowed: text in UTF-8");
    assert_int_equal(json_error_code(&error), json_error_invalid_syntax);
    assert_null(tsr_json_loadb("[\xff]", 3, 100, NULL));
    json_t *root = tsr_json_loadb("[[1]]", 5, 100, &error);
    assert_int_equal(json_array_size(root), 1);
    json_decref(root);
    assert_int_equal(tsr_json_load("/nowhere.json", 100, &root), TSR_ECONFIG);
    assert_null(root);
    assert_string_equal(tsr_error_text(),
                        "/nowhere.json: cannot be opened: No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_bytes),
        cmocka_unit_test(four_bytes),
        cmocka_unit_test(lines),
        cmocka_unit_test(json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
