/* test_text.c: what may stand in a line for people: known texts, and any bytes at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sim/base/text.h"
#include "tests/engine/layout_testing.h"

static void known_texts(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"plain", "plain"},
        {"", ""},
        {"\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x98\x80",
         "\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x98\x80"},
        {"a\nb\rc\td", "a\\nb\\rc\\td"},
        {"\x1b[31m\x01\x7f", "\\x1b[31m\\x01\\x7f"},
        {"\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0", "\\u0080\\u009b\\u009f\xc2\xa0"},
        {"\xe2\x80\xa7\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa\xe2\x80\xae\xe2\x80\xaf",
         "\xe2\x80\xa7\\u2028\\u2029\\u202a\\u202e\xe2\x80\xaf"},
        {"\xe2\x81\xa5\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xaa",
         "\xe2\x81\xa5\\u2066\\u2069\xe2\x81\xaa"},
        {"\xd8\x9c\xe2\x80\x8d\xe2\x80\x8e\xe2\x80\x8f", "\\u061c\xe2\x80\x8d\\u200e\\u200f"},
        {"\xff\xc0\x80\xc3", "\\xff\\xc0\\x80\\xc3"},                            /* no UTF-8 */
        {"\xed\xa0\x80\xf4\x90\x80\x80", "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80"}, /* no characters */
        {"\xe0\x80\x8a", "\\xe0\\x80\\x8a"}, /* a long newline */
        {"back\\slash", "back\\slash"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char out[160];
        size_t n = tsr_text_show(out, sizeof out, pairs[i][0]);
        assert_string_equal(out, pairs[i][1]);
        assert_int_equal(n, strlen(out));
        assert_string_equal(tsr_show(pairs[i][0]).text, pairs[i][1]);
        assert_string_equal(tsr_show(out).text, out); /* a second time changes nothing */
    }
    assert_int_equal(tsr_text_columns("\xe6\xbc\xa2\n"), 3);
}

/* Any bytes, half of them dangerous. */
static void make(char *text, size_t n)
{
    static const char *const pieces[] = {
        "\x1b", "\n",           "\xc2", "\x9b", "\xe2\x80",
        "\xae", "\xe2\x81\xa6", "a",    "\xff", "\xf0\x9f\x98\x80"};
    text[0] = '\0';
    for (size_t used = 0; used + 8 < n; used = strlen(text)) {
        if (test_random(2))
            strcat(text, pieces[test_random(10)]);
        else
            strcat(text, (char[]){(char)(1 + test_random(255)), '\0'});
    }
}

static bool is_clean(const char *text)
{
    unsigned code;
    size_t n;
    for (; *text; text += n) {
        n = tsr_text_character(text, TSR_TEXT_LONGEST, &code);
        if (n == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0) ||
            (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069))
            return false;
    }
    return true;
}

static void any_text_is_clean_and_fits(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        char text[64], whole[512], cut[512];
        make(text, 8 + test_random(sizeof text - 8));
        size_t n = tsr_text_show(whole, sizeof whole, text);
        assert_true(is_clean(whole));
        size_t room = 8 + test_random(64), k = tsr_text_show(cut, room, text);
        assert_true(k < room && k == strlen(cut) && is_clean(cut));
        if (n < room) {
            assert_string_equal(cut, whole);
        } else {
            assert_string_equal(cut + k - 3, "...");
            assert_memory_equal(cut, whole, k - 3);
        }
        char *put = NULL;
        size_t bytes = 0;
        FILE *stream = open_memstream(&put, &bytes);
        assert_non_null(stream);
        tsr_text_put(stream, text);
        fclose(stream);
        assert_string_equal(put, whole);
        free(put);
    }
}

static void lines_stay(void **state)
{
    (void)state;
    char *put = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&put, &bytes);
    assert_non_null(stream);
    tsr_text_put_lines(stream, "\na\n\n\x1b\n\tb");
    fclose(stream);
    assert_string_equal(put, "\na\n\n\\x1b\n\\tb");
    free(put);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_texts),
                                       cmocka_unit_test(any_text_is_clean_and_fits),
                                       cmocka_unit_test(lines_stay)};
    test_seed("test_text");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
