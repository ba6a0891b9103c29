/* gz.c: reads files that may be compressed, up to a limit, and writes compressed ones. */
#include "experiments/study/base/gz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/base/files.h"
#include "sim/base/text_check.h"

#ifdef TSR_HAVE_ZLIB
#include <zlib.h>

enum { STEP = 1 << 16, FREE_BYTES = 4 << 20, MOST_TIMES = 100 };

/* How much a regular file of this size may grow into; SIZE_MAX: any size. */
static size_t most_of(int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size >= INT64_MAX / MOST_TIMES)
        return SIZE_MAX;
    return FREE_BYTES + MOST_TIMES * (size_t)info.st_size;
}

/* gzread() reads files that are not compressed as they are. */
static tsr_status read_open(gzFile file, const char *path, size_t most, size_t most_here,
                            char **out, size_t *n)
{
    size_t cap = 0;
    for (int got = 1; got > 0; *n += (size_t)got) {
        if (*n > most)
            return tsr_fail(TSR_ECONFIG, "%s: more than %zu MiB of text; allowed: up to that", path,
                            most >> 20);
        if (*n > most_here)
            return tsr_fail(TSR_ECONFIG,
                            "%s: its text has more than %d times the bytes of the file; allowed: "
                            "up to that and %d MiB (or the text itself: gunzip)",
                            path, MOST_TIMES, FREE_BYTES >> 20);
        if (*n + STEP > cap) {
            cap = cap ? 2 * cap : 2 * STEP;
            char *more = realloc(*out, cap);
            if (!more)
                return tsr_no_memory(path);
            *out = more;
        }
        got = gzread(file, *out + *n, STEP);
        if (got < 0)
            return tsr_fail(TSR_ECONFIG, "%s: is damaged: it cannot be decompressed", path);
    }
    int flaw = Z_OK;
    (void)gzerror(file, &flaw);
    if (flaw == Z_BUF_ERROR)
        return tsr_fail(TSR_ECONFIG, "%s: is damaged: its compressed text ends early", path);
    return TSR_OK;
}

tsr_status tsr_gz_load(const char *path, size_t most, char **out, size_t *n)
{
    const char *why;
    *out = NULL;
    *n = 0;
    int fd = tsr_file_open(NULL, path, TSR_OPEN_READ, NULL, &why);
    gzFile file = fd >= 0 ? gzdopen(fd, "rb") : NULL;
    if (fd >= 0 && !file) {
        (void)close(fd);
        return tsr_no_memory(path);
    }
    if (!file)
        return tsr_fail(TSR_ECONFIG, "%s: %s; allowed: a file that can be read", path, why);
    tsr_status status = read_open(file, path, most, most_of(fd), out, n);
    gzclose(file);
    if (status != TSR_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

struct packed {
    unsigned char *bytes;
    size_t n;
};

static tsr_status put_packed(FILE *stream, const void *user)
{
    const struct packed *packed = user;
    (void)fwrite(packed->bytes, 1, packed->n, stream); /* the caller looks at the stream */
    return TSR_OK;
}

static tsr_status pack(const char *text, size_t n, struct packed *out)
{
    enum { WINDOW_WITH_GZIP_HEAD = 15 + 16, MEMORY_LEVEL = 8 };
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)text, .avail_in = (uInt)n};
    if (n > UINT32_MAX / 2 ||
        deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, WINDOW_WITH_GZIP_HEAD, MEMORY_LEVEL,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return tsr_no_memory("a compressed file");
    size_t most = deflateBound(&z, (uLong)n);
    out->bytes = malloc(most);
    z.next_out = out->bytes;
    z.avail_out = (uInt)most;
    bool done = out->bytes && deflate(&z, Z_FINISH) == Z_STREAM_END;
    out->n = z.total_out;
    (void)deflateEnd(&z);
    return done ? TSR_OK : tsr_no_memory("a compressed file");
}

tsr_status tsr_gz_write_in(const char *folder, const char *name, tsr_write_fn write,
                           const void *user)
{
    char packed_name[128], *text = NULL;
    size_t n = 0;
    struct packed packed = {NULL, 0};
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return tsr_no_memory(name);
    tsr_status status = write(stream, user);
    if (fclose(stream) != 0 && status == TSR_OK)
        status = tsr_no_memory(name);
    if (status == TSR_OK)
        status = pack(text, n, &packed);
    snprintf(packed_name, sizeof packed_name, "%s.gz", name);
    if (status == TSR_OK)
        status = tsr_write_in(folder, packed_name, put_packed, &packed);
    free(packed.bytes);
    free(text);
    return status;
}
#else
tsr_status tsr_gz_load(const char *path, size_t most, char **out, size_t *n)
{
    TSR_TRY(tsr_text_read(path, most, out, n));
    if (*n < 2 || memcmp(*out, "\x1f\x8b", 2) != 0)
        return TSR_OK;
    free(*out);
    *out = NULL;
    return tsr_fail(TSR_ECONFIG,
                    "%s: this tessera was built without zlib; allowed: a file that was "
                    "decompressed (gunzip)",
                    path);
}

tsr_status tsr_gz_write_in(const char *folder, const char *name, tsr_write_fn write,
                           const void *user)
{
    return tsr_write_in(folder, name, write, user);
}
#endif
