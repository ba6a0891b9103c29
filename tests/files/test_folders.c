/* test_folders.c: what is opened, made and removed beneath a folder: never through a link, never
 * waited for, never what is not ours, and never elsewhere when names are exchanged meanwhile.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "exec/files/checkpoint_impl.h"
#include "tests/files/disk_testing.h"

/* A file, a folder with a file, links to both and to nothing, a FIFO. */
static void fill(const char *where)
{
    char path[512];
    assert_int_equal(mkdir(where, 0777), 0);
    snprintf(path, sizeof path, "%s/file", where);
    test_write(path, "text", 4);
    snprintf(path, sizeof path, "%s/folder", where);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/folder/inner", where);
    test_write(path, "inner", 5);
    snprintf(path, sizeof path, "%s/to-file", where);
    assert_int_equal(symlink("file", path), 0);
    snprintf(path, sizeof path, "%s/to-folder", where);
    assert_int_equal(symlink("folder", path), 0);
    snprintf(path, sizeof path, "%s/to-none", where);
    assert_int_equal(symlink("none", path), 0);
    snprintf(path, sizeof path, "%s/fifo", where);
    assert_int_equal(mkfifo(path, 0666), 0);
}

static void only_files_are_opened(void **state)
{
    static const struct {
        const char *name, *why;
        bool follows; /* of a path that a user typed */
    } cases[] = {{"folder", "Is a directory", false},
                 {"to-file", "is a symbolic link", true},
                 {"to-folder", "is a symbolic link", false},
                 {"fifo", "is a FIFO", false}};
    const char *where = test_path("kinds"), *why;
    struct tsr_folder in;
    uint64_t bytes;
    (void)state;
    fill(where);
    assert_int_equal(tsr_folder_open(where, &in), TSR_OK);
    for (int how = TSR_OPEN_READ; how <= TSR_OPEN_UPDATE; how++) {
        int fd = tsr_file_open(&in, "file", (enum tsr_opening)how, &bytes, &why);
        assert_true(fd >= 0 && bytes == 4);
        close(fd);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            assert_int_equal(tsr_file_open(&in, cases[i].name, (enum tsr_opening)how, NULL, &why),
                             -1);
            assert_string_equal(why, cases[i].why);
            char path[512];
            snprintf(path, sizeof path, "%s/%s", where, cases[i].name);
            fd = tsr_file_open(NULL, path, (enum tsr_opening)how, NULL, &why);
            assert_int_equal(fd >= 0, cases[i].follows);
            if (fd >= 0)
                close(fd);
        }
    }
    assert_int_equal(tsr_file_open(&in, "none", TSR_OPEN_READ, NULL, &why), -1);
    assert_string_equal(why, strerror(ENOENT));
    char *data;
    size_t n;
    assert_int_equal(tsr_file_read(&in, "file", 3, &data, &n), TSR_ECONFIG);
    test_error_names("kinds/file: 4 bytes", "up to 3");
    assert_int_equal(tsr_file_read(&in, "fifo", 3, &data, &n), TSR_ECONFIG);
    test_error_names("kinds/fifo: is a FIFO", NULL);
    tsr_folder_close(&in);
}

static void folders_are_entered_by_their_own_name(void **state)
{
    const char *where = test_path("kinds");
    struct tsr_folder in, one;
    char path[512];
    (void)state;
    assert_int_equal(tsr_folder_open(where, &in), TSR_OK);
    assert_int_equal(tsr_folder_enter(&in, "folder", &one), TSR_OK);
    tsr_folder_close(&one);
    assert_int_equal(tsr_folder_enter(&in, "to-folder", &one), TSR_ECONFIG);
    test_error_names("to-folder: is a symbolic link", "not followed");
    assert_int_equal(one.fd, -1);
    assert_int_equal(tsr_folder_enter(&in, "fifo", &one), TSR_ECONFIG);
    assert_int_equal(tsr_folder_enter(&in, "none", &one), TSR_ECONFIG);
    tsr_folder_close(&in);
    snprintf(path, sizeof path, "%s/to-folder", where);
    assert_int_equal(tsr_folder_open(path, &one), TSR_OK);
    tsr_folder_close(&one);
    assert_int_equal(tsr_folder_open_own(path, &one), TSR_ECONFIG);
    assert_int_equal(tsr_make_own_folder(path), TSR_ECONFIG);
    strcat(path, "/");
    assert_int_equal(tsr_folder_open_own(path, &one), TSR_ECONFIG);
}

/* A new file is no old one: other names of that keep what they have. */
static void nothing_is_written_into_what_is_there(void **state)
{
    const char *where = test_path("kinds");
    struct tsr_folder in;
    char first[512], second[512];
    size_t n;
    (void)state;
    snprintf(first, sizeof first, "%s/file", where);
    snprintf(second, sizeof second, "%s/second", where);
    assert_int_equal(link(first, second), 0);
    assert_int_equal(tsr_folder_open(where, &in), TSR_OK);
    assert_int_equal(tsr_disk_write_file(&tsr_disk_posix, &in, "second", "new", 3), TSR_OK);
    char *text = test_read(first, &n);
    assert_string_equal(text, "text");
    free(text);
    static const char *const others[] = {"folder", "to-file", "to-none", "fifo"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(tsr_disk_write_file(&tsr_disk_posix, &in, others[i], "new", 3),
                         TSR_ECONFIG);
        test_error_names(others[i], "allowed: a regular file");
        assert_true(tsr_disk_replace_file(&tsr_disk_posix, &in, others[i], "new", 3) != TSR_OK);
        assert_true(tsr_kind_of(&in, others[i]) != TSR_KIND_FILE);
    }
    assert_int_equal(tsr_kind_of(&in, "fifo.tmp"), TSR_KIND_NONE);
    assert_int_equal(tsr_kind_of(&in, "none"), TSR_KIND_NONE); /* not made through the link */
    tsr_folder_close(&in);
}

