/* gz.c: reads files that may be compressed, up to a limit. */
#include "experiments/study/base/gz.h"

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
#endif
