/* files.c: opens what is a regular file, and reads it. */
#include "sim/base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- opening --------------------------------------------------------------------------------- */

/* Something that the process has open already; or that ends at once. */
static bool is_own_stream(const struct tsr_folder *in, const char *name)
{
    return !in && (!strcmp(name, "/dev/stdin") || !strcmp(name, "/dev/null") ||
                   !strncmp(name, "/dev/fd/", 8) || !strncmp(name, "/proc/self/fd/", 14));
}

static int refuse(int fd, const struct tsr_folder *in, const char *name, const char **why)
{
    const char *kind =
        tsr_kind_of(in, name) == TSR_KIND_FOLDER ? strerror(EISDIR) : tsr_kind_text(in, name);
    if (fd >= 0)
        (void)close(fd);
    *why = *kind ? kind : "is no regular file";
    errno = EINVAL;
    return -1;
}

int tsr_file_open(const struct tsr_folder *in, const char *name, enum tsr_opening how,
                  uint64_t *bytes, const char **why)
{
    bool stream = is_own_stream(in, name);
    int flags = O_CLOEXEC | (how == TSR_OPEN_READ ? O_RDONLY : O_RDWR | O_CREAT | O_APPEND) |
                (stream ? 0 : O_NONBLOCK | O_NOCTTY) | (in ? O_NOFOLLOW : 0);
    struct stat info;
    int fd = openat(in ? in->fd : AT_FDCWD, name, flags, 0666);
    int error = errno;
    *why = strerror(error);
    if (fd < 0) {
        const char *kind = tsr_kind_text(in, name);
        if (*kind && (error == ELOOP || error == ENXIO || error == EISDIR))
            return refuse(-1, in, name, why);
        errno = error;
        return -1;
    }
    if (fstat(fd, &info) != 0 || (!stream && !S_ISREG(info.st_mode)) || S_ISDIR(info.st_mode))
        return refuse(fd, in, name, why);
    if (bytes)
        *bytes = S_ISREG(info.st_mode) ? (uint64_t)info.st_size : UINT64_MAX;
    return fd;
}

FILE *tsr_file_stream(const struct tsr_folder *in, const char *name, const char **why)
{
    int fd = tsr_file_open(in, name, TSR_OPEN_READ, NULL, why);
    FILE *file = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (fd >= 0 && !file) {
        *why = strerror(errno);
        (void)close(fd);
    }
    return file;
}

/* ---- reading --------------------------------------------------------------------------------- */

