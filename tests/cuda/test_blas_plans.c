/* test_blas_plans.c: the file of plans: what one process has timed, the next one takes; a file that
 * is damaged, or of something else, is as good as none.
 */
#include <dirent.h>
#include <unistd.h>

#include <cublasLt.h>

#include "sim/base/disk.h"
#include "sim/base/files.h"
#include "tests/cuda/blas_testing.h"

enum { MANY = 5 };

struct folder {
    char path[64], file[TSR_PATH_BYTES];
};

static void make_folder(struct folder *f)
{
    snprintf(f->path, sizeof f->path, "/tmp/tessera-plans-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

/* The only file in the folder. */
static void find_file(struct folder *f)
{
    DIR *dir = opendir(f->path);
    const struct dirent *entry;
    int n = 0;
    assert_non_null(dir);
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.') {
            n++;
            assert_int_equal(tsr_path(f->file, "%s/%s", f->path, entry->d_name), TSR_OK);
        }
    closedir(dir);
    assert_int_equal(n, 1);
}

static bool any_name(const char *name)
{
    return name[0] != '.';
}

static void remove_folder(const struct folder *f)
{
    assert_int_equal(tsr_disk_remove_dir(&tsr_disk_posix, NULL, f->path, any_name), TSR_OK);
}

static void run_some(struct blas_test *t, int from, int to)
{
    for (int i = from; i < to; i++) {
        struct blas_case c;
        blas_case(&c, (uint64_t[]){8, 8, 8 + (uint64_t)i}, 1, false, true, TSR_F32, TSR_F32,
                  i % 2 == 1, 0, 0);
        assert_int_equal(blas_run(t, &c), TSR_OK);
        blas_check(&c);
        blas_case_close(&c);
    }
}

static uint64_t asked(void)
{
    return blas_calls("cublasLtMatmulAlgoGetHeuristic");
}

/* Runs products [0, n) with the plans of the folder; how many of them were planned anew. */
static uint64_t planned(const struct folder *f, int n, const char *note)
{
    struct blas_test t;
    blas_open(&t, f->path, false, true);
    uint64_t before = asked();
    run_some(&t, 0, n);
    uint64_t now = asked();
    if (note)
        assert_non_null(strstr(tsr_blas_note(t.blas), note));
    else
        assert_string_equal(tsr_blas_note(t.blas), "");
    blas_close(&t);
    return now - before;
}

static void kept(void **state)
{
    (void)state;
    struct folder f;
    make_folder(&f);
    tsr_standin_slow_algorithms(2);
    assert_int_equal(planned(&f, MANY, NULL), MANY);
    tsr_standin_slow_algorithms(0);
    find_file(&f);
    assert_non_null(strstr(f.file, "Stand-in-3000-driver-13000-cublaslt-130100.plans"));
    assert_int_equal(planned(&f, MANY, NULL), 0);
    assert_int_equal(tsr_standin_algorithm(), 2);
    assert_int_equal(planned(&f, MANY + 2, NULL), 2);
    assert_int_equal(planned(&f, MANY + 2, NULL), 0);
    remove_folder(&f);
}

/* Two processes plan at the same time: the file has what both have found. */
static void together(void **state)
{
    (void)state;
    struct folder f;
    struct blas_test a, b;
    make_folder(&f);
    blas_open(&a, f.path, false, true);
    blas_open(&b, f.path, false, true);
    run_some(&a, 0, 3);
    run_some(&b, 2, MANY);
    blas_close(&a);
    blas_close(&b);
    assert_int_equal(planned(&f, MANY, NULL), 0);
    remove_folder(&f);
}

/* Any byte that is changed, any end that is missing. */
static void damaged(void **state)
{
    (void)state;
    struct folder f;
    make_folder(&f);
    assert_int_equal(planned(&f, 2, NULL), 2);
    find_file(&f);
    char *good;
    size_t n;
    assert_int_equal(tsr_read_file(f.file, 1 << 20, &good, &n), TSR_OK);
    for (size_t i = 0; i < 40; i++) {
        char *bad = malloc(n);
        assert_non_null(bad);
        memcpy(bad, good, n);
        size_t length = i < 20 ? n : n * (i - 20) / 20;
        if (i < 20)
            bad[n * i / 20] ^= 1;
        assert_int_equal(tsr_disk_replace_path(&tsr_disk_posix, f.file, bad, length), TSR_OK);
        assert_int_equal(planned(&f, 2, "is damaged: matrix products are timed again"), 2);
        assert_int_equal(planned(&f, 2, NULL), 0); /* it was written anew */
        free(bad);
    }
    free(good);
    remove_folder(&f);
}

/* The file of another GPU under this one's name; another version has another name. */
static void foreign(void **state)
{
    (void)state;
    struct folder f;
    make_folder(&f);
    assert_int_equal(planned(&f, 2, NULL), 2);
    find_file(&f);
    char *text, mine[TSR_PATH_BYTES];
    size_t n;
    assert_int_equal(tsr_read_file(f.file, 1 << 20, &text, &n), TSR_OK);
    snprintf(mine, sizeof mine, "%s", f.file);
    assert_int_equal(unlink(f.file), 0);
    tsr_standin_cublaslt_version(130200);
    assert_int_equal(planned(&f, 2, NULL), 2);
    find_file(&f);
    assert_string_not_equal(mine, f.file);
    assert_int_equal(tsr_disk_replace_path(&tsr_disk_posix, f.file, text, n), TSR_OK);
    assert_int_equal(planned(&f, 2, "is of another GPU, driver or library"), 2);
    tsr_standin_cublaslt_version(130100);
    free(text);
    remove_folder(&f);
}

/* The library no longer takes an algorithm of the file: it is timed again. */
static void unknown(void **state)
{
    (void)state;
    struct folder f;
    struct blas_test t;
    make_folder(&f);
    assert_int_equal(planned(&f, 2, NULL), 2);
    blas_open(&t, f.path, false, true);
    uint64_t before = asked();
    tsr_standin_fail("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_INVALID_VALUE);
    run_some(&t, 0, 2);
    assert_int_equal(asked() - before, 1);
    blas_close(&t);
    remove_folder(&f);
}

/* Plans without timing are not for others; a folder that cannot be made is an error of saving only.
 */
static void not_kept(void **state)
{
    (void)state;
    struct folder f;
    struct blas_test t;
    make_folder(&f);
    blas_open(&t, f.path, true, false);
    run_some(&t, 0, 2);
    assert_int_equal(tsr_blas_save(t.blas), TSR_OK);
    blas_close(&t);
    assert_int_equal(rmdir(f.path), 0); /* nothing was written */
    blas_open(&t, "/dev/null/plans", false, true);
    run_some(&t, 0, 1);
    assert_int_equal(tsr_blas_save(t.blas), TSR_EIO);
    blas_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept),    cmocka_unit_test(together),
                                       cmocka_unit_test(damaged), cmocka_unit_test(foreign),
                                       cmocka_unit_test(unknown), cmocka_unit_test(not_kept)};
    return cmocka_run_group_tests_name("cuBLASLt: plans", tests, NULL, NULL);
}
