/* files.c: reads and copies whole files, and writes them so that they are complete or absent. */
#include "experiments/study/base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experiments/study/base/interrupt.h"

enum { MAX_COPIED_BYTES = 1 << 30 };

tsr_status tsr_file_name(char out[TSR_FILE_NAME_BYTES], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, TSR_FILE_NAME_BYTES, format, args);
    va_end(args);
    if (n >= 0 && n < TSR_FILE_NAME_BYTES)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "a path is longer than %d bytes: %.80s...",
                    TSR_FILE_NAME_BYTES - 1, out);
}

static tsr_status failed(const char *path, const char *call)
{
    return tsr_fail(TSR_EIO, "%s: %s: %s", path, call, strerror(errno));
}

static tsr_status read_open(FILE *file, const char *path, size_t most, char **data, size_t *bytes)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0)
        return failed(path, "stat");
    if (!S_ISREG(info.st_mode))
        return tsr_fail(TSR_ECONFIG, "%s: not a file", path);
    if ((uint64_t)info.st_size > most)
        return tsr_fail(TSR_ECONFIG, "%s: %lld bytes; allowed: up to %zu", path,
                        (long long)info.st_size, most);
    *bytes = (size_t)info.st_size;
    *data = malloc(*bytes + 1);
    if (!*data)
        return tsr_no_memory(NULL);
    (*data)[*bytes] = 0;
    errno = EIO; /* if it ends sooner */
    return fread(*data, 1, *bytes, file) == *bytes ? TSR_OK : failed(path, "read");
}

tsr_status tsr_read_file(const char *path, size_t most, char **data, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    *data = NULL;
    if (!file)
        return failed(path, "open");
    tsr_status status = read_open(file, path, most, data, bytes);
    fclose(file);
    if (status != TSR_OK) {
        free(*data);
        *data = NULL;
    }
    return status;
}

/* ---- folders ----------------------------------------------------------------------------- */

struct content {
    const char *data;
    size_t bytes;
};

static tsr_status put_content(FILE *stream, const void *user)
{
    const struct content *content = user;
    fwrite(content->data, 1, content->bytes, stream);
    return TSR_OK;
}

static tsr_status copy_file(const char *from, const char *to)
{
    char *data = NULL;
    size_t bytes = 0;
    TSR_TRY(tsr_read_file(from, MAX_COPIED_BYTES, &data, &bytes));
    tsr_status status = tsr_write_file(to, put_content, &(struct content){data, bytes});
    free(data);
    return status;
}

static tsr_status copy_entry(const char *from, const char *to, const char *name)
{
    char source[TSR_FILE_NAME_BYTES], target[TSR_FILE_NAME_BYTES];
    struct stat info;
    TSR_TRY(tsr_file_name(source, "%s/%s", from, name));
    TSR_TRY(tsr_file_name(target, "%s/%s", to, name));
    if (stat(source, &info) != 0 || !S_ISREG(info.st_mode))
        return TSR_OK;
    return copy_file(source, target);
}