tsr_status tsr_file_read_at(int fd, const char *path, uint64_t offset, void *out, uint64_t bytes)
{
    char *at = out;
    while (bytes > 0) {
        /* Some systems refuse more than 2 GiB at once. */
        ssize_t n = pread(fd, at, (size_t)tsr_min_u64(bytes, UINT64_C(1) << 30), (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tsr_fail(TSR_EIO, "%s: read: %s", path, strerror(errno));
        if (n == 0)
            return tsr_fail(TSR_EIO, "%s: the file ends at byte %llu, %llu more are missing", path,
                            (unsigned long long)offset, (unsigned long long)bytes);
        at += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return TSR_OK;
}

static tsr_status too_large(const char *path, uint64_t bytes, uint64_t most)
{
    return tsr_fail(TSR_ECONFIG, "%s: %llu bytes; allowed: up to %llu", path,
                    (unsigned long long)bytes, (unsigned long long)most);
}

/* To the end, which nothing tells beforehand. */
static tsr_status read_stream(int fd, const char *path, uint64_t most, char **data, size_t *bytes)
{
    size_t cap = 0;
    for (*bytes = 0;;) {
        if (*bytes > most)
            return too_large(path, *bytes, most);
        if (*bytes == cap) {
            cap = cap ? 2 * cap : 1 << 16;
            char *grown = realloc(*data, cap + 1);
            if (!grown)
                return tsr_no_memory(path);
            *data = grown;
        }
        ssize_t n = read(fd, *data + *bytes, cap - *bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tsr_fail(TSR_EIO, "%s: read: %s", path, strerror(errno));
        if (n == 0)
            return TSR_OK;
        *bytes += (size_t)n;
    }
}

static tsr_status read_open(int fd, const char *path, uint64_t length, uint64_t most, char **data,
                            size_t *bytes)
{
    *data = NULL;
    if (length == UINT64_MAX)
        return read_stream(fd, path, most, data, bytes);
    if (length > most)
        return too_large(path, length, most);
    *bytes = (size_t)length;
    *data = malloc(*bytes + 1);
    return *data ? tsr_file_read_at(fd, path, 0, *data, *bytes) : tsr_no_memory(NULL);
}

tsr_status tsr_file_read_opened(int fd, const char *path, uint64_t length, uint64_t most,
                                char **data, size_t *bytes)
{
    tsr_status status = read_open(fd, path, length, most, data, bytes);
    (void)close(fd);
    if (status == TSR_OK) {
        (*data)[*bytes] = '\0';
        return TSR_OK;
    }
    free(*data);
    *data = NULL;
    return status;
}

tsr_status tsr_file_read(const struct tsr_folder *in, const char *name, uint64_t most, char **data,
                         size_t *bytes)
{
    const char *why;
    uint64_t length;
    struct tsr_place_text place = tsr_place(in, name);
    *data = NULL;
    int fd = tsr_file_open(in, name, TSR_OPEN_READ, &length, &why);
    if (fd < 0)
        return errno == EINVAL ? tsr_fail(TSR_ECONFIG, "%s: %s; allowed: a file", place.text, why)
                               : tsr_fail(TSR_EIO, "%s: open: %s", place.text, why);
    return tsr_file_read_opened(fd, place.text, length, most, data, bytes);
}

tsr_status tsr_read_file(const char *path, size_t most, char **data, size_t *bytes)
{
    return tsr_file_read(NULL, path, most, data, bytes);
}

/* ---- files that are made, and go ------------------------------------------------------------- */

tsr_status tsr_temp_file(const char *text, const char *ending, char *path, size_t size)
{
    const char *folder = getenv("TMPDIR");
    int n =
        snprintf(path, size, "%s/tessera-XXXXXX%s", folder && *folder ? folder : "/tmp", ending);
    int fd = n > 0 && (size_t)n < size ? mkstemps(path, (int)strlen(ending)) : -1;
    if (fd < 0)
        return tsr_fail(TSR_EIO, "%s: cannot be made: %s; TMPDIR names another folder", path,
                        strerror(errno));
    size_t length = strlen(text);
    bool ok = write(fd, text, length) == (ssize_t)length;
    ok = close(fd) == 0 && ok;
    if (ok)
        return TSR_OK;
    tsr_file_remove(NULL, path);
    return tsr_fail(TSR_EIO, "%s: cannot be written", path);
}

int tsr_file_create(const struct tsr_folder *in, const char *name)
{
    return openat(in ? in->fd : AT_FDCWD, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

int tsr_file_rename(const struct tsr_folder *in, const char *from, const char *to)
{
    int at = in ? in->fd : AT_FDCWD;
    struct stat info;
    if (fstatat(at, to, &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(info.st_mode) &&
        !S_ISLNK(info.st_mode))
        return S_ISDIR(info.st_mode) ? EISDIR : EEXIST;
    return renameat(at, from, at, to) == 0 ? 0 : errno;
}

void tsr_file_remove(const struct tsr_folder *in, const char *name)
{
    (void)unlinkat(in ? in->fd : AT_FDCWD, name, 0);
}

bool tsr_is_output_stream(const char *path)
{
    static const char *const own[] = {"/dev/stdout", "/dev/stderr"};
    bool open = !strncmp(path, "/dev/fd/", 8) || !strncmp(path, "/proc/self/fd/", 14);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        open = open || !strcmp(path, own[i]);
    return open || tsr_kind_of(NULL, path) == TSR_KIND_OTHER;
}

int tsr_output_open(const char *path, const char **why)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    *why = errno == ENXIO ? "nobody reads it" : strerror(errno);
    int flags = fd >= 0 ? fcntl(fd, F_GETFL) : -1;
    if (flags >= 0 &&
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0) /* a slow reader is waited for */
        return fd;
    if (fd >= 0) {
        *why = strerror(errno);
        (void)close(fd);
    }
    return -1;
}
