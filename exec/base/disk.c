/* disk.c: files that are whole or not there. */
#include "exec/base/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the system ------------------------------------------------------------------------------ */

static int posix_create(void *user, const char *path)
{
    (void)user;
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

static int64_t posix_write(void *user, int fd, const void *data, size_t n, uint64_t offset)
{
    (void)user;
    return pwrite(fd, data, n, (off_t)offset);
}

static int posix_sync(void *user, int fd)
{
    (void)user;
    return fsync(fd);
}

static int posix_close(void *user, int fd)
{
    (void)user;
    return close(fd);
}

static int posix_make_dir(void *user, const char *path)
{
    (void)user;
    return mkdir(path, 0777);
}

static int posix_sync_dir(void *user, const char *path)
{
    (void)user;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = fsync(fd);
    int reason = errno;
    close(fd);
    errno = reason;
    return result;
}

static int posix_rename(void *user, const char *from, const char *to)
{
    (void)user;
    return rename(from, to);
}

static int posix_remove(void *user, const char *path)
{
    (void)user;
    return remove(path);
}

const struct tsr_disk tsr_disk_posix = {NULL,           posix_create, posix_write,
                                        posix_sync,     posix_close,  posix_make_dir,
                                        posix_sync_dir, posix_rename, posix_remove};

static tsr_status failed(const char *path, const char *call)
{
    return tsr_fail(TSR_EIO, "%s: %s: %s", path, call, strerror(errno));
}

/* ---- text ------------------------------------------------------------------------------------ */

tsr_status tsr_path(char out[TSR_PATH_BYTES], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(out, TSR_PATH_BYTES, fmt, args);
    va_end(args);
    if (n < 0 || n >= TSR_PATH_BYTES)
        return tsr_fail(TSR_ECONFIG, "a path is longer than %d bytes: %.80s...", TSR_PATH_BYTES - 1,
                        out);
    return TSR_OK;
}

struct tsr_shown tsr_show(const char *text)
{
    struct tsr_shown shown;
    size_t i = 0;
    for (; text[i] && i + 4 < sizeof shown.text; i++)
        shown.text[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    memcpy(shown.text + i, text[i] ? "..." : "", text[i] ? 4 : 1);
    return shown;
}

/* ---- files ----------------------------------------------------------------------------------- */

tsr_status tsr_out_create(struct tsr_out_file *f, const struct tsr_disk *disk, const char *path)
{
    *f = (struct tsr_out_file){.disk = disk, .path = strdup(path), .fd = -1};
    if (!f->path)
        return tsr_no_memory(NULL);
    f->fd = disk->create(disk->user, path);
    if (f->fd >= 0)
        return TSR_OK;
    tsr_status status = failed(path, "open");
    free(f->path);
    f->path = NULL;
    return status;
}

tsr_status tsr_out_write(const struct tsr_out_file *f, const void *data, uint64_t bytes,
                         uint64_t offset)
{
    const char *at = data;
    while (bytes > 0) {
        /* Some systems refuse more than 2 GiB at once. */
        size_t n = (size_t)tsr_min_u64(bytes, UINT64_C(1) << 30);
        int64_t written = f->disk->write(f->disk->user, f->fd, at, n, offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return failed(f->path, "write");
        if (written == 0)
            return tsr_fail(TSR_EIO, "%s: write: nothing was written", f->path);
        at += written;
        offset += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return TSR_OK;
}

tsr_status tsr_out_finish(struct tsr_out_file *f)
{
    tsr_status status = TSR_OK;
    if (f->disk->sync(f->disk->user, f->fd) != 0)
        status = failed(f->path, "fsync");
    if (f->disk->close(f->disk->user, f->fd) != 0 && status == TSR_OK)
        status = failed(f->path, "close");
    if (status != TSR_OK)
        f->disk->remove(f->disk->user, f->path);
    free(f->path);
    *f = (struct tsr_out_file){.fd = -1};
    return status;
}

void tsr_out_abandon(struct tsr_out_file *f)
{
    if (!f->path)
        return;
    f->disk->close(f->disk->user, f->fd);
    f->disk->remove(f->disk->user, f->path);
    free(f->path);
    f->path = NULL;
}

tsr_status tsr_disk_write_file(const struct tsr_disk *disk, const char *path, const void *data,
                               size_t bytes)
{
    struct tsr_out_file f;
    TSR_TRY(tsr_out_create(&f, disk, path));
    tsr_status status = tsr_out_write(&f, data, bytes, 0);
    if (status == TSR_OK)
        return tsr_out_finish(&f);
    tsr_out_abandon(&f);
    return status;
}

tsr_status tsr_disk_replace_file(const struct tsr_disk *disk, const char *path, const void *data,
                                 size_t bytes)
{
    char part[TSR_PATH_BYTES];
    TSR_TRY(tsr_path(part, "%s.tmp", path));
    tsr_status status = tsr_disk_write_file(disk, part, data, bytes);
    if (status == TSR_OK)
        status = tsr_disk_move(disk, part, path);
    if (status != TSR_OK)
        disk->remove(disk->user, part);
    return status;
}

/* The folder that a path is in. */
static void parent_of(const char *path, char out[TSR_PATH_BYTES])
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    snprintf(out, TSR_PATH_BYTES, "%.*s", (int)n, path);
    if (n == 0)
        strcpy(out, slash ? "/" : ".");
}

tsr_status tsr_disk_move(const struct tsr_disk *disk, const char *from, const char *to)
{
    char parent[TSR_PATH_BYTES];
    if (disk->rename(disk->user, from, to) != 0)
        return tsr_fail(TSR_EIO, "%s: rename to %s: %s", from, to, strerror(errno));
    parent_of(to, parent);
    return tsr_disk_sync_dir(disk, parent);
}

/* ---- folders --------------------------------------------------------------------------------- */

static bool is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

tsr_status tsr_disk_make_dirs(const struct tsr_disk *disk, const char *path)
{
    char part[TSR_PATH_BYTES], parent[TSR_PATH_BYTES];
    TSR_TRY(tsr_path(part, "%s", path));
    size_t n = strlen(part);
    while (n > 1 && part[n - 1] == '/')
        part[--n] = '\0';
    if (is_dir(part))
        return TSR_OK;
    parent_of(part, parent);
    if (strcmp(parent, part) != 0)
        TSR_TRY(tsr_disk_make_dirs(disk, parent));
    if (disk->make_dir(disk->user, part) != 0 && !(errno == EEXIST && is_dir(part)))
        return failed(part, "mkdir");
    return tsr_disk_sync_dir(disk, parent);
}

tsr_status tsr_disk_sync_dir(const struct tsr_disk *disk, const char *path)
{
    return disk->sync_dir(disk->user, path) == 0 ? TSR_OK : failed(path, "fsync");
}

static tsr_status remove_path(const struct tsr_disk *disk, const char *dir, const char *name)
{
    char path[TSR_PATH_BYTES];
    TSR_TRY(tsr_path(path, "%s/%s", dir, name));
    if (disk->remove(disk->user, path) != 0 && errno != ENOENT)
        return failed(path, "remove");
    return TSR_OK;
}

tsr_status tsr_disk_remove_dir(const struct tsr_disk *disk, const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? TSR_OK : failed(path, "open");
    tsr_status status = TSR_OK;
    for (struct dirent *d; status == TSR_OK && (d = readdir(dir)) != NULL;)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            status = remove_path(disk, path, d->d_name);
    closedir(dir);
    if (status == TSR_OK && disk->remove(disk->user, path) != 0 && errno != ENOENT)
        status = failed(path, "remove");
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

tsr_status tsr_disk_read(int fd, const char *path, uint64_t offset, void *out, uint64_t bytes)
{
    char *at = out;
    while (bytes > 0) {
        ssize_t n = pread(fd, at, (size_t)tsr_min_u64(bytes, UINT64_C(1) << 30), (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(path, "read");
        if (n == 0)
            return tsr_fail(TSR_EIO, "%s: the file ends at byte %llu, %llu more are missing", path,
                            (unsigned long long)offset, (unsigned long long)bytes);
        at += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return TSR_OK;
}

tsr_status tsr_disk_read_file(const char *path, uint64_t most, char **data, size_t *bytes)
{
    struct stat info;
    *data = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return failed(path, "open");
    tsr_status status;
    if (fstat(fd, &info) != 0)
        TSR_GOTO(failed, failed(path, "stat"));
    if (!S_ISREG(info.st_mode))
        TSR_GOTO(failed, tsr_fail(TSR_ECONFIG, "%s: not a file", path));
    if ((uint64_t)info.st_size > most)
        TSR_GOTO(failed, tsr_fail(TSR_ECONFIG, "%s: %lld bytes; allowed: up to %llu", path,
                                  (long long)info.st_size, (unsigned long long)most));
    *bytes = (size_t)info.st_size;
    *data = malloc(*bytes + 1);
    if (!*data)
        TSR_GOTO(failed, tsr_no_memory(NULL));
    TSR_GOTO(failed, tsr_disk_read(fd, path, 0, *data, *bytes));
    (*data)[*bytes] = '\0';
    close(fd);
    return TSR_OK;
failed:
    close(fd);
    free(*data);
    *data = NULL;
    return status;
}
