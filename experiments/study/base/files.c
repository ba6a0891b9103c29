/* files.c: writes files so that they are complete or absent, and copies those of a folder. */
#include "experiments/study/base/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/base/interrupt.h"
#include "sim/base/files.h"

enum { MAX_COPIED_BYTES = 1 << 30 };

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

/* What is no regular file is left out: nothing that is linked is copied. */
static tsr_status copy_entry(void *user, const struct tsr_folder *in, const char *name)
{
    char target[TSR_PATH_BYTES], *data = NULL;
    size_t bytes = 0;
    if (tsr_kind_of(in, name) != TSR_KIND_FILE)
        return TSR_OK;
    TSR_TRY(tsr_path(target, "%s/%s", (const char *)user, name));
    TSR_TRY(tsr_file_read(in, name, MAX_COPIED_BYTES, &data, &bytes));
    tsr_status status = tsr_write_file(target, put_content, &(struct content){data, bytes});
    free(data);
    return status;
}

tsr_status tsr_folder_copy(const char *from, const char *to)
{
    struct tsr_folder folder;
    char target[TSR_PATH_BYTES];
    if (tsr_folder_is_same(from, to))
        return TSR_OK;
    if (tsr_folder_open_own(from, &folder) != TSR_OK)
        return tsr_fail(TSR_ECONFIG, "%s; allowed: a folder that can be read", tsr_error_text());
    tsr_status status = tsr_path(target, "%s", to);
    if (status == TSR_OK)
        status = tsr_make_own_folder(to);
    if (status == TSR_OK)
        status = tsr_folder_visit(&folder, copy_entry, target);
    tsr_folder_close(&folder);
    return status;
}

/* ---- output files ---------------------------------------------------------------------------- */

enum { TEMP_SUFFIX_BYTES = 32, TEMP_TRIES = 100 };

static tsr_status no_memory(const char *path)
{
    return tsr_fail(TSR_ENOMEM, "%s: no memory left", path);
}

/* Creates NAME.tmp-PID-n in the file's folder and leaves its name in file->temp. Not mkstemp(),
 * which would give the finished file mode 0600. */
