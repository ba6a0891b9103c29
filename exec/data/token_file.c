/* token_file.c: reads and writes files of tokens. */
#include "exec/data/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/base/disk.h"
#include "sim/base/files.h"

static const struct {
    uint32_t magic, version;
    unsigned token_bytes;
} kinds[] = {
    [TSR_TOKENS_GPT2] = {20240520, 1, 2},
    [TSR_TOKENS_LLAMA3] = {20240801, 7, 4},
};

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* `size` is that of the file. */
static tsr_status check_header(const char *path, uint64_t size, struct tsr_token_file *file)
{
    uint8_t header[12];
    if (size < TSR_TOKEN_HEADER_BYTES)
        return tsr_fail(TSR_ECONFIG,
                        "%s: has %" PRIu64 " bytes; a file of tokens begins with %d of header",
                        path, size, TSR_TOKEN_HEADER_BYTES);
    TSR_TRY(tsr_file_read_at(file->fd, path, 0, header, sizeof header));
    uint32_t magic = read_u32(header), version = read_u32(header + 4);
    int64_t n = (int32_t)read_u32(header + 8);
    size_t kind = 0;
    while (kind < sizeof kinds / sizeof *kinds && kinds[kind].magic != magic)
        kind++;
    if (kind == sizeof kinds / sizeof *kinds)
        return tsr_fail(TSR_ECONFIG,
                        "%s: magic number is %" PRIu32 "; allowed: %" PRIu32
                        " (GPT-2, uint16), %" PRIu32 " (Llama-3, uint32)",
                        path, magic, kinds[TSR_TOKENS_GPT2].magic, kinds[TSR_TOKENS_LLAMA3].magic);
    if (version != kinds[kind].version)
        return tsr_fail(TSR_ECONFIG,
                        "%s: version is %" PRIu32 "; allowed with magic number %" PRIu32
                        ": %" PRIu32,
                        path, version, magic, kinds[kind].version);
    if (n <= 0)
        return tsr_fail(TSR_ECONFIG, "%s: token count is %" PRId64 "; allowed: 1 to 2147483647",
                        path, n);
    uint64_t bytes = TSR_TOKEN_HEADER_BYTES + (uint64_t)n * kinds[kind].token_bytes;
    if (bytes != size)
        return tsr_fail(
            TSR_ECONFIG,
            "%s: %s: token count %" PRId64 " makes %" PRIu64 " bytes, but the file has %" PRIu64,
            path, size < bytes ? "is cut short" : "has bytes left over", n, bytes, size);
    file->kind = (enum tsr_token_kind)kind;
    file->token_bytes = kinds[kind].token_bytes;
    file->n_tokens = (uint64_t)n;
    return TSR_OK;
}

tsr_status tsr_token_file_open(const char *path, bool sequential, struct tsr_token_file *out)
{
    *out = (struct tsr_token_file){0};
    const char *why;
    uint64_t bytes;
    int fd = tsr_file_open(NULL, path, TSR_OPEN_READ, &bytes, &why);
    if (fd < 0 && errno == EINVAL)
        return tsr_fail(TSR_ECONFIG, "%s: is not a regular file (%s); allowed: a file of tokens",
                        path, why);
    if (fd < 0)
        return tsr_fail(TSR_EIO, "%s: cannot be read: %s", path, why);
    out->fd = fd;
    tsr_status status;
    out->path = strdup(path);
    if (!out->path) {
        (void)close(fd);
        return tsr_no_memory(path);
    }
    if (bytes == UINT64_MAX)
        TSR_GOTO(failed, tsr_fail(TSR_ECONFIG,
                                  "%s: is not a regular file; allowed: a file of tokens", path));
    TSR_GOTO(failed, check_header(path, bytes, out));
    /* Reading ahead is a waste where the next window lies anywhere. */
    (void)posix_fadvise(fd, 0, 0, sequential ? POSIX_FADV_SEQUENTIAL : POSIX_FADV_RANDOM);
    return TSR_OK;
failed:
    tsr_token_file_close(out);
    return status;
}

void tsr_token_file_close(struct tsr_token_file *file)
{
    if (file->path)
        (void)close(file->fd);
    free(file->path);
    *file = (struct tsr_token_file){0};
}

static tsr_status check_token(const struct tsr_token_file *file, uint64_t i, uint32_t token,
                              uint64_t n_vocab)
{
    if (token < n_vocab)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: token %" PRIu64 " is %" PRIu32 "; allowed: 0 to %" PRIu64
                    " (vocabulary of %" PRIu64 ")",
                    file->path, i, token, n_vocab ? n_vocab - 1 : 0, n_vocab);
}

