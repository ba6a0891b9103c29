/* disk_testing.h: a folder that is gone after the test, and a disk whose k-th call fails, or ends
 * the process, or the power.
 */
#ifndef TSR_DISK_TESTING_H
#define TSR_DISK_TESTING_H

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/base/disk.h"
#include "sim/base/files.h"
#include "tests/engine/layout_testing.h"

/* ---- folders and files ----------------------------------------------------------------------- */

static char test_folder[256];

static inline void test_remove(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return;
    if (S_ISDIR(info.st_mode)) {
        DIR *dir = opendir(path);
        assert_non_null(dir);
        for (struct dirent *d; (d = readdir(dir)) != NULL;) {
            char inner[2048];
            if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
                continue;
            assert_true(snprintf(inner, sizeof inner, "%s/%s", path, d->d_name) < 2048);
            test_remove(inner);
        }
        closedir(dir);
    }
    assert_int_equal(remove(path), 0);
}

static inline int test_folder_make(void **state)
{
    const char *base = getenv("TMPDIR");
    (void)state;
    snprintf(test_folder, sizeof test_folder, "%s/tessera-test-XXXXXX", base ? base : "/tmp");
    return mkdtemp(test_folder) ? 0 : -1;
}

static inline int test_folder_remove(void **state)
{
    (void)state;
    test_remove(test_folder);
    return 0;
}

/* A path in the folder; valid for the next 63 calls. */
static inline const char *test_path(const char *name)
{
    static char paths[64][2048];
    static int next;
    char *path = paths[next++ % 64];
    assert_true(snprintf(path, sizeof paths[0], "%s/%s", test_folder, name) < 2048);
    return path;
}

static inline void test_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* To be freed. */
static inline char *test_read(const char *path, size_t *n)
{
    char *data = NULL;
    assert_int_equal(tsr_file_read(NULL, path, UINT64_C(1) << 32, &data, n), TSR_OK);
    return data;
}

static inline bool test_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

static inline void test_flip(const char *path, uint64_t byte)
{
    size_t n;
    char *data = test_read(path, &n);
    assert_true(byte < n);
    data[byte] = (char)(data[byte] ^ 0x20);
    test_write(path, data, n);
    free(data);
}

/* The last error names all of these words, on one line. */
static inline void test_error_names(const char *a, const char *b)
{
    const char *text = tsr_error_text();
    if (!strstr(text, a) || (b && !strstr(text, b)) || strchr(text, '\n'))
        fail_msg("\"%s\" does not name \"%s\" and \"%s\" on one line", text, a, b ? b : "");
}

/* ---- a disk that fails ----------------------------------------------------------------------- */

enum test_fault { TEST_FAIL_ONCE, TEST_KILL, TEST_POWER };
enum { TEST_MAX_NAMES = 64, TEST_PATH = 512 };

/* A file, folder or new name that may not be on the disk yet. */
struct test_name {
    enum { TEST_FILE, TEST_DIR, TEST_RENAME } kind;
    char path[TEST_PATH], from[TEST_PATH]; /* from: renames */
    int fd;                                /* -1: closed */
    bool is_synced, is_named;
};

struct test_disk {
    struct tsr_disk ops; /* of this */
    pthread_mutex_t mutex;
    enum test_fault fault;
    int error;      /* errno of the call that fails */
    long at, calls; /* call number `at` fails; -1: none */
    bool is_dead;
    size_t n;
    struct test_name names[TEST_MAX_NAMES];
};

/* True: this call is to fail. */
static inline bool test_disk_step(struct test_disk *d)
{
    bool fails = d->calls++ == d->at;
    if (fails && d->fault != TEST_FAIL_ONCE)
        d->is_dead = true;
    fails = fails || d->is_dead;
    if (fails)
        errno = d->error;
    return fails;
}

static inline struct test_name *test_disk_add(struct test_disk *d, int kind, const char *path)
{
    assert_true(d->n < TEST_MAX_NAMES);
    struct test_name *name = &d->names[d->n++];
    memset(name, 0, sizeof *name);
    name->kind = kind;
    name->fd = -1;
    assert_true(snprintf(name->path, TEST_PATH, "%s", path) < TEST_PATH);
    return name;
}

static inline int test_disk_create(void *user, const struct tsr_folder *in, const char *file)
{
    struct tsr_place_text place = tsr_place(in, file);
    const char *path = place.text;
    struct test_disk *d = user;
    pthread_mutex_lock(&d->mutex);
    int fd = test_disk_step(d) ? -1 : tsr_disk_posix.create(NULL, in, file);
    if (fd >= 0)
        test_disk_add(d, TEST_FILE, path)->fd = fd;
    pthread_mutex_unlock(&d->mutex);
    return fd;
}

static inline struct test_name *test_disk_file(struct test_disk *d, int fd)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->names[i].kind == TEST_FILE && d->names[i].fd == fd)
            return &d->names[i];
    fail_msg("no such file");
    return NULL;
}

/* What fails has written the first half. */
static inline int64_t test_disk_write(void *user, int fd, const void *data, size_t n,
                                      uint64_t offset)
{
    struct test_disk *d = user;
    pthread_mutex_lock(&d->mutex);
    bool was_dead = d->is_dead, fails = test_disk_step(d);
    int64_t written = -1;
    test_disk_file(d, fd)->is_synced = false;
    if (!was_dead)
        written = tsr_disk_posix.write(NULL, fd, data, fails ? n / 2 : n, offset);
    if (fails) {
        errno = d->error;
        written = -1;
    }
    pthread_mutex_unlock(&d->mutex);
    return written;
}

