/* data_testing.h: what the tests of files share: an own folder, files of given bytes, and messages
 * of one line that must name things.
 */
#ifndef TSR_DATA_TESTING_H
#define TSR_DATA_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/program/base.h"

enum { TEST_PATH_BYTES = 512 };

static char test_folder[TEST_PATH_BYTES];

static inline int test_folder_make(void **state)
{
    (void)state;
    const char *top = getenv("TMPDIR");
    (void)snprintf(test_folder, sizeof test_folder, "%s/tessera-test-XXXXXX", top ? top : "/tmp");
    return mkdtemp(test_folder) ? 0 : -1;
}

static inline int test_folder_remove(void **state)
{
    (void)state;
    char command[TEST_PATH_BYTES + 16];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", test_folder);
    return system(command); /* NOLINT: our own path */
}

/* folder/name, valid until the fourth next call. */
static inline const char *test_path(const char *name)
{
    static char paths[4][2 * TEST_PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", test_folder, name);
    return path;
}

static inline void test_write(const char *path, const void *data, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* The whole file with a zero behind it; to be freed. */
static inline char *test_read(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size >= 0);
    rewind(file);
    char *data = malloc((size_t)size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, file), size);
    data[size] = '\0';
    (void)fclose(file);
    if (n)
        *n = (size_t)size;
    return data;
}

/* The error text is one line with these fragments (until NULL) in it. */
static inline void test_error_names(const char *first, ...)
{
    const char *text = tsr_error_text();
    assert_null(strchr(text, '\n'));
    va_list rest;
    va_start(rest, first);
    for (const char *want = first; want; want = va_arg(rest, const char *))
        if (!strstr(text, want))
            fail_msg("\"%s\" is not in: %s", want, text);
    va_end(rest);
}

#endif
