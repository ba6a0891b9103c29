/* test_files.c: output files are complete or absent, and errors name file and reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/resource.h>

#include "experiments/study/base/files.h"
#include "tests/report/scratch.h"

static tsr_status write_text(FILE *stream, const void *user)
{
    fputs(user, stream);
    return TSR_OK;
}

static tsr_status write_and_fail(FILE *stream, const void *user)
{
    fputs(user, stream);
    return tsr_fail(TSR_EBACKEND, "on purpose");
}

/* More than a buffer, so that the error comes in the middle. */
static tsr_status write_much(FILE *stream, const void *user)
{
    (void)user;
    for (int i = 0; i < 100000; i++)
        fputs("0123456789\n", stream);
    return TSR_OK;
}

static void test_commit__replaces_the_file(void **state)
{
    (void)state;
    struct scratch scratch = scratch_create();
    char *path = tsr_path_join(scratch.path, "a.txt");
    assert_int_equal(tsr_write_file(path, write_text, "old"), TSR_OK);
    assert_int_equal(tsr_write_file(path, write_text, "new"), TSR_OK);
    char *text = scratch_read(scratch.path, "a.txt");
    assert_string_equal(text, "new");
    assert_int_equal(scratch_n_entries(scratch.path), 1);
    free(text);
    free(path);
    scratch_destroy(&scratch);
}

static void test_failure__leaves_the_old_file(void **state)
{
    (void)state;
    struct scratch scratch = scratch_create();
    char *path = tsr_path_join(scratch.path, "a.txt");
    assert_int_equal(tsr_write_file(path, write_text, "old"), TSR_OK);
    assert_int_equal(tsr_write_file(path, write_and_fail, "half"), TSR_EBACKEND);
    assert_string_equal(tsr_error_text(), "on purpose");
    char *text = scratch_read(scratch.path, "a.txt");
    assert_string_equal(text, "old");
    assert_int_equal(scratch_n_entries(scratch.path), 1);
    free(text);
    free(path);
    scratch_destroy(&scratch);
}

/* What another program does: half a file, or a whole one, under the name that it was told. */
static void draw(const char *folder, const char *name)
{
    char *path = tsr_path_join(folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("drawn", file);
    assert_int_equal(fclose(file), 0);
    free(path);
}

static void test_file_of_another_program__gets_its_name_or_goes(void **state)
{
    (void)state;
    struct scratch scratch = scratch_create();
    struct tsr_outfile file;
    assert_int_equal(tsr_outfile_expect(scratch.path, "a.svg", ".new-a.svg", &file), TSR_OK);
    draw(scratch.path, ".new-a.svg");
    assert_int_equal(tsr_outfile_commit(&file), TSR_OK);
    char *text = scratch_read(scratch.path, "a.svg");
    assert_string_equal(text, "drawn");
    free(text);
    assert_int_equal(tsr_outfile_expect(scratch.path, "b.svg", ".new-b.svg", &file), TSR_OK);
    draw(scratch.path, ".new-b.svg");
    tsr_outfile_abort(&file);
    tsr_outfile_abort(&file);
    assert_int_equal(scratch_n_entries(scratch.path), 1);
    assert_int_equal(tsr_outfile_expect(scratch.path, "c.svg", ".new-c.svg", &file), TSR_OK);
    assert_int_equal(tsr_outfile_commit(&file), TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), "/c.svg: cannot be written: nothing was"));
    assert_int_equal(scratch_n_entries(scratch.path), 1);
    assert_int_equal(tsr_outfile_expect(scratch.path, "d.svg", ".new-d.svg", &file), TSR_OK);
    char *gone = tsr_path_join(scratch.path, ".new-d.svg");
    assert_int_equal(unlink(gone), 0);
    free(gone);
    assert_int_equal(tsr_outfile_commit(&file), TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), "/d.svg: cannot be written: No such file"));
    assert_int_equal(scratch_n_entries(scratch.path), 1);
    scratch_destroy(&scratch);
}

static void test_full_disk__is_an_error(void **state)
{
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_int_equal(tsr_write_output("/dev/full", write_text, "short"), TSR_EIO);
    assert_string_equal(tsr_error_text(), "/dev/full: cannot be written: No space left on device");
    assert_int_equal(tsr_write_output("/dev/full", write_much, NULL), TSR_EIO);
    assert_string_equal(tsr_error_text(), "/dev/full: cannot be written: No space left on device");
}

/* A limit of the file size stands for a disk that fills up while a regular file is written. */
static void test_full_disk__leaves_nothing(void **state)
{
    (void)state;
    struct scratch scratch = scratch_create();
    char *path = tsr_path_join(scratch.path, "big.txt");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 65536;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    tsr_status status = tsr_write_file(path, write_much, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), path));
    assert_non_null(strstr(tsr_error_text(), "File too large"));
    assert_int_equal(scratch_n_entries(scratch.path), 0);
    free(path);
    scratch_destroy(&scratch);
}

static void test_bad_place__is_named(void **state)
{
    (void)state;
    struct scratch scratch = scratch_create();
    char *file = tsr_path_join(scratch.path, "file");
    char *below = tsr_path_join(file, "below");
    char *missing = tsr_path_join(scratch.path, "no/such/file");
    assert_int_equal(tsr_write_file(file, write_text, "x"), TSR_OK);
    assert_int_equal(tsr_write_file(below, write_text, "x"), TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), "Not a directory"));
    assert_int_equal(tsr_write_file(missing, write_text, "x"), TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), "No such file"));
    assert_int_equal(tsr_write_file(scratch.path, write_text, "x"), TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), "folder"));
    assert_int_equal(tsr_make_folder(below), TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), below));
    free(file);
    free(below);
    free(missing);
    scratch_destroy(&scratch);
}

static void test_make_folder__makes_all_of_them(void **state)
{
    (void)state;
    struct scratch scratch = scratch_create();
    char *deep = tsr_path_join(scratch.path, "a/b//c/");
    assert_int_equal(tsr_make_folder(deep), TSR_OK);
    assert_int_equal(tsr_make_folder(deep), TSR_OK);
    char *inner = tsr_path_join(scratch.path, "a/b/c");
    assert_int_equal(access(inner, W_OK), 0);
    free(inner);
    free(deep);
    scratch_destroy(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commit__replaces_the_file),
        cmocka_unit_test(test_failure__leaves_the_old_file),
        cmocka_unit_test(test_file_of_another_program__gets_its_name_or_goes),
        cmocka_unit_test(test_full_disk__is_an_error),
        cmocka_unit_test(test_full_disk__leaves_nothing),
        cmocka_unit_test(test_bad_place__is_named),
        cmocka_unit_test(test_make_folder__makes_all_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