static int create_temp(struct tsr_outfile *file)
{
    size_t n = strlen(file->name) + TEMP_SUFFIX_BYTES;
    file->temp = malloc(n);
    if (!file->temp)
        return -1;
    for (int i = 0; i < TEMP_TRIES; i++) {
        (void)snprintf(file->temp, n, "%s.tmp-%ld-%d", file->name, (long)getpid(), i);
        int fd = tsr_interrupt_create(&file->folder, file->temp);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static void forget(struct tsr_outfile *file)
{
    if (!file->path)
        return;
    if (file->temp)
        tsr_interrupt_keep(file->temp);
    tsr_folder_close(&file->folder);
    free(file->path);
    free(file->temp);
    *file = (struct tsr_outfile){.folder = {.fd = -1}};
}

static void remove_temp(struct tsr_outfile *file)
{
    if (file->temp)
        tsr_file_remove(&file->folder, file->temp);
}

/* *why says why there is no descriptor. */
static int open_place(struct tsr_outfile *file, bool may_stream, const char **why)
{
    if (may_stream && tsr_is_output_stream(file->path))
        return tsr_output_open(file->path, why);
    if (tsr_folder_around(file->path, &file->folder, &file->name) != TSR_OK) {
        *why = strerror(errno);
        return -1;
    }
    enum tsr_kind kind = tsr_kind_of(&file->folder, file->name);
    if (kind == TSR_KIND_FOLDER || kind == TSR_KIND_OTHER || (kind == TSR_KIND_LINK && !may_stream))
        *why = tsr_kind_text(&file->folder, file->name);
    else {
        int fd = create_temp(file);
        *why = strerror(errno);
        return fd;
    }
    return -1;
}

/* may_stream: `path` is as its user typed it. */
static tsr_status open_output(const char *path, bool may_stream, struct tsr_outfile *out)
{
    const char *why = "";
    *out = (struct tsr_outfile){.folder = {.fd = -1}};
    out->path = strdup(path);
    if (!out->path)
        return no_memory(path);
    int fd = open_place(out, may_stream, &why);
    if (fd >= 0) {
        out->stream = fdopen(fd, "w");
        if (out->stream)
            return TSR_OK;
        why = strerror(errno);
        (void)close(fd);
        remove_temp(out);
    }
    tsr_status status = tsr_fail(TSR_EIO, "%s: cannot be written: %s", path, why);
    forget(out);
    return status;
}

tsr_status tsr_outfile_open(const char *path, struct tsr_outfile *out)
{
    return open_output(path, true, out);
}

/* An empty file for the other program, which would write through a link and wait for a FIFO. What a
 * killed program left of that name goes. */
static tsr_status claim(struct tsr_outfile *file)
{
    enum tsr_kind kind = tsr_kind_of(&file->folder, file->temp);
    if (kind == TSR_KIND_FILE)
        tsr_file_remove(&file->folder, file->temp);
    int fd = tsr_interrupt_create(&file->folder, file->temp);
    bool in_the_way = fd < 0 && kind != TSR_KIND_FILE && kind != TSR_KIND_NONE;
    if (fd < 0)
        return tsr_fail(TSR_EIO, "%s: cannot be written: %s",
                        tsr_place(&file->folder, file->temp).text,
                        in_the_way ? tsr_kind_text(&file->folder, file->temp) : strerror(errno));
    (void)close(fd);
    return TSR_OK;
}

tsr_status tsr_outfile_expect(const char *folder, const char *name, const char *temp,
                              struct tsr_outfile *out)
{
    tsr_status status;
    *out = (struct tsr_outfile){.folder = {.fd = -1}};
    out->path = tsr_path_join(folder, name);
    if (!out->path)
        return TSR_ENOMEM;
    TSR_GOTO(failed, tsr_folder_around(out->path, &out->folder, &out->name));
    out->temp = strdup(temp);
    if (!out->temp)
        TSR_GOTO(failed, no_memory(out->path));
    TSR_GOTO(failed, claim(out));
    return TSR_OK;
failed:
    forget(out);
    return status;
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

/* What another program was to write it left as it was made: empty. */
static bool is_untouched(const struct tsr_outfile *file)
{
    const char *why;
    uint64_t bytes = 1;
    int fd = tsr_file_open(&file->folder, file->temp, TSR_OPEN_READ, &bytes, &why);
    if (fd >= 0)
        (void)close(fd);
    return fd >= 0 && bytes == 0;
}

tsr_status tsr_outfile_commit(struct tsr_outfile *file)
{
    if (!file->stream && file->temp && is_untouched(file)) {
        tsr_status status = tsr_fail(TSR_EIO, "%s: cannot be written: nothing was", file->path);
        tsr_outfile_abort(file);
        return status;
    }
    int error = file->stream ? write_error(file->stream) : 0;
    if (file->stream && fclose(file->stream) != 0 && !error)
        error = errno;
    file->stream = NULL;
    if (!error && file->temp)
        error = tsr_file_rename(&file->folder, file->temp, file->name);
    tsr_status status = TSR_OK;
    if (error) {
        remove_temp(file);
        status = tsr_fail(TSR_EIO, "%s: cannot be written: %s", file->path, strerror(error));
    }
    forget(file);
    return status;
}

void tsr_outfile_abort(struct tsr_outfile *file)
{
    if (file->stream)
        (void)fclose(file->stream);
    remove_temp(file);
    forget(file);
}

static tsr_status write_whole(const char *path, bool may_stream, tsr_write_fn write,
                              const void *user)
{
    struct tsr_outfile file;
    TSR_TRY(open_output(path, may_stream, &file));
    tsr_status status = write(file.stream, user);
    if (status == TSR_OK)
        return tsr_outfile_commit(&file);
    tsr_outfile_abort(&file);
    return status;
}

tsr_status tsr_write_file(const char *path, tsr_write_fn write, const void *user)
{
    return write_whole(path, false, write, user);
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

tsr_status tsr_write_output(const char *path, tsr_write_fn write, const void *user)
{
    return write_whole(path, true, write, user);
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