static bool same_folder(const char *a, const char *b)
{
    struct stat one, two;
    return stat(a, &one) == 0 && stat(b, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino;
}

tsr_status tsr_folder_copy(const char *from, const char *to)
{
    if (same_folder(from, to))
        return TSR_OK;
    DIR *folder = opendir(from);
    if (!folder)
        return tsr_fail(TSR_ECONFIG, "%s: found no folder that can be read (%s); allowed: one",
                        from, strerror(errno));
    tsr_status status = tsr_make_folder(to);
    for (struct dirent *e; status == TSR_OK && (e = readdir(folder));)
        status = copy_entry(from, to, e->d_name);
    closedir(folder);
    return status;
}

/* ---- for a moment ------------------------------------------------------------------------ */

tsr_status tsr_temp_file(const char *text, const char *ending, char *path, size_t size)
{
    const char *folder = getenv("TMPDIR");
    int n =
        snprintf(path, size, "%s/tessera-XXXXXX%s", folder && *folder ? folder : "/tmp", ending);
    int fd = n > 0 && (size_t)n < size ? mkstemps(path, (int)strlen(ending)) : -1;
    if (fd < 0)
        return tsr_fail(TSR_EIO, "%s: cannot be made", path);
    size_t length = strlen(text);
    bool ok = write(fd, text, length) == (ssize_t)length;
    ok = close(fd) == 0 && ok;
    if (ok)
        return TSR_OK;
    unlink(path);
    return tsr_fail(TSR_EIO, "%s: cannot be written", path);
}

/* ---- output files ---------------------------------------------------------------------------- */

enum { TEMP_SUFFIX_BYTES = 32, TEMP_TRIES = 100 };

static tsr_status no_memory(const char *path)
{
    return tsr_fail(TSR_ENOMEM, "%s: no memory left", path);
}

/* True for what a rename must not replace: devices and pipes. */
static bool is_special(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

/* Creates PATH.tmp-PID-n and leaves its name in file->temp. Not mkstemp(), which would give the
 * finished file mode 0600. */
static int create_temp(struct tsr_outfile *file)
{
    size_t n = strlen(file->path) + TEMP_SUFFIX_BYTES;
    file->temp = malloc(n);
    if (!file->temp)
        return -1;
    for (int i = 0; i < TEMP_TRIES; i++) {
        (void)snprintf(file->temp, n, "%s.tmp-%ld-%d", file->path, (long)getpid(), i);
        int fd = tsr_interrupt_create(file->temp);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static void forget(struct tsr_outfile *file)
{
    if (file->temp)
        tsr_interrupt_keep(file->temp);
    free(file->path);
    free(file->temp);
    *file = (struct tsr_outfile){NULL, NULL, NULL};
}

tsr_status tsr_outfile_open(const char *path, struct tsr_outfile *out)
{
    *out = (struct tsr_outfile){NULL, NULL, NULL};
    out->path = strdup(path);
    if (!out->path)
        return no_memory(path);
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        forget(out);
        return tsr_fail(TSR_EIO, "%s: cannot be written: is a folder", path);
    }
    int fd = is_special(path) ? open(path, O_WRONLY | O_CLOEXEC) : create_temp(out);
    if (fd >= 0)
        out->stream = fdopen(fd, "w");
    if (out->stream)
        return TSR_OK;
    int reason = errno;
    if (fd >= 0) {
        (void)close(fd);
        if (out->temp)
            (void)unlink(out->temp);
    }
    forget(out);
    return tsr_fail(TSR_EIO, "%s: cannot be written: %s", path, strerror(reason));
}

tsr_status tsr_outfile_expect(const char *folder, const char *name, const char *temp,
                              struct tsr_outfile *out)
{
    *out = (struct tsr_outfile){.path = tsr_path_join(folder, name),
                                .temp = tsr_path_join(folder, temp)};
    if (!out->path || !out->temp) {
        forget(out);
        return TSR_ENOMEM;
    }
    tsr_interrupt_remove(out->temp);
    return TSR_OK;
}

/* 0, or the errno of what went wrong with the stream so far. */
static int write_error(FILE *stream)
{
    errno = 0;
    if (fflush(stream) != 0)
        return errno ? errno : EIO;
    if (!ferror(stream))
        return 0;
    /* An earlier write failed and its errno is gone: one more write tells the reason. */
    clearerr(stream);
    errno = 0;
    if (fputc('\n', stream) == EOF || fflush(stream) != 0)
        return errno ? errno : EIO;
    return EIO;
}

tsr_status tsr_flush(FILE *stream, const char *name)
{
    int error = write_error(stream);
    if (error)
        return tsr_fail(TSR_EIO, "%s: cannot be written: %s", name, strerror(error));
    return TSR_OK;
}

tsr_status tsr_outfile_commit(struct tsr_outfile *file)
{
    int error = file->stream ? write_error(file->stream) : 0;
    if (file->stream && fclose(file->stream) != 0 && !error)
        error = errno;
    file->stream = NULL;
    if (!error && file->temp && rename(file->temp, file->path) != 0)
        error = errno;
    tsr_status status = TSR_OK;
    if (error) {
        if (file->temp)
            (void)unlink(file->temp);
        status = tsr_fail(TSR_EIO, "%s: cannot be written: %s", file->path, strerror(error));
    }
    forget(file);
    return status;
}

void tsr_outfile_abort(struct tsr_outfile *file)
{
    if (file->stream)
        (void)fclose(file->stream);
    if (file->temp)
        (void)unlink(file->temp);
    forget(file);
}

tsr_status tsr_write_file(const char *path, tsr_write_fn write, const void *user)
{
    struct tsr_outfile file;
    TSR_TRY(tsr_outfile_open(path, &file));
    tsr_status status = write(file.stream, user);
    if (status == TSR_OK)
        return tsr_outfile_commit(&file);
    tsr_outfile_abort(&file);
    return status;
}

tsr_status tsr_write_in(const char *folder, const char *name, tsr_write_fn write, const void *user)
{
    char *path = tsr_path_join(folder, name);
    if (!path)
        return TSR_ENOMEM;
    tsr_status status = tsr_write_file(path, write, user);
    free(path);
    return status;
}

tsr_status tsr_write_each(const char *folder, const struct tsr_named_write *files, size_t n,
                          const void *user)
{
    for (size_t i = 0; i < n; i++)
        TSR_TRY(tsr_write_in(folder, files[i].name, files[i].write, user));
    return TSR_OK;
}

tsr_status tsr_put_text(FILE *stream, const void *text)
{
    fputs(text, stream);
    return TSR_OK;
}

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
        return no_memory(path);
    int error = 0;
    for (char *at = copy + 1; copy[0] && *at && !error; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        error = make_one(copy);
        *at = '/';
    }
    if (!error)
        error = make_one(copy);
    free(copy);
    if (error)
        return tsr_fail(TSR_EIO, "%s: the folder cannot be made: %s", path, strerror(error));
    return TSR_OK;
}

char *tsr_path_join(const char *folder, const char *name)
{
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    if (path)
        (void)snprintf(path, n, "%s/%s", folder, name);
    else
        (void)no_memory(name);
    return path;
}