static inline int test_disk_sync(void *user, int fd)
{
    struct test_disk *d = user;
    pthread_mutex_lock(&d->mutex);
    int result = test_disk_step(d) ? -1 : 0;
    if (result == 0)
        test_disk_file(d, fd)->is_synced = true;
    pthread_mutex_unlock(&d->mutex);
    return result;
}

static inline int test_disk_close(void *user, int fd)
{
    struct test_disk *d = user;
    pthread_mutex_lock(&d->mutex);
    int result = test_disk_step(d) ? -1 : 0, reason = errno;
    test_disk_file(d, fd)->fd = -1;
    close(fd); /* a process that ends closes, too */
    errno = reason;
    pthread_mutex_unlock(&d->mutex);
    return result;
}

static inline int test_disk_make_dir(void *user, const struct tsr_folder *in, const char *folder)
{
    struct tsr_place_text place = tsr_place(in, folder);
    const char *path = place.text;
    struct test_disk *d = user;
    pthread_mutex_lock(&d->mutex);
    int result = test_disk_step(d) ? -1 : tsr_disk_posix.make_dir(NULL, in, folder);
    if (result == 0)
        test_disk_add(d, TEST_DIR, path);
    pthread_mutex_unlock(&d->mutex);
    return result;
}

static inline bool test_is_in(const char *path, const char *dir)
{
    const char *slash = strrchr(path, '/');
    return slash && strlen(dir) == (size_t)(slash - path) && !strncmp(path, dir, strlen(dir));
}

static inline int test_disk_sync_dir(void *user, const struct tsr_folder *folder)
{
    const char *path = folder->path;
    struct test_disk *d = user;
    pthread_mutex_lock(&d->mutex);
    int result = test_disk_step(d) ? -1 : 0;
    for (size_t i = 0; result == 0 && i < d->n; i++)
        if (test_is_in(d->names[i].path, path))
            d->names[i].is_named = true;
    pthread_mutex_unlock(&d->mutex);
    return result;
}

/* Paths below `from` are below `to` now. */
static inline void test_disk_follow(struct test_disk *d, const char *from, const char *to)
{
    size_t n = strlen(from);
    for (size_t i = 0; i < d->n; i++) {
        char moved[TEST_PATH], *path = d->names[i].path;
        if (d->names[i].kind == TEST_RENAME || strncmp(path, from, n) != 0 ||
            (path[n] != '\0' && path[n] != '/'))
            continue;
        assert_true(snprintf(moved, sizeof moved, "%s%s", to, path + n) < TEST_PATH);
        strcpy(path, moved);
    }
}

static inline int test_disk_rename(void *user, const struct tsr_folder *in, const char *old,
                                   const char *new)
{
    struct tsr_place_text places[] = {tsr_place(in, old), tsr_place(in, new)};
    const char *from = places[0].text, *to = places[1].text;
    struct test_disk *d = user;
    pthread_mutex_lock(&d->mutex);
    int result = test_disk_step(d) ? -1 : tsr_disk_posix.rename(NULL, in, old, new);
    if (result == 0) {
        test_disk_follow(d, from, to);
        struct test_name *name = test_disk_add(d, TEST_RENAME, to);
        assert_true(snprintf(name->from, sizeof name->from, "%s", from) < (int)sizeof name->from);
    }
    pthread_mutex_unlock(&d->mutex);
    return result;
}

static inline int test_disk_remove(void *user, const struct tsr_folder *in, const char *name)
{
    struct tsr_place_text place = tsr_place(in, name);
    const char *path = place.text;
    struct test_disk *d = user;
    pthread_mutex_lock(&d->mutex);
    int result = test_disk_step(d) ? -1 : tsr_disk_posix.remove(NULL, in, name);
    for (size_t i = 0; result == 0 && i < d->n; i++)
        if (!strcmp(d->names[i].path, path))
            d->names[i].is_named = d->names[i].is_synced = true; /* nothing left to lose */
    pthread_mutex_unlock(&d->mutex);
    return result;
}

/* Call number `at` fails with `error`. */
static inline void test_disk_init(struct test_disk *d, enum test_fault fault, long at, int error)
{
    memset(d, 0, offsetof(struct test_disk, names));
    pthread_mutex_init(&d->mutex, NULL);
    d->fault = fault;
    d->at = at;
    d->error = error;
    d->ops = (struct tsr_disk){.user = d,
                               .create = test_disk_create,
                               .write = test_disk_write,
                               .sync = test_disk_sync,
                               .close = test_disk_close,
                               .make_dir = test_disk_make_dir,
                               .sync_dir = test_disk_sync_dir,
                               .rename = test_disk_rename,
                               .remove = test_disk_remove};
}

/* What was not made to last is lost: new names, files without a name, data of files. */
static inline void test_disk_lose(struct test_disk *d)
{
    for (size_t i = d->n; i-- > 0;) {
        struct test_name *name = &d->names[i];
        if (name->kind != TEST_RENAME || name->is_named || !test_exists(name->path))
            continue;
        assert_int_equal(rename(name->path, name->from), 0);
        test_disk_follow(d, name->path, name->from);
    }
    for (size_t i = d->n; i-- > 0;) {
        struct test_name *name = &d->names[i];
        if (name->kind == TEST_RENAME || !test_exists(name->path))
            continue;
        if (!name->is_named)
            test_remove(name->path);
        else if (name->kind == TEST_FILE && !name->is_synced)
            assert_int_equal(truncate(name->path, 0), 0);
    }
}

static inline void test_disk_fini(struct test_disk *d)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->names[i].fd >= 0)
            close(d->names[i].fd);
    pthread_mutex_destroy(&d->mutex);
}

#endif
