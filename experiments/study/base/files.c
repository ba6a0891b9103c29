/* files.c: reads and copies whole files. */
#include "experiments/study/base/files.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experiments/study/base/out_file.h"

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
