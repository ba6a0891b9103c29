/* out_file.c: atomic output files and folders. */
#include "experiments/study/base/out_file.h"
#include "experiments/study/base/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    int error = write_error(file->stream);
    if (fclose(file->stream) != 0 && !error)
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