tsr_status tsr_token_file_read(const struct tsr_token_file *file, uint64_t first, uint64_t n,
                               uint64_t n_vocab, int64_t *out)
{
    enum { AT_ONCE = 4096 };
    TSR_CHECK(first <= file->n_tokens && n <= file->n_tokens - first);
    uint8_t bytes[AT_ONCE * 4];
    unsigned width = file->token_bytes;
    for (uint64_t done = 0, some; done < n; done += some) {
        some = tsr_min_u64(n - done, AT_ONCE);
        TSR_TRY(tsr_file_read_at(file->fd, file->path,
                                 TSR_TOKEN_HEADER_BYTES + (first + done) * width, bytes,
                                 some * width));
        for (uint64_t i = 0; i < some; i++) {
            const uint8_t *at = bytes + i * width;
            uint32_t token = width == 2 ? (uint32_t)at[0] | (uint32_t)at[1] << 8 : read_u32(at);
            TSR_TRY(check_token(file, first + done + i, token, n_vocab));
            out[done + i] = token;
        }
    }
    return TSR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

enum { WRITE_BYTES = 1 << 16 };

/* The file grows under a name of its own beside `path`, and is renamed when all of it is on the
 * disk: at `path` there is the old file or the new one, never a part. */
struct tsr_token_writer {
    char path[TSR_PATH_BYTES], temporary[TSR_PATH_BYTES];
    struct tsr_folder folder; /* of both; they are named in it */
    const char *name;         /* in `path` */
    struct tsr_out_file file;
    enum tsr_token_kind kind;
    uint64_t n_tokens;
    uint64_t written; /* bytes */
    size_t n_used;    /* of the buffer */
    uint8_t buffer[WRITE_BYTES];
};

/* The line names the file as its user does. */
static tsr_status as_written(const struct tsr_token_writer *w, tsr_status status)
{
    return status == TSR_EIO
               ? tsr_fail(TSR_EIO, "%s: cannot be written: %s", w->path, strerror(errno))
               : status;
}

static tsr_status flush(struct tsr_token_writer *w)
{
    TSR_TRY(as_written(w, tsr_out_write(&w->file, w->buffer, w->n_used, w->written)));
    w->written += w->n_used;
    w->n_used = 0;
    return TSR_OK;
}

static void put_u32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> 8 * i);
}

tsr_status tsr_token_writer_open(const char *path, enum tsr_token_kind kind,
                                 struct tsr_token_writer **out)
{
    *out = NULL;
    struct tsr_token_writer *w = calloc(1, sizeof *w);
    if (!w)
        return tsr_no_memory(path);
    tsr_status status;
    w->kind = kind;
    w->n_used = TSR_TOKEN_HEADER_BYTES; /* of zeros: not valid until the end */
    w->folder.fd = -1;
    TSR_GOTO(failed, tsr_path(w->path, "%s", path));
    status = tsr_folder_around(w->path, &w->folder, &w->name);
    if (status != TSR_OK) { /* the line names the file */
        status = tsr_fail(TSR_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
        goto failed;
    }
    TSR_GOTO(failed, tsr_path(w->temporary, "%s.tmp-%ld", w->name, (long)getpid()));
    TSR_GOTO(failed,
             as_written(w, tsr_out_create(&w->file, &tsr_disk_posix, &w->folder, w->temporary)));
    *out = w;
    return TSR_OK;
failed:
    tsr_folder_close(&w->folder);
    free(w);
    return status;
}

tsr_status tsr_token_writer_add(struct tsr_token_writer *w, const uint32_t *tokens, size_t n)
{
    unsigned token_bytes = kinds[w->kind].token_bytes;
    if (n > INT32_MAX - w->n_tokens)
        return tsr_fail(TSR_EVALUE, "%s: more than 2147483647 tokens; begin another file", w->path);
    for (size_t i = 0; i < n; i++) {
        if (token_bytes == 2 && tokens[i] > UINT16_MAX)
            return tsr_fail(TSR_EVALUE,
                            "%s: token %" PRIu64 " is %" PRIu32 "; allowed in uint16: 0 to 65535",
                            w->path, w->n_tokens, tokens[i]);
        if (w->n_used + sizeof(uint32_t) > WRITE_BYTES)
            TSR_TRY(flush(w));
        for (unsigned k = 0; k < token_bytes; k++)
            w->buffer[w->n_used++] = (uint8_t)(tokens[i] >> 8 * k);
        w->n_tokens++;
    }
    return TSR_OK;
}

static tsr_status finish(struct tsr_token_writer *w)
{
    if (w->n_tokens == 0)
        return tsr_fail(TSR_EVALUE, "%s: a file of no tokens is not allowed", w->path);
    TSR_TRY(flush(w));
    uint8_t header[12];
    put_u32(header, kinds[w->kind].magic);
    put_u32(header + 4, kinds[w->kind].version);
    put_u32(header + 8, (uint32_t)w->n_tokens);
    TSR_TRY(as_written(w, tsr_out_write(&w->file, header, sizeof header, 0)));
    TSR_TRY(as_written(w, tsr_out_finish(&w->file)));
    return as_written(w, tsr_disk_move(&tsr_disk_posix, &w->folder, w->temporary, w->name));
}

tsr_status tsr_token_writer_commit(struct tsr_token_writer *w)
{
    tsr_status status = finish(w);
    if (status != TSR_OK)
        (void)tsr_disk_posix.remove(NULL, &w->folder, w->temporary);
    tsr_out_abandon(&w->file);
    tsr_folder_close(&w->folder);
    free(w);
    return status;
}

void tsr_token_writer_abort(struct tsr_token_writer *w)
{
    if (!w)
        return;
    tsr_out_abandon(&w->file);
    tsr_folder_close(&w->folder);
    free(w);
}
