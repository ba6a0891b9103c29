/* disk.c: files that are whole or not there, and folders of ours that go. */
#include "sim/base/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/base/text.h"

/* ---- the system ------------------------------------------------------------------------------ */

static int at(const struct tsr_folder *in)
{
    return in ? in->fd : AT_FDCWD;
}

/* O_EXCL follows no link and waits for no FIFO. The old file is not opened: other names of it keep
 * what they have. */
static int posix_create(void *user, const struct tsr_folder *in, const char *name)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    struct stat info;
    (void)user;
    int fd = openat(at(in), name, flags, 0666);
    if (fd >= 0 || errno != EEXIST)
        return fd;
    if (fstatat(at(in), name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) {
        errno = EEXIST;
        return -1;
    }
    return unlinkat(at(in), name, 0) == 0 ? openat(at(in), name, flags, 0666) : -1;
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

static int posix_make_dir(void *user, const struct tsr_folder *in, const char *name)
{
    (void)user;
    return mkdirat(at(in), name, 0777);
}

static int posix_sync_dir(void *user, const struct tsr_folder *dir)
{
    (void)user;
    return fsync(dir->fd);
}

static int posix_rename(void *user, const struct tsr_folder *in, const char *from, const char *to)
{
    (void)user;
    return renameat(at(in), from, at(in), to);
}

/* As remove(): a folder is told by unlink's refusal, which differs between systems. */
static int posix_remove(void *user, const struct tsr_folder *in, const char *name)
{
    (void)user;
    if (unlinkat(at(in), name, 0) == 0)
        return 0;
    return errno == EISDIR || errno == EPERM ? unlinkat(at(in), name, AT_REMOVEDIR) : -1;
}

const struct tsr_disk tsr_disk_posix = {NULL,           posix_create, posix_write,
                                        posix_sync,     posix_close,  posix_make_dir,
                                        posix_sync_dir, posix_rename, posix_remove};

static tsr_status failed(const struct tsr_folder *in, const char *name, const char *call)
{
    int error = errno;
    tsr_status status =
        tsr_fail(TSR_EIO, "%s: %s: %s", tsr_place(in, name).text, call, strerror(error));
    errno = error;
    return status;
}

static tsr_status failed_file(const struct tsr_out_file *f, const char *call)
{
    return failed(f->in, f->name, call);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* What has the name and is no regular file. */
static tsr_status in_the_way(const struct tsr_folder *in, const char *name)
{
    char kind[64];
    (void)snprintf(kind, sizeof kind, "%s", tsr_kind_text(in, name));
    return tsr_fail(TSR_ECONFIG, "%s: %s; allowed: a regular file, or nothing of that name",
                    tsr_place(in, name).text, *kind ? kind : "is a symbolic link");
}

tsr_status tsr_out_create(struct tsr_out_file *f, const struct tsr_disk *disk,
                          const struct tsr_folder *in, const char *name)
{
    *f = (struct tsr_out_file){.disk = disk, .in = in, .name = strdup(name), .fd = -1};
    if (!f->name)
        return tsr_no_memory(NULL);
    f->fd = disk->create(disk->user, in, name);
    if (f->fd >= 0)
        return TSR_OK;
    tsr_status status = errno == EEXIST ? in_the_way(in, name) : failed_file(f, "open");
    free(f->name);
    f->name = NULL;
    return status;
}

tsr_status tsr_out_write(const struct tsr_out_file *f, const void *data, uint64_t bytes,
                         uint64_t offset)
{
    const char *from = data;
    while (bytes > 0) {
        /* Some systems refuse more than 2 GiB at once. */
        size_t n = (size_t)tsr_min_u64(bytes, UINT64_C(1) << 30);
        int64_t written = f->disk->write(f->disk->user, f->fd, from, n, offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return failed_file(f, "write");
        if (written == 0)
            return tsr_fail(TSR_EIO, "%s: write: nothing was written",
                            tsr_place(f->in, f->name).text);
        from += written;
        offset += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return TSR_OK;
}

tsr_status tsr_out_finish(struct tsr_out_file *f)
{
    tsr_status status = TSR_OK;
    if (f->disk->sync(f->disk->user, f->fd) != 0)
        status = failed_file(f, "fsync");
    if (f->disk->close(f->disk->user, f->fd) != 0 && status == TSR_OK)
        status = failed_file(f, "close");
    if (status != TSR_OK)
        f->disk->remove(f->disk->user, f->in, f->name);
    free(f->name);
    *f = (struct tsr_out_file){.fd = -1};
    return status;
}

void tsr_out_abandon(struct tsr_out_file *f)
{
    if (!f->name)
        return;
    f->disk->close(f->disk->user, f->fd);
    f->disk->remove(f->disk->user, f->in, f->name);
    free(f->name);
    f->name = NULL;
}

tsr_status tsr_disk_write_file(const struct tsr_disk *disk, const struct tsr_folder *in,
                               const char *name, const void *data, size_t bytes)
{
    struct tsr_out_file f;
    TSR_TRY(tsr_out_create(&f, disk, in, name));
    tsr_status status = tsr_out_write(&f, data, bytes, 0);
    if (status == TSR_OK)
        return tsr_out_finish(&f);
    tsr_out_abandon(&f);
    return status;
}

tsr_status tsr_disk_replace_file(const struct tsr_disk *disk, const struct tsr_folder *in,
                                 const char *name, const void *data, size_t bytes)
{
    char part[TSR_PATH_BYTES];
    TSR_TRY(tsr_path(part, "%s.tmp", name));
    TSR_TRY(tsr_disk_write_file(disk, in, part, data, bytes));
    tsr_status status = tsr_disk_move(disk, in, part, name);
    if (status != TSR_OK)
        disk->remove(disk->user, in, part);
    return status;
}

tsr_status tsr_disk_replace_path(const struct tsr_disk *disk, const char *path, const void *data,
                                 size_t bytes)
{
    struct tsr_folder folder;
    const char *name;
    TSR_TRY(tsr_folder_around(path, &folder, &name));
    tsr_status status = tsr_disk_replace_file(disk, &folder, name, data, bytes);
    tsr_folder_close(&folder);
    return status;
}

tsr_status tsr_disk_move(const struct tsr_disk *disk, const struct tsr_folder *in, const char *from,
                         const char *to)
{
    enum tsr_kind kind = tsr_kind_of(in, to);
    if (kind == TSR_KIND_LINK || kind == TSR_KIND_OTHER)
        return in_the_way(in, to);
    if (disk->rename(disk->user, in, from, to) != 0) {
        int error = errno;
        char new_name[TSR_PATH_BYTES];
        (void)snprintf(new_name, sizeof new_name, "%s", tsr_place(in, to).text);
        tsr_status status = tsr_fail(TSR_EIO, "%s: rename to %s: %s", tsr_place(in, from).text,
                                     new_name, strerror(error));
        errno = error;
        return status;
    }
    return tsr_disk_sync_dir(disk, in);
}

/* ---- folders --------------------------------------------------------------------------------- */

tsr_status tsr_disk_make_dir(const struct tsr_disk *disk, const struct tsr_folder *in,
                             const char *name)
{
    if (disk->make_dir(disk->user, in, name) != 0) {
        int error = errno;
        enum tsr_kind kind = error == EEXIST ? tsr_kind_of(in, name) : TSR_KIND_NONE;
        if (kind == TSR_KIND_FOLDER)
            return TSR_OK;
        errno = error;
        if (kind != TSR_KIND_LINK && kind != TSR_KIND_OTHER)
            return failed(in, name, "mkdir");
        return tsr_fail(TSR_ECONFIG, "%s: %s; allowed: a folder, or nothing of that name",
                        tsr_place(in, name).text, tsr_kind_text(in, name));
    }
    return tsr_disk_sync_dir(disk, in);
}

/* The folder that a path is in; "." if it names none. */
static void parent_of(const char *path, char out[TSR_PATH_BYTES])
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    snprintf(out, TSR_PATH_BYTES, "%.*s", (int)n, path);
    if (n == 0)
        strcpy(out, slash ? "/" : ".");
}

tsr_status tsr_disk_make_dirs(const struct tsr_disk *disk, const char *path)
{
    char part[TSR_PATH_BYTES], parent[TSR_PATH_BYTES];
    struct tsr_folder folder;
    const char *name;
    TSR_TRY(tsr_path(part, "%s", path));
    size_t n = strlen(part);
    while (n > 1 && part[n - 1] == '/')
        part[--n] = '\0';
    if (tsr_kind_of(NULL, part) == TSR_KIND_FOLDER)
        return TSR_OK;
    parent_of(part, parent);
    if (strcmp(parent, part) != 0)
        TSR_TRY(tsr_disk_make_dirs(disk, parent));
    tsr_status status = tsr_folder_around(part, &folder, &name);
    if (status == TSR_OK)
        status = tsr_disk_make_dir(disk, &folder, name);
    tsr_folder_close(&folder);
    return status == TSR_ECONFIG ? tsr_fail(TSR_EIO, "%s", tsr_error_text()) : status;
}

tsr_status tsr_disk_sync_dir(const struct tsr_disk *disk, const struct tsr_folder *dir)
{
    if (disk->sync_dir(disk->user, dir) == 0)
        return TSR_OK;
    int error = errno;
    tsr_status status =
        tsr_fail(TSR_EIO, "%s: fsync: %s", dir->path[0] ? dir->path : ".", strerror(error));
    errno = error;
    return status;
}

/* ---- what goes ------------------------------------------------------------------------------- */

struct removal {
    const struct tsr_disk *disk;
    tsr_is_ours_fn is_ours;
};

static tsr_status check_ours(void *user, const struct tsr_folder *in, const char *name)
{
    const struct removal *r = user;
    const char *kind = tsr_kind_text(in, name);
    if (!r->is_ours(name))
        return tsr_fail(TSR_ECONFIG, "%s holds \"%s\", which tessera did not write: left alone",
                        in->path, tsr_show(name).text);
    if (*kind)
        return tsr_fail(TSR_ECONFIG,
                        "%s holds \"%s\", which %s that tessera did not make: left alone", in->path,
                        name, kind);
    return TSR_OK;
}

static tsr_status remove_one(void *user, const struct tsr_folder *in, const char *name)
{
    const struct removal *r = user;
    TSR_TRY(check_ours(user, in, name)); /* it may have come since */
    if (r->disk->remove(r->disk->user, in, name) != 0 && errno != ENOENT)
        return failed(in, name, "remove");
    return TSR_OK;
}

tsr_status tsr_disk_remove_dir(const struct tsr_disk *disk, const struct tsr_folder *in,
                               const char *name, tsr_is_ours_fn is_ours)
{
    struct removal removal = {disk, is_ours};
    struct tsr_folder folder;
    if (tsr_kind_of(in, name) == TSR_KIND_NONE)
        return TSR_OK;
    tsr_status status =
        in ? tsr_folder_enter(in, name, &folder) : tsr_folder_open_own(name, &folder);
    if (status == TSR_ECONFIG) /* a link, a file: not what is to go */
        return tsr_fail(TSR_ECONFIG, "%s: left alone", tsr_error_text());
    TSR_TRY(status);
    status = tsr_folder_visit(&folder, check_ours, &removal);
    if (status == TSR_OK)
        status = tsr_folder_visit(&folder, remove_one, &removal);
    tsr_folder_close(&folder);
    TSR_TRY(status);
    if (disk->remove(disk->user, in, name) != 0 && errno != ENOENT)
        return failed(in, name, "remove");
    return TSR_OK;
}
