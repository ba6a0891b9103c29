/* folder.c: opens folders, and says what lies in them. */
#include "sim/base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

struct tsr_place_text tsr_place(const struct tsr_folder *in, const char *name)
{
    struct tsr_place_text place;
    size_t n = in ? strlen(in->path) : 0;
    const char *slash = n && in->path[n - 1] != '/' ? "/" : "";
    int length = snprintf(place.text, sizeof place.text, "%s%s%s", in ? in->path : "", slash, name);
    if (length < 0 || (size_t)length >= sizeof place.text)
        memcpy(place.text + sizeof place.text - 4, "...", 4);
    return place;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int at(const struct tsr_folder *in)
{
    return in ? in->fd : AT_FDCWD;
}

/* Beneath a folder no name is followed. */
static int look_flags(const struct tsr_folder *in)
{
    return in ? AT_SYMLINK_NOFOLLOW : 0;
}

static tsr_status refuse(const struct tsr_folder *out, bool is_link, int error)
{
    if (is_link)
        return tsr_fail(TSR_ECONFIG,
                        "%s: is a symbolic link, which is not followed; allowed: a folder",
                        out->path);
    return tsr_fail(error == ENOENT || error == ENOTDIR ? TSR_ECONFIG : TSR_EIO, "%s: %s",
                    out->path, strerror(error));
}

static tsr_status open_at(const struct tsr_folder *in, const char *name, int extra,
                          struct tsr_folder *out)
{
    struct stat info;
    out->fd = openat(at(in), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | extra);
    if (out->fd >= 0)
        return TSR_OK;
    int error = errno;
    bool is_link =
        extra && fstatat(at(in), name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
    tsr_status status = refuse(out, is_link, error);
    errno = error;
    return status;
}

tsr_status tsr_folder_open(const char *path, struct tsr_folder *out)
{
    out->fd = -1;
    TSR_TRY(tsr_path(out->path, "%s", path));
    return open_at(NULL, path, 0, out);
}

tsr_status tsr_folder_open_own(const char *path, struct tsr_folder *out)
{
    out->fd = -1;
    TSR_TRY(tsr_path(out->path, "%s", path));
    size_t n = strlen(out->path);
    while (n > 1 && out->path[n - 1] == '/') /* "link/" would be followed */
        out->path[--n] = '\0';
    return open_at(NULL, out->path, O_NOFOLLOW, out);
}

tsr_status tsr_folder_enter(const struct tsr_folder *in, const char *name, struct tsr_folder *out)
{
    out->fd = -1;
    TSR_CHECK(*name && !strchr(name, '/') && strcmp(name, "..") != 0);
    TSR_TRY(tsr_path(out->path, "%s", tsr_place(in, name).text));
    return open_at(in, name, O_NOFOLLOW, out);
}

tsr_status tsr_folder_around(const char *path, struct tsr_folder *out, const char **name)
{
    const char *slash = strrchr(path, '/');
    out->fd = -1;
    *name = slash ? slash + 1 : path;
    TSR_TRY(
        tsr_path(out->path, "%.*s", slash > path ? (int)(slash - path) : 1, slash ? path : "."));
    TSR_TRY(open_at(NULL, out->path, 0, out));
    if (!slash)
        out->path[0] = '\0'; /* texts name the file as its user did */
    return TSR_OK;
}

void tsr_folder_close(struct tsr_folder *folder)
{
    if (folder->fd >= 0)
        (void)close(folder->fd);
    folder->fd = -1;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* mkdir() that accepts a folder that is there; 0 or an errno. */
static int make_one(const char *path)
{
    if (mkdir(path, 0777) == 0)
        return 0;
    int error = errno;
    struct stat info;
    if (stat(path, &info) == 0)
        return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
    return error;
}

tsr_status tsr_make_folder(const char *path)
{
    char *copy = strdup(path);
    if (!copy)
        return tsr_fail(TSR_ENOMEM, "%s: no memory left", path);
    int error = 0;
    for (char *c = copy + 1; copy[0] && *c && !error; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        error = make_one(copy);
        *c = '/';
    }
    if (!error)
        error = make_one(copy);
    free(copy);
    if (!error)
        return TSR_OK;
    tsr_status status =
        tsr_fail(TSR_EIO, "%s: the folder cannot be made: %s", path, strerror(error));
    errno = error;
    return status;
}

tsr_status tsr_make_own_folder(const char *path)
{
    struct tsr_folder folder;
    TSR_TRY(tsr_make_folder(path));
    TSR_TRY(tsr_folder_open_own(path, &folder));
    tsr_folder_close(&folder);
    return TSR_OK;
}

/* ---- what lies there ------------------------------------------------------------------------- */

enum tsr_kind tsr_kind_of(const struct tsr_folder *in, const char *name)
{
    struct stat info;
    if (fstatat(at(in), name, &info, look_flags(in)) != 0)
        return errno == ENOENT || errno == ENOTDIR ? TSR_KIND_NONE : TSR_KIND_OTHER;
    return S_ISREG(info.st_mode)   ? TSR_KIND_FILE
           : S_ISDIR(info.st_mode) ? TSR_KIND_FOLDER
           : S_ISLNK(info.st_mode) ? TSR_KIND_LINK
                                   : TSR_KIND_OTHER;
}

const char *tsr_kind_text(const struct tsr_folder *in, const char *name)
{
    struct stat info;
    if (fstatat(at(in), name, &info, look_flags(in)) != 0)
        return "";
    switch (info.st_mode & S_IFMT) {
    case S_IFREG:
        return "";
    case S_IFDIR:
        return "is a folder";
    case S_IFLNK:
        return "is a symbolic link";
    case S_IFIFO:
        return "is a FIFO";
    case S_IFSOCK:
        return "is a socket";
    default:
        return "is a device";
    }
}

bool tsr_folder_is_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool tsr_folder_is_in_place(const struct tsr_folder *folder)
{
    struct stat x, y;
    return fstat(folder->fd, &x) == 0 && stat(folder->path, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

tsr_status tsr_folder_visit(const struct tsr_folder *folder, tsr_visit_fn visit, void *user)
{
    /* A descriptor of its own: reading moves its place, and closedir() closes it. */
    int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        tsr_status status = tsr_fail(TSR_EIO, "%s: %s", folder->path, strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return status;
    }
    tsr_status status = TSR_OK;
    while (status == TSR_OK) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry && errno)
            status = tsr_fail(TSR_EIO, "%s: %s", folder->path, strerror(errno));
        if (!entry)
            break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = visit(user, folder, entry->d_name);
    }
    (void)closedir(dir);
    return status;
}