static bool starts_with_f(const char *name)
{
    return name[0] == 'f';
}

static void only_ours_is_removed(void **state)
{
    static const char *const theirs[] = {"theirs", "f-folder", "f-link", "f-fifo"};
    const char *where = test_path("removal");
    char path[512];
    struct tsr_folder in;
    (void)state;
    assert_int_equal(mkdir(where, 0777), 0);
    assert_int_equal(tsr_folder_open(where, &in), TSR_OK);
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/step", where);
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(path, sizeof path, "%s/step/f1", where);
        test_write(path, "x", 1);
        snprintf(path, sizeof path, "%s/step/%s", where, theirs[i]);
        if (i == 1)
            assert_int_equal(mkdir(path, 0777), 0);
        else if (i == 2)
            assert_int_equal(symlink("/", path), 0);
        else if (i == 3)
            assert_int_equal(mkfifo(path, 0666), 0);
        else
            test_write(path, "x", 1);
        assert_int_equal(tsr_disk_remove_dir(&tsr_disk_posix, &in, "step", starts_with_f),
                         TSR_ECONFIG);
        test_error_names("removal/step holds", "left alone");
        test_error_names(theirs[i], NULL);
        assert_true(test_exists(path));
        snprintf(path, sizeof path, "%s/step/f1", where);
        assert_true(test_exists(path));
        snprintf(path, sizeof path, "%s/step", where);
        test_remove(path);
    }
    assert_int_equal(tsr_disk_remove_dir(&tsr_disk_posix, &in, "step", starts_with_f),
                     TSR_OK); /* gone */
    snprintf(path, sizeof path, "%s/step", where);
    assert_int_equal(symlink(test_path("kinds"), path), 0);
    assert_int_equal(tsr_disk_remove_dir(&tsr_disk_posix, &in, "step", starts_with_f), TSR_ECONFIG);
    test_error_names("removal/step: is a symbolic link", "left alone");
    snprintf(path, sizeof path, "%s/kinds/file", test_folder);
    assert_true(test_exists(path));
    tsr_folder_close(&in);
}

/* ---- exchanged meanwhile --------------------------------------------------------------------- */

static atomic_bool enough;

/* A folder and a link to the victim take turns under one name. */
static void *exchange(void *user)
{
    char name[512], held[512];
    snprintf(name, sizeof name, "%s/step_00000002", (const char *)user);
    snprintf(held, sizeof held, "%s/held", (const char *)user);
    while (!atomic_load(&enough)) {
        if (rename(name, held) != 0)
            continue;
        (void)!symlink(test_path("victim"), name);
        (void)unlink(name);
        (void)rename(held, name);
    }
    return NULL;
}

static void put_file(const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    test_write(path, "x", 1);
}

static void races_touch_nothing_else(void **state)
{
    static const char *const names[] = {"COMMIT", "meta.json", "rank_00000-of-00001.safetensors"};
    char dir[400], step[512];
    pthread_t thread;
    struct tsr_folder in;
    unsigned removed = 0;
    (void)state;
    assert_int_equal(mkdir(test_path("victim"), 0777), 0);
    for (size_t i = 0; i < 3; i++)
        put_file(test_path("victim"), names[i]);
    snprintf(dir, sizeof dir, "%s", test_path("race"));
    snprintf(step, sizeof step, "%s/step_00000002", dir);
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_int_equal(tsr_folder_open_own(dir, &in), TSR_OK);
    assert_int_equal(pthread_create(&thread, NULL, exchange, dir), 0);
    for (int round = 0; round < 300; round++) {
        if (mkdir(step, 0777) == 0)
            for (size_t i = 0; i < 3; i++) {
                char path[600];
                snprintf(path, sizeof path, "%s/%s", step, names[i]);
                FILE *file = fopen(path, "wbx"); /* it may have moved, or be the link */
                if (file)
                    fclose(file);
            }
        removed += tsr__remove_old(&tsr_disk_posix, &in, 9, 1) == TSR_OK;
        removed +=
            tsr__remove_step(&tsr_disk_posix, &in, &(struct tsr_step_dir){.step = 2}) == TSR_OK;
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    tsr_folder_close(&in);
    assert_true(removed > 0);
    for (size_t i = 0; i < 3; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", test_path("victim"), names[i]);
        assert_true(test_exists(path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_files_are_opened),
                                       cmocka_unit_test(folders_are_entered_by_their_own_name),
                                       cmocka_unit_test(nothing_is_written_into_what_is_there),
                                       cmocka_unit_test(only_ours_is_removed),
                                       cmocka_unit_test(races_touch_nothing_else)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
